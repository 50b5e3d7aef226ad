// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

const (
	patience = time.Minute
	pace     = 200 * time.Millisecond
)

// cluster is a real API server, an operator with the reflector, one with NetResourceSets,
// and two agents that follow them. It also has one agent with a data plane in a network
// namespace.
type cluster struct {
	t       *testing.T
	g       *WithT
	dir     string
	bin     string
	root    string
	env     *envtest.Environment
	targets map[string][]string // addresses of listeners, by job
}

// startCluster skips the test if the machine lacks what the cluster needs.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	g := NewWithT(t)
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Skip("NOT RUN: KUBEBUILDER_ASSETS is not set: make ci SUITE=e2e-metrics builds a control plane and sets it")
	}
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: network namespaces cannot be made: %v", err)
	}
	root, err := filepath.Abs("../../..")
	g.Expect(err).NotTo(HaveOccurred())
	dir, err := os.MkdirTemp("", "mon") // short, as the path of a socket is
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &cluster{t: t, g: g, dir: dir, bin: filepath.Join(dir, "bin"), root: root, targets: map[string][]string{}}
	g.Expect(stage.Build(t.Context(), root, c.bin, stage.OurPrograms)).To(Succeed())
	c.startPlane(assets)
	c.startOperators()
	c.startNode("n1", fmt.Sprintf(`
ipamConfig: {useExternalIPAM: true, podSubnetCIDR: 10.64.0.0/11}
cadastre:
  kvdb: {type: etcd, endpoints: ["%s"], prefix: /cadastre-monitoring/}
  docker: {enabled: true, socket: %s}
`, c.env.ControlPlane.Etcd.URL, filepath.Join(dir, "docker.sock")))
	c.startNode("n2", fmt.Sprintf(`
cadastre:
  podBlocks: netresource
  netResource: {preAllocate: 4}
  kvdb: {type: kubernetes, kubeconfig: %s}
`, c.path("kubeconfig")))
	return c
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// startPlane starts etcd and the API server, and creates definitions, nodes and a pool.
func (c *cluster) startPlane(assets string) {
	klog.SetOutput(io.Discard)
	log.SetLogger(klog.Background())
	c.env = &envtest.Environment{
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        []string{filepath.Join(c.root, "k8s/crd")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 90 * time.Second,
		ControlPlaneStopTimeout:  90 * time.Second,
	}
	_, err := c.env.Start()
	c.g.Expect(err).NotTo(HaveOccurred())
	c.t.Cleanup(func() { c.g.Expect(c.env.Stop()).To(Succeed()) })
	c.write("kubeconfig", string(c.env.KubeConfig))
	c.write("objects.yaml", `
apiVersion: v1
kind: Node
metadata: {name: n1}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
---
apiVersion: cadastre.dev/v1alpha1
kind: AddressPool
metadata: {name: pods}
spec: {cidrs: [{cidr: 10.1.0.0/16, blockPrefixLen: 28}]}
`)
	out, err := exec.CommandContext(c.t.Context(), filepath.Join(assets, "kubectl"),
		"--kubeconfig="+c.path("kubeconfig"), "--cache-dir="+c.path("cache"), "create", "-f", c.path("objects.yaml")).CombinedOutput()
	c.g.Expect(err).NotTo(HaveOccurred(), string(out))
}

func (c *cluster) write(name, text string) {
	c.g.Expect(os.WriteFile(c.path(name), []byte(text), 0o600)).To(Succeed())
}

// address returns an address of the loopback interface without a listener, and makes it a
// target of a job.
func (c *cluster) address(job string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	c.g.Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	c.targets[job] = append(c.targets[job], l.Addr().String())
	return l.Addr().String()
}

// start runs a program until the test ends.
func (c *cluster) start(name string, within func(func() error) error, cmd *exec.Cmd) *stage.Process {
	file, err := os.Create(c.path(name + ".log"))
	c.g.Expect(err).NotTo(HaveOccurred())
	defer file.Close() // the process has its own
	cmd.Stdout, cmd.Stderr = file, file
	p, err := stage.Start(cmd, within)
	c.g.Expect(err).NotTo(HaveOccurred(), name)
	c.t.Cleanup(func() {
		_ = p.Kill() // it may have ended
		if text, _ := os.ReadFile(c.path(name + ".log")); c.t.Failed() {
			c.t.Logf("the log of %s ends with:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
	return p
}

func here(f func() error) error { return f() }

func (c *cluster) startOperators() {
	lead := func(lease string) []string {
		return []string{
			"--kubeconfig=" + c.path("kubeconfig"), "--bind-address=" + c.address("cadastre-operator"), "--leader-elect-resource-name=" + lease,
			"--leader-elect-resource-namespace=default", "--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=500ms",
		}
	}
	program := filepath.Join(c.bin, "cadastre-operator")
	c.start("operator", here, exec.Command(program, append(lead("cidrs"), "--allocate-node-cidrs", "--cluster-cidr=10.64.0.0/16", "--node-cidr-mask-size=28",
		"--kvdb-endpoints="+c.env.ControlPlane.Etcd.URL.String(), "--kvdb-prefix=/cadastre-monitoring/", "--audit-interval=1s")...))
	c.start("operator-sets", here, exec.Command(program, append(lead("sets"), "--controllers=netresource", "--netresource-provider=clusterpool", "--netresource-resync-interval=1s")...))
}

// config adds the keys that are the same for all agents to contiv.conf, whose last section is
// cadastre.
func (c *cluster) config(name, conf, listen string) string {
	c.write(name+".conf", conf+fmt.Sprintf(`
  coolDown: 1s
  nodeIDs: {quarantine: 0s}
  metrics: {enabled: true, listen: "%s"}
  witnesses: {interval: 1s, runtime: none, engine: none, netns: [%s]}
`, listen, c.dir))
	return c.path(name + ".conf")
}

// node is an agent.
type node struct{ stage.Agent }

func (c *cluster) agent(name string) node {
	c.g.Expect(os.MkdirAll(c.path(name), 0o700)).To(Succeed())
	return node{stage.Agent{Place: stage.Place{Root: c.root, Bin: c.bin, Dir: c.path(name)}, Node: name}}
}

// startNode starts an agent without a data plane, gives pods addresses again and again until
// the test ends, and has it refuse one.
func (c *cluster) startNode(name, conf string) {
	n := c.agent(name)
	n.Config = c.config(name, strings.TrimRight(conf, "\n"), c.address("cadastre-agent"))
	c.start(name, here, n.Command(nil))
	c.g.Eventually(func() (err error) {
		_, err = n.Get(c.t.Context(), "/readyz")
		return err
	}, patience, pace).Should(Succeed(), name)
	c.repeat(func(i int) {
		pod := fmt.Sprintf("pod-%d", i%5)
		if i%2 == 0 {
			c.g.Expect(n.pod("ADD", pod, "")).To(BeZero(), "ADD on %s", name)
			return
		}
		c.g.Expect(n.pod("DEL", fmt.Sprintf("pod-%d", (i-1)%5), "")).To(BeZero(), "DEL on %s", name)
		c.g.Expect(n.pod("ADD", pod, "no-such-pool")).NotTo(BeZero(), "a pool that does not exist")
	})
}

// repeat calls f again and again until the test ends.
func (c *cluster) repeat(f func(i int)) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pace):
				f(i)
			}
		}
	})
	c.t.Cleanup(func() {
		cancel()
		group.Wait()
	})
}

