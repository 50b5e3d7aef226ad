// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package library tests the address manager as a library: a program in a module of its
// own, with a real API server and the operator's manager.
package library

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
)

const (
	node     = "lib-1"
	instance = "i-0lib1"
	patience = 90 * time.Second
	pace     = 50 * time.Millisecond
)

// apiServer starts a real one with the definitions of k8s/crd.
func apiServer(t *testing.T) (config *rest.Config, kubeconfig string) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: there is no kube-apiserver")
	}
	g := NewWithT(t)
	env := &envtest.Environment{CRDDirectoryPaths: []string{"../../../k8s/crd"}, ErrorIfCRDPathMissing: true}
	config, err := env.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = env.Stop() })
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(kubeconfig, env.KubeConfig, 0o600)).To(Succeed())
	config.QPS = -1
	return config, kubeconfig
}

// build compiles the program in a module of its own, which cannot import what is internal
// to this one.
func build(t *testing.T) string {
	g, dir := NewWithT(t), t.TempDir()
	root, err := filepath.Abs("../../..")
	g.Expect(err).NotTo(HaveOccurred())
	copied := func(from, to string, change func(string) string) {
		data, err := os.ReadFile(from)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(filepath.Join(dir, to), []byte(change(string(data))), 0o600)).To(Succeed())
	}
	as := func(s string) string { return s }
	copied("testdata/program/main.go", "main.go", as)
	copied(filepath.Join(root, "go.sum"), "go.sum", as)
	copied(filepath.Join(root, "go.mod"), "go.mod", func(s string) string {
		s = strings.Replace(s, "module github.com/cadastre/cadastre", "module example.org/program", 1)
		return s + "\nrequire github.com/cadastre/cadastre v0.0.0\n\nreplace github.com/cadastre/cadastre => " + root + "\n"
	})
	program := filepath.Join(dir, "program")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", program, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	return program
}

// program is a running one.
type program struct {
	g   Gomega
	in  io.WriteCloser
	out *bufio.Scanner
}

func start(t *testing.T, path string, args ...string) *program {
	p := &program{g: NewWithT(t)}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	var err error
	p.in, err = cmd.StdinPipe()
	p.g.Expect(err).NotTo(HaveOccurred())
	out, err := cmd.StdoutPipe()
	p.g.Expect(err).NotTo(HaveOccurred())
	p.out = bufio.NewScanner(out)
	p.g.Expect(cmd.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = p.in.Close() // the program closes its source, which waits for its goroutines
		p.g.Expect(cmd.Wait()).To(Succeed())
	})
	return p
}

// ask sends one command and returns the words of the answer.
func (p *program) ask(command string) []string {
	p.send(command)
	return p.answer()
}

func (p *program) send(command string) {
	_, err := fmt.Fprintln(p.in, command)
	p.g.Expect(err).NotTo(HaveOccurred())
}

func (p *program) answer() []string {
	p.g.Expect(p.out.Scan()).To(BeTrue(), "%v", p.out.Err())
	return strings.Fields(p.out.Text())
}

// add allocates an address, as soon as the node has one.
func (p *program) add(owner string) (answer []string) {
	p.g.Eventually(func() string {
		answer = p.ask("add " + owner)
		return answer[0]
	}, patience, pace).Should(Equal("ok"), func() string { return strings.Join(answer, " ") })
	return answer
}

// operate runs the operator's manager over a cloud.
func operate(t *testing.T, server dynamic.Interface, cloud *memcloud.Cloud) *netresource.Client {
	ctx, cancel := context.WithCancel(t.Context())
	client, log := netresource.NewClient(server, 0), slog.New(slog.DiscardHandler)
	m, err := netresource.New(netresource.Config{
		Provider: cloudpool.New(cloudpool.Config{Cloud: cloud, Pre: 4, Consistency: time.Second, Log: log}), API: client,
		ReleaseExcess: true, ReleaseDelay: 300 * time.Millisecond, ResyncInterval: time.Second, Consistency: time.Second, Log: log,
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var work sync.WaitGroup
	work.Go(func() {
		if err := client.Run(ctx, m); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); work.Wait() })
	return client
}

func TestAProgramOfAnotherModule(t *testing.T) {
	config, kubeconfig := apiServer(t)
	path, g := build(t), NewWithT(t)
	server, err := dynamic.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	cloud := memcloud.New(memcloud.Config{
		Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/24")},
		Interfaces: 3, PerInterface: 8, Lag: 100 * time.Millisecond,
	})
	cloud.AddInstance(instance, "subnet-a")
	client := operate(t, server, cloud)
	p := start(t, path, kubeconfig, node)
	p.send("add default/early") // it starts when its Node has addresses
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{ProviderID: "mem:///zone-a/" + instance}}
	_, err = kube.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	g.Expect(p.answer()[0]).To(Equal("ok"))
	g.Expect(p.ask("release default/early")).To(Equal([]string{"ok"}))
	held := map[string]string{} // owner of each address
	for i := range 12 {
		owner := fmt.Sprint("default/pod-", i)
		a := p.add(owner)
		g.Expect(held).NotTo(HaveKey(a[1]))
		held[a[1]] = owner
		set, err := client.Get(node)
		g.Expect(err).NotTo(HaveOccurred())
		iface := set.Status.Interfaces[a[2]]
		g.Expect(a[3:]).To(Equal([]string{iface.MAC, iface.Ranges[0].Gateway, string(iface.Ranges[0].CIDR)}))
	}
	g.Expect(p.ask("vpc")).To(Equal([]string{"ok", "[10.0.0.0/24]"}))
	g.Eventually(reported(client, held, 16), patience, pace).Should(Succeed())
	set, err := client.Get(node)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(set.Spec.InstanceID).To(Equal(instance))

	for a, owner := range held {
		if len(held) > 3 {
			g.Expect(p.ask("release " + owner)).To(Equal([]string{"ok"}))
			delete(held, a)
		}
	}
	g.Eventually(reported(client, held, 7), patience, pace).Should(Succeed(), "the handshake takes back what is too much")
	g.Eventually(func() int { return len(cloud.Units(instance)) }, patience, pace).Should(Equal(7))
	for a := range held { // a held address is among those that stayed
		g.Expect(cloud.Units(instance)).To(ContainElement(netip.MustParsePrefix(a + "/32")))
	}
	g.Expect(p.ask("metrics")).To(ContainElements("cce_ipam_events_total", "cilium_ipam_events_total", "cce_kubernetes_events_total"))
}

// reported returns a check of the object: as many addresses in the pool, those that are
// held in the use, and none on its way back.
func reported(client *netresource.Client, held map[string]string, pool int) func() error {
	return func() error {
		set, err := client.Get(node)
		if err != nil {
			return err
		}
		used := map[string]string{}
		for a, x := range set.Status.IPAM.Used {
			if x.Resource == "" || x.SubnetID != "subnet-a" {
				return fmt.Errorf("%s has interface %q and subnet %q", a, x.Resource, x.SubnetID)
			}
			used[a] = x.Owner
		}
		if len(set.Spec.IPAM.Pool) != pool || len(set.Status.IPAM.ReleaseIPs) > 0 || fmt.Sprint(used) != fmt.Sprint(held) {
			return fmt.Errorf("pool %d, want %d; on their way back %v; used %v, want %v",
				len(set.Spec.IPAM.Pool), pool, set.Status.IPAM.ReleaseIPs, used, held)
		}
		return nil
	}
}
