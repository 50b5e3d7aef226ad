// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// kindnetEnv names the folder with the source of kindnet's plugin, cmd/cni-kindnet in
// github.com/kubernetes-sigs/kindnet. It needs a C compiler.
const kindnetEnv = "KINDNET_CNI"

// mainPlugin is a main plugin with its network configuration, for pods of one node.
type mainPlugin struct {
	name, path, bin, conf string
	node                  string // path of the node's network namespace
}

// benchPod is a pod with a network namespace of ip netns.
type benchPod struct{ id, netns string }

// inside calls f in a network namespace. The thread ends with the call.
func inside(netns string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread stays in the namespace until it ends
		done <- func() error {
			file, err := os.Open(netns)
			if err != nil {
				return err
			}
			defer file.Close()
			if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}

// call runs the plugin once in the node's network namespace, as a runtime does.
func (p mainPlugin) call(command string, pod benchPod) error {
	return inside(p.node, func() error {
		c := exec.Command(p.path)
		c.Stdin = strings.NewReader(p.conf)
		c.Env = []string{
			"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + pod.id, "CNI_IFNAME=eth0", "CNI_PATH=" + p.bin, "CNI_NETNS=" + pod.netns,
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod.id, "PATH=" + os.Getenv("PATH"),
		}
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", p.name, command, err, out.String())
		}
		return nil
	})
}

// all makes a call for each of the pods, all at once, and returns the time it takes.
func (p mainPlugin) all(command string, pods ...benchPod) (time.Duration, error) {
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	began := time.Now()
	for i, pod := range pods {
		wg.Go(func() { errs[i] = p.call(command, pod) })
	}
	wg.Wait()
	return time.Since(began), errors.Join(errs...)
}

// links returns the number of links on the node.
func (p mainPlugin) links(tb testing.TB) (n int) {
	tb.Helper()
	err := inside(p.node, func() error {
		all, err := net.Interfaces()
		n = len(all)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// awaitRemoval waits until the node has no more than n links: a plugin that deletes them behind
// its answer must not slow the next one down.
func (p mainPlugin) awaitRemoval(tb testing.TB, n int) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); p.links(tb) > n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: %d links are left, want %d", p.name, p.links(tb), n)
		}
	}
}

// newNamespace makes a network namespace that ends with the benchmark.
func newNamespace(tb testing.TB, name string) string {
	tb.Helper()
	name = fmt.Sprintf("cadbench-%d-%s", os.Getpid(), name)
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		tb.Skipf("NOT RUN: network namespaces: ip netns add: %v: %s", err, out)
	}
	tb.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	return "/run/netns/" + name
}

// podMaker makes pods with names that do not repeat.
type podMaker struct {
	tb     testing.TB
	prefix string
	made   int
}

func (m *podMaker) pods(n int) (some []benchPod) {
	for range n {
		m.made++
		id := fmt.Sprintf("%s-%d", m.prefix, m.made)
		some = append(some, benchPod{id, newNamespace(m.tb, id)})
	}
	return some
}

// fill adds pods to the node, a few at once, and returns them.
func (m *podMaker) fill(p mainPlugin, n int) (all []benchPod) {
	m.tb.Helper()
	for len(all) < n {
		some := m.pods(min(4, n-len(all)))
		if _, err := p.all("ADD", some...); err != nil {
			m.tb.Fatal(err)
		}
		all = append(all, some...)
	}
	return all
}

