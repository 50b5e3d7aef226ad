// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

// assetsVariable names the folder with etcd, kube-apiserver and kubectl.
const assetsVariable = "KUBEBUILDER_ASSETS"

// patience bounds the start of a program.
const patience = 2 * time.Minute

// plane is an API server with its etcd, which is the cluster store as well.
type plane struct {
	assets, kubeconfig string
	etcd               string
	bin                string // of our programs
}

// startPlane starts the API server, and fills the cluster store with 1000 nodes. It returns
// nil if the machine lacks the programs.
func startPlane(t *testing.T, g Gomega, bin string) *plane {
	t.Helper()
	assets := os.Getenv(assetsVariable)
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); assets == "" || err != nil {
		t.Logf("NOT RUN: %s names no folder with a kube-apiserver: the operator's page is not tested; make ci SUITE=e2e-page builds it", assetsVariable)
		return nil
	}
	quiet := slog.New(slog.DiscardHandler)
	klog.SetSlogLogger(quiet)
	log.SetLogger(klog.Background())
	env := &envtest.Environment{ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience, BinaryAssetsDirectory: assets}
	_, err := env.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(env.Stop()).To(Succeed()) })
	p := &plane{assets, filepath.Join(t.TempDir(), "kubeconfig"), env.ControlPlane.Etcd.URL.String(), bin}
	g.Expect(os.WriteFile(p.kubeconfig, env.KubeConfig, 0o600)).To(Succeed())
	p.fill(t.Context(), g)
	return p
}

// kubectl runs kubectl with a document as its input.
func (p *plane) kubectl(g Gomega, input string, args ...string) {
	cmd := exec.Command(filepath.Join(p.assets, "kubectl"), append([]string{"--kubeconfig=" + p.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
}

// fill writes two pools, 1000 nodes with 250 leases each, of which the last 20 do not
// report their blocks, and two claims that contradict each other; and a Pod.
func (p *plane) fill(ctx context.Context, g Gomega) {
	store, err := etcd.Open(etcd.Config{Endpoints: []string{p.etcd}, Prefix: "/cadastre/"})
	g.Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	var ops []kvdb.Op
	flush := func() {
		_, err := store.Txn(ctx, nil, ops)
		g.Expect(err).NotTo(HaveOccurred())
		ops = nil
	}
	put := func(key string, m proto.Message) {
		value, err := proto.Marshal(m)
		g.Expect(err).NotTo(HaveOccurred())
		if ops = append(ops, kvdb.Put(key, value)); len(ops) == 100 {
			flush()
		}
	}
	put(kv.PoolKey("default"), &kv.Pool{Name: "default", Network: "default", Generation: 1, Ranges: []*kv.PoolRange{
		{Cidr: "10.0.0.0/14", OneNodePrefixLen: 24}, {Cidr: "fd00::/108", OneNodePrefixLen: 120},
	}})
	put(kv.PoolKey("blue"), &kv.Pool{Name: "blue", Network: "blue", Generation: 1, Ranges: []*kv.PoolRange{
		{Cidr: "10.16.0.0/14", OneNodePrefixLen: 24},
	}})
	for id := uint32(1); id <= 1000; id++ {
		name, instance := fmt.Sprintf("worker-%04d", id), fmt.Sprint(id)
		put(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: instance, Generation: 1})
		v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(id / 256), byte(id), 0}), 24).String()
		use := &kv.PoolUse{Pool: "default", Generation: 1, Open: true, Leases: 250}
		if id <= 980 {
			leases := uint64(250 - id%200)
			use.Blocks = []*kv.BlockUse{
				{Prefix: v4, Leases: leases}, {Prefix: fmt.Sprintf("fd00::%x:%x/120", id>>8, id<<8&0xffff), Leases: 250 - leases},
			}
		}
		put(kv.BeatKey(id), &kv.NodeBeat{
			Id: id, Instance: instance, At: time.Now().UnixNano(), NodeName: name, Pools: []*kv.PoolUse{use},
		})
	}
	for id := uint32(7); id <= 8; id++ {
		c := &kv.PrefixClaim{
			Network: "default", Prefix: "10.8.0.0/24", Node: fmt.Sprintf("worker-%04d", id), NodeId: id, Instance: fmt.Sprint(id),
			Held: true, Since: time.Now().UnixNano(),
		}
		put(kv.PrefixClaimKey(c.Network, netip.MustParsePrefix(c.Prefix), c.Node), c)
	}
	flush()
	p.kubectl(g, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`, "apply", "-f", "-")
	p.kubectl(g, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default","namespace":"shop"}}`, "apply", "-f", "-")
	p.kubectl(g, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-1","namespace":"shop"},
		"spec":{"nodeName":"worker-0005","automountServiceAccountToken":false,"containers":[{"name":"c","image":"x"}]}}`, "apply", "-f", "-")
	p.kubectl(g, "", "-n", "shop", "patch", "pod", "web-1", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","podIP":"10.0.5.9","podIPs":[{"ip":"10.0.5.9"}],"containerStatuses":[{"name":"c","image":"x",
		"imageID":"x","ready":true,"restartCount":0,"containerID":"containerd://c0ffee0123456789"}]}}`)
}

// startOperator runs an operator, and returns the address of its listener.
func (p *plane) startOperator(t *testing.T, g Gomega, more ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	g.Expect(err).NotTo(HaveOccurred())
	address := l.Addr().String()
	g.Expect(l.Close()).To(Succeed())
	cmd := exec.Command(filepath.Join(p.bin, "cadastre-operator"), append([]string{
		"--kubeconfig=" + p.kubeconfig, "--kvdb-endpoints=" + p.etcd, "--bind-address=" + address, "--audit-interval=1s",
		"--allocate-node-cidrs", "--cluster-cidr=10.64.0.0/23", "--leader-elect-retry-period=200ms",
	}, more...)...)
	out, err := os.Create(filepath.Join(t.TempDir(), "operator.log"))
	g.Expect(err).NotTo(HaveOccurred())
	cmd.Stdout, cmd.Stderr = out, out
	process, err := stage.Start(cmd, func(f func() error) error { return f() })
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(process.Halt(time.Minute)).To(Succeed())
		if text, err := os.ReadFile(out.Name()); t.Failed() && err == nil {
			t.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	return address
}

// pageOfOperator starts an operator and waits until it leads and has compared.
func (p *plane) pageOfOperator(t *testing.T, g Gomega) string {
	address := p.startOperator(t, g)
	ask := func(path string) func() string {
		return func() string {
			r, err := http.Get("http://" + address + path)
			if err != nil {
				return err.Error()
			}
			defer r.Body.Close()
			body, _ := io.ReadAll(r.Body)
			return string(body)
		}
	}
	g.Eventually(ask("/v1/status"), patience).Should(ContainSubstring(`"leading":true,"ready":true`))
	g.Eventually(ask("/v1/map/findings"), patience).Should(ContainSubstring("10.8.0.0/24"))
	return "http://" + address + "/page/"
}