// pod sends a CNI command to the agent and returns the CNI code of its answer, 1000 if it has
// none.
func (n node) pod(command, name, pool string) uint {
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.Socket())
	}}}
	_, err := cniclient.Ask(context.Background(), client.Do, cni.Request{
		Command: command, Network: "net", ContainerID: "c-" + name, IfName: "eth0", Netns: "/run/netns/" + name, Pool: pool,
		Pod: cni.Pod{Namespace: "default", Name: name},
	})
	if refusal, ok := errors.AsType[*cni.Error](err); ok {
		return refusal.Code
	}
	if err != nil {
		return 1000
	}
	return 0
}

// startDemo starts the agent of a single machine with a data plane in a network namespace,
// and pods with wires. A proxy makes its metrics a target.
func (c *cluster) startDemo() {
	ns, err := netlab.New()
	c.g.Expect(err).NotTo(HaveOccurred())
	c.t.Cleanup(func() { _ = ns.Close() })
	n := c.agent("demo")
	n.Config = c.config("demo", "cadastre:\n  dataplane: linux\n  transport: none", "127.0.0.1:10262")
	p := c.start("demo", ns.Do, n.Command(nil))
	c.g.Expect(n.Await(c.t.Context(), p)).To(Succeed())
	c.forward(ns, "127.0.0.1:10262")
	network, err := stage.NewNetwork(n.Agent, stage.WayRoot, "")
	c.g.Expect(err).NotTo(HaveOccurred())
	pod, err := stage.NewPod("wired", stage.WayRoot, c.dir)
	c.g.Expect(err).NotTo(HaveOccurred())
	c.t.Cleanup(func() { _ = pod.Close() })
	c.repeat(func(i int) {
		do := network.Add
		if i%2 == 1 {
			do = network.Del
		}
		c.g.Expect(ns.Do(func() error { return do(context.Background(), pod) })).To(Succeed())
	})
}

// forward accepts connections here, as a target of the agents, and passes them on to an
// address of a namespace.
func (c *cluster) forward(ns *netlab.Namespace, to string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	c.g.Expect(err).NotTo(HaveOccurred())
	c.targets["cadastre-agent"] = append(c.targets["cadastre-agent"], l.Addr().String())
	var group sync.WaitGroup
	group.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			group.Go(func() {
				defer in.Close()
				var out net.Conn
				if err := ns.Do(func() (err error) { out, err = net.Dial("tcp", to); return err }); err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in); _ = out.Close() }() // until either end closes
				_, _ = io.Copy(in, out)
			})
		}
	})
	c.t.Cleanup(func() { _ = l.Close() })
}
