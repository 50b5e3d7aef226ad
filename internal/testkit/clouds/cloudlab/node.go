// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Node is a machine of the cloud with an agent.
type Node struct {
	stage.Agent
	Machine string
	l       *Lab
	ns      *netlab.Namespace
	flags   []string

	mu      sync.Mutex // held while the agent is replaced
	process *stage.Process
}

// NewNode makes the Node object and the namespace of a machine, waits until the hypervisor
// has plugged its first interface, and starts the agent. conf is contiv.conf without the
// keys of section cadastre that are the same on all nodes; its last section is cadastre,
// indented by two spaces.
func (l *Lab) NewNode(name, machine, providerID string, own []netip.Addr, conf string, flags ...string) *Node {
	l.t.Helper()
	dir := filepath.Join(l.dir, name)
	l.must(os.Mkdir(dir, 0o700))
	n := &Node{
		Agent: stage.Agent{
			Place:  stage.Place{Root: l.dir, Bin: l.bin, Dir: dir},
			Config: filepath.Join(dir, "contiv.conf"),
			Node:   name,
		},
		Machine: machine,
		l:       l,
		ns:      l.namespace(),
		flags:   flags,
	}
	l.CreateNode(name, providerID, own)
	l.hypervisor.mu.Lock()
	l.hypervisor.machines[machine] = n.ns
	l.hypervisor.mu.Unlock()
	l.Eventually(
		func() bool { return l.hypervisor.has(machine) },
		Patience,
		Pace,
	).Should(
		BeTrue(),
		"%s has no interface",
		machine,
	)
	l.reach(n.ns, append([]int{l.plane.port}, l.config.Ports...)...)
	conf += fmt.Sprintf(`  kvdb: {type: kubernetes, kubeconfig: %s}
  cni: {confDir: %s, binDir: %s}
  dataplane: linux
  transport: none
  nodeIDs: {quarantine: 0s}
  witnesses: {runtime: none, engine: none}
`, l.agentAccount(name), filepath.Join(dir, "net.d"), l.bin)
	l.must(os.WriteFile(n.Config, []byte(conf), 0o600))
	l.nodes = append(l.nodes, n)
	n.Start()
	l.t.Cleanup(func() {
		_ = n.process.Kill() // it may have ended
		if l.t.Failed() {
			l.t.Logf("the log of %s ends with:\n%s", name, tail(n.Log(), 6000))
		}
	})
	return n
}

// CreateNode creates a Node object.
func (l *Lab) CreateNode(name, providerID string, own []netip.Addr) {
	l.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	node, err := l.Client.CoreV1().Nodes().Create(l.t.Context(), node, metav1.CreateOptions{})
	l.must(err)
	for _, a := range own {
		node.Status.Addresses = append(
			node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()},
		)
	}
	_, err = l.Client.CoreV1().Nodes().UpdateStatus(l.t.Context(), node, metav1.UpdateOptions{})
	l.must(err)
}

// Start starts the agent, and waits until it serves.
func (n *Node) Start() {
	n.l.t.Helper()
	args := append([]string{
		"--config", n.Config,
		"--node-name", n.Node,
		"--state-dir", n.State(),
		"--run-dir", filepath.Dir(n.Socket()),
	}, n.flags...)
	log, err := os.OpenFile(n.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	n.l.must(err)
	cmd := exec.Command(filepath.Join(n.l.bin, "cadastre-agent-"+n.l.config.Cloud), args...)
	cmd.Stdout, cmd.Stderr = log, log
	process, err := stage.Start(cmd, n.ns.Do)
	n.l.must(err)
	n.l.must(log.Close()) // the process has its own
	n.mu.Lock()
	n.process = process
	n.mu.Unlock()
	n.l.Eventually(func() error {
		select {
		case <-process.Done():
			return StopTrying(process.Ended().Error())
		default:
		}
		if _, err := n.Get(n.l.t.Context(), localapi.PathReadyz); err != nil {
			return err
		}
		_, err := os.Stat(n.listPath())
		return err
	}, Patience, Pace).Should(Succeed())
}

// Kill ends the agent with SIGKILL.
func (n *Node) Kill() {
	n.l.t.Helper()
	n.l.must(n.process.Kill())
}

func (n *Node) listPath() string { return filepath.Join(n.Dir, "net.d", "10-cadastre.conflist") }

// Show returns what a program of the machine prints in the node's namespace.
func (n *Node) Show(args ...string) string {
	var out []byte
	err := n.ns.Do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		return err.Error()
	}
	return string(out)
}