// newNode makes the network namespace of a node with an uplink.
func newNode(tb testing.TB, name string) string {
	tb.Helper()
	node := newNamespace(tb, name)
	for _, line := range []string{
		"ip link set lo up", "ip link add uplink type veth peer name outside", "ip address add 192.0.2.5/24 dev uplink",
		"ip address add 2001:db8::5/64 dev uplink nodad", "ip link set uplink up", "ip link set outside up", "ip route add default via 192.0.2.1",
	} {
		out, err := exec.Command("nsenter", append([]string{"--net=" + node}, strings.Fields(line)...)...).CombinedOutput()
		if err != nil {
			tb.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	return node
}

// wiredNode is a node whose agent makes the interfaces of pods.
type wiredNode struct {
	mainPlugin
	tb      testing.TB
	command []string
	process *exec.Cmd
	ended   chan struct{}
	log     string
	run     string // the folder with the socket
}

// newWiredNode starts an agent with the data plane linux in a network namespace of its own.
func newWiredNode(tb testing.TB) *wiredNode {
	tb.Helper()
	dir, run := tempDir(tb), runDir(tb)
	agent, plugin := buildInto(tb, dir, repository, "./cmd/cadastre-agent"), buildInto(tb, dir, repository, "./cmd/cadastre-cni")
	conf := filepath.Join(dir, "contiv.conf")
	if err := os.WriteFile(conf, []byte(`
ipamConfig: {podSubnetCIDR: "10.0.0.0/11,fd00:1::/48", podSubnetOneNodePrefixLen: 16, vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",
  nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"}
cadastre: {coolDown: 0s, dataplane: linux}
`), 0o600); err != nil {
		tb.Fatal(err)
	}
	node := newNode(tb, "ours")
	n := &wiredNode{
		mainPlugin: mainPlugin{"cadastre", plugin, dir, fmt.Sprintf(
			`{"cniVersion": "1.0.0", "name": "bench", "type": "cadastre-cni", "ipam": {"socket": %q}}`, filepath.Join(run, "agent.sock")), node},
		tb: tb,
		command: []string{"nsenter", "--net=" + node, agent, "--config", conf, "--node-name", "bench",
			"--state-dir", filepath.Join(dir, "state"), "--run-dir", run},
		log: filepath.Join(dir, "agent.log"),
		run: run,
	}
	n.start()
	tb.Cleanup(func() {
		n.end(syscall.SIGTERM)
		if text, err := os.ReadFile(n.log); err == nil && tb.Failed() {
			tb.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	return n
}

func (n *wiredNode) start() {
	n.tb.Helper()
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.tb.Fatal(err)
	}
	c := exec.Command(n.command[0], n.command[1:]...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // it ends with the thread that has started it
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		defer log.Close()
		runtime.LockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait()
		}
	}()
	if err := <-started; err != nil {
		n.tb.Fatal(err)
	}
	n.process, n.ended = c, ended
}

// end sends a signal to the agent and waits for its end.
func (n *wiredNode) end(signal os.Signal) {
	_ = n.process.Process.Signal(signal)
	<-n.ended
}

// await adds a pod as soon as the agent can.
func (n *wiredNode) await(pod benchPod) {
	n.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		err := n.call("ADD", pod)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.tb.Fatal(err)
		}
	}
}

// newBridge returns bridge with host-local on a node of its own.
func newBridge(tb testing.TB) mainPlugin {
	tb.Helper()
	dir := tempDir(tb)
	const plugins = "github.com/containernetworking/plugins/plugins/"
	bridge := buildInto(tb, dir, repository, plugins+"main/bridge")
	buildInto(tb, dir, ".", plugins+"ipam/host-local")
	return mainPlugin{"bridge", bridge, dir, fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.200.0.0/16"}], [{"subnet": "fd00:9::/64"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`, filepath.Join(dir, "leases")), newNode(tb, "bridge")}
}

// newKindnet returns kindnet's plugin on a node of its own, and false without its source.
func newKindnet(tb testing.TB) (mainPlugin, bool) {
	tb.Helper()
	source := os.Getenv(kindnetEnv)
	if source == "" {
		tb.Logf("NOT RUN: kindnet's plugin: %s does not name the folder cmd/cni-kindnet of its source", kindnetEnv)
		return mainPlugin{}, false
	}
	dir := tempDir(tb)
	path := filepath.Join(dir, "cni-kindnet")
	state := filepath.Join(dir, "state") // its default is one folder of the whole machine
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.dbDir="+state, "-o", path, ".")
	c.Dir, c.Env = source, append(os.Environ(), "CGO_ENABLED=1")
	if text, err := c.CombinedOutput(); err != nil {
		tb.Fatalf("build kindnet's plugin: %v\n%s", err, text)
	}
	return mainPlugin{"kindnet", path, dir, `{"cniVersion": "0.4.0", "name": "kindnet", "type": "cni-kindnet",
		"ranges": ["10.210.0.0/16", "fd00:a::/64"]}`, newNode(tb, "kindnet")}, true
}

// buildInto builds a program into a folder.
func buildInto(tb testing.TB, dir, from, pkg string) string {
	tb.Helper()
	out := filepath.Join(dir, filepath.Base(pkg))
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
	c.Dir, c.Env = from, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := c.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", pkg, err, text)
	}
	return out
}
