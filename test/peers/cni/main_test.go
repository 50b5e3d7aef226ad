// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// burstOfPods is the number of pods of a burst.
const burstOfPods = 30

// mainPlugin is a main plugin with its network configuration, for pods of one node.
type mainPlugin struct {
	name, path, bin, conf string
	node                  string // path of the node's network namespace
}

// call runs the plugin once in the node's network namespace, as a runtime does.
func (p mainPlugin) call(command string, pod benchPod) error {
	runtime.LockOSThread() // the thread ends with the goroutine: it stays in the namespace
	file, err := os.Open(p.node)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
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
}

// timed returns how long a call for each of the pods takes, all at once.
func (p mainPlugin) timed(tb testing.TB, command string, pods ...benchPod) time.Duration {
	tb.Helper()
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	began := time.Now()
	for i, pod := range pods {
		wg.Go(func() { errs[i] = p.call(command, pod) })
	}
	wg.Wait()
	took := time.Since(began)
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
	return took
}

// benchPod is a pod with a network namespace of ip netns.
type benchPod struct{ id, netns string }

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

// within runs a program in a network namespace.
func within(tb testing.TB, netns string, args ...string) {
	tb.Helper()
	if out, err := exec.Command("nsenter", append([]string{"--net=" + netns}, args...)...).CombinedOutput(); err != nil {
		tb.Fatalf("%v: %v: %s", args, err, out)
	}
}

// newNode makes the network namespace of a node with an uplink.
func newNode(tb testing.TB, name string) string {
	node := newNamespace(tb, name)
	for _, line := range []string{
		"ip link set lo up", "ip link add uplink type veth peer name outside", "ip address add 192.0.2.5/24 dev uplink",
		"ip address add 2001:db8::5/64 dev uplink nodad", "ip link set uplink up", "ip link set outside up", "ip route add default via 192.0.2.1",
	} {
		within(tb, node, strings.Fields(line)...)
	}
	return node
}

// mainPlugins are ours with its agent, and bridge with host-local, each on a node.
func mainPlugins(tb testing.TB) []mainPlugin {
	tb.Helper()
	dir, run := tempDir(tb), runDir(tb)
	one := func(from, pkg string) string {
		out := filepath.Join(dir, filepath.Base(pkg))
		c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
		c.Dir, c.Env = from, append(os.Environ(), "CGO_ENABLED=0")
		if text, err := c.CombinedOutput(); err != nil {
			tb.Fatalf("build %s: %v\n%s", pkg, err, text)
		}
		return out
	}
	const plugins = "github.com/containernetworking/plugins/plugins/"
	agent, ours := one(repository, "./cmd/cadastre-agent"), one(repository, "./cmd/cadastre-cni")
	bridge := one(repository, plugins+"main/bridge")
	one(".", plugins+"ipam/host-local")

	node := newNode(tb, "ours")
	conf := filepath.Join(dir, "contiv.conf")
	if err := os.WriteFile(conf, []byte(`
ipamConfig: {podSubnetCIDR: "10.0.0.0/11,fd00:1::/48", podSubnetOneNodePrefixLen: 16, vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",
  nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"}
cadastre: {coolDown: 0s, dataplane: linux}
`), 0o600); err != nil {
		tb.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "agent.log"))
	if err != nil {
		tb.Fatal(err)
	}
	c := exec.Command("nsenter", "--net="+node, agent, "--config", conf, "--node-name", "bench", "--state-dir", filepath.Join(dir, "state"), "--run-dir", run)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // it ends with the thread that has started it
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait()
		}
	}()
	if err := <-started; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && tb.Failed() {
			tb.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	all := []mainPlugin{
		{"cadastre", ours, dir, fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": "cadastre-cni", "ipam": {"socket": %q}}`,
			filepath.Join(run, "agent.sock")), node},
		{"bridge", bridge, dir, fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.200.0.0/16"}], [{"subnet": "fd00:9::/64"}]],
			"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}`, filepath.Join(dir, "leases")), newNode(tb, "bridge")},
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		first := benchPod{"first", newNamespace(tb, fmt.Sprint("first", deadline.UnixNano(), time.Now().UnixNano()))}
		err := make(chan error, 1)
		go func() { err <- all[0].call("ADD", first) }()
		if e := <-err; e == nil {
			return all
		} else if time.Now().After(deadline) {
			tb.Fatal(e)
		}
	}
}

// BenchmarkMainPlugin is an ADD and a DEL of a dual-stack pod with its interface, and of
// thirty at once, by ours and by bridge with host-local in turns, with a number of other
// pods on each node. The metrics are medians in milliseconds, and ratios of them.
func BenchmarkMainPlugin(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("NOT RUN: network namespaces need root")
	}
	for _, others := range []int{0, 900} { // a bridge has 1023 ports at most
		b.Run(fmt.Sprintf("pods=%d", others), func(b *testing.B) {
			all := mainPlugins(b)
			made := 0
			pods := func(n int) (some []benchPod) {
				for range n {
					made++
					id := fmt.Sprintf("pod%d", made)
					some = append(some, benchPod{id, newNamespace(b, fmt.Sprint(others, "-", id))})
				}
				return some
			}
			for n := 0; n < others; n += 10 {
				for _, p := range all {
					p.timed(b, "ADD", pods(10)...)
				}
			}
			took := map[string][]float64{}
			note := func(p mainPlugin, what string, d time.Duration) {
				took[p.name+"-"+what] = append(took[p.name+"-"+what], float64(d)/float64(time.Millisecond))
			}
			b.ResetTimer()
			for range b.N {
				for _, p := range all {
					pod, burst := pods(1), pods(burstOfPods)
					note(p, "add", p.timed(b, "ADD", pod...))
					note(p, "del", p.timed(b, "DEL", pod...))
					note(p, "add30", p.timed(b, "ADD", burst...))
					note(p, "del30", p.timed(b, "DEL", burst...))
				}
			}
			b.StopTimer()
			median := func(name string) float64 {
				slices.Sort(took[name])
				return took[name][len(took[name])/2]
			}
			for _, what := range []string{"add", "del", "add30", "del30"} {
				for _, p := range all {
					b.ReportMetric(median(p.name+"-"+what), p.name+"-"+what+"-ms")
				}
				b.ReportMetric(median("cadastre-"+what)/median("bridge-"+what), what+"-ratio")
			}
		})
	}
}
