// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// node is the network of one node: the namespace of its host, pods that the bridge
// plugin attaches to it, and a container runtime with their sandboxes.
type node struct {
	host    *netlab.Namespace
	network *stage.Network
	pods    map[string]*stage.Pod // nil: the namespace is gone
	runtime *critest.Server
	ready   []critest.Sandbox
}

// uniqueNetwork returns the first three numbers of a /22 that no other network of a node
// and hardly another test has. Scripts whose pods have no interfaces, and that look for
// addresses in use, have 10.231.0.0/16: no test of ours makes an interface with an address
// of it.
func uniqueNetwork() string {
	const first, last, blocks = 112, 231, 64
	return fmt.Sprintf("10.%d.%d", first+rand.IntN(last-first), 4*rand.IntN(blocks))
}

// nodeBlock returns the first three numbers of the block of node 1 in such a network.
func nodeBlock(network string) string {
	var a, b, c int
	_, _ = fmt.Sscanf(network, "%d.%d.%d", &a, &b, &c)
	return fmt.Sprintf("%d.%d.%d", a, b, c+1)
}

const nodeUsage = "usage: node up [wires] | node add|del|forget|lose|end NAME | node ip NAME|host ARGS | " +
	"node runtime start|stop"

// runNode implements the command node.
func runNode(ts *testscript.TestScript, neg bool, args []string) {
	m := machineOf(ts)
	switch {
	case neg || len(args) == 0:
		ts.Fatalf(nodeUsage)
	case args[0] == "up" && (len(args) == 1 || len(args) == 2 && args[1] == "wires"):
		bridge := "cni0"
		if len(args) == 2 {
			bridge = ""
		}
		n, err := newNode(m, bridge)
		ts.Check(err)
		m.node = n
	case m.node == nil:
		ts.Fatalf("node up comes first")
	case args[0] == "ip" && len(args) > 2:
		out, err := m.node.ip(args[1], args[2:])
		fmt.Fprint(ts.Stdout(), out)
		ts.Check(err)
	case len(args) == 2:
		ts.Check(m.node.do(args[0], args[1]))
	default:
		ts.Fatalf(nodeUsage)
	}
}

// newNode makes a node. Without the name of a bridge the agent makes the pods' interfaces.
func newNode(m *machine, bridge string) (*node, error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	network, err := stage.NewNetwork(m.Agent, stage.WayRoot, bridge)
	if err != nil {
		return nil, err
	}
	n := &node{host: host, network: network, pods: map[string]*stage.Pod{}, runtime: critest.New(m.path("cri.sock"))}
	return n, n.runtime.Start()
}

func (n *node) do(verb, name string) error {
	switch verb {
	case "add":
		return n.add(name)
	case "del":
		return n.del(name)
	case "forget":
		n.end(name)
		return n.lose(name)
	case "lose":
		return n.lose(name)
	case "end":
		n.end(name)
		return nil
	case "runtime":
		if name == "stop" {
			n.runtime.Stop()
			return nil
		}
		return n.runtime.Start()
	}
	return fmt.Errorf("%s", nodeUsage)
}

// add adds a pod as a container runtime does.
func (n *node) add(name string) error {
	pod, err := stage.NewPod(name, stage.WayRoot, "")
	if err != nil {
		return err
	}
	n.pods[name] = pod
	n.ready = append(n.ready, critest.Sandbox{
		ID: pod.ContainerID(), Namespace: stage.PodNamespace, Name: name, UID: "uid-" + name, NetNS: pod.NetNS(),
	})
	n.runtime.Set(n.ready...)
	return n.host.Do(func() error { return n.network.Add(context.Background(), pod) })
}

// del deletes a pod as a container runtime does, and waits until its interface is gone. The
// namespace stays.
func (n *node) del(name string) error {
	pod := n.pods[name]
	if pod == nil {
		return fmt.Errorf("there is no pod %s", name)
	}
	if err := n.host.Do(func() error { return n.network.Del(context.Background(), pod) }); err != nil {
		return err
	}
	n.end(name)
	return pod.VerifyDeleted(context.Background())
}

// end ends the sandbox of a pod without DEL.
func (n *node) end(name string) {
	n.ready = slices.DeleteFunc(n.ready, func(s critest.Sandbox) bool { return s.Name == name })
	n.runtime.Set(n.ready...)
}

// lose ends the namespace of a pod without DEL, and waits until the kernel has ended it,
// and the other end of its link with it.
func (n *node) lose(name string) error {
	pod := n.pods[name]
	if pod == nil {
		return fmt.Errorf("there is no pod %s", name)
	}
	delete(n.pods, name)
	if err := pod.Close(); err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		veths, err := n.ip("host", []string{"-o", "link", "show", "type", "veth"})
		if err != nil || strings.Count(veths, "\n") == len(n.pods) {
			return err
		}
	}
	return fmt.Errorf("the namespace of pod %s does not end", name)
}

// ip runs the program ip in a namespace.
func (n *node) ip(name string, args []string) (out string, err error) {
	within := n.host.Do
	if name != "host" {
		pod := n.pods[name]
		if pod == nil {
			return "", fmt.Errorf("there is no pod %s", name)
		}
		within = pod.Do
	}
	program, err := stage.LookPath("ip")
	if err != nil {
		return "", err
	}
	err = within(func() error {
		text, err := exec.Command(program, args...).CombinedOutput()
		out = string(text)
		return err
	})
	return out, err
}

func (n *node) close() {
	for _, pod := range n.pods {
		_ = pod.Close()
	}
	n.runtime.Stop()
	_ = n.host.Close()
}
