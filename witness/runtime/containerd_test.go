// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/cadastre/cadastre/internal/testkit/engines/containerd"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/runtime"
)

// patience is the longest time that a test waits for an event, pace the time between two looks.
const patience, pace = time.Minute, 20 * time.Millisecond

// realRuntime is a containerd with a CNI plugin that gives each pod 10.1.5.7, and during
// its ADD waits for a file.
type realRuntime struct {
	*containerd.Server
	g      *WithT
	dir    string
	client cri.RuntimeServiceClient
}

func startContainerd(t *testing.T) *realRuntime {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: containerd needs root")
	}
	busybox, err := containerd.StaticBusybox()
	if err != nil {
		t.Skipf("NOT RUN: there is no static busybox for an image (apt-get install busybox-static): %v", err)
	}
	g := NewWithT(t)
	dir := filepath.Dir(socket(t, "x"))
	s, err := containerd.New(dir)
	g.Expect(err).NotTo(HaveOccurred())
	if err := s.Start(); err != nil {
		t.Skipf("NOT RUN: this machine has no containerd (apt-get install containerd): %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Log())
		}
		g.Expect(s.Stop()).To(Succeed())
	})
	const plugin = `#!/bin/sh
[ "$CNI_COMMAND" != VERSION ] || { echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'; exit; }
[ "$CNI_COMMAND" = ADD ] || exit 0
if [ "${0##*/}" = test ]; then
	echo "$CNI_CONTAINERID" > DIR/adding.new; mv DIR/adding.new DIR/adding
	while [ ! -e DIR/go ]; do sleep 0.02; done
fi
echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"10.1.5.7/24","interface":0}]}'
`
	for _, name := range []string{"test", "loopback"} {
		path := filepath.Join(s.Plugins(), name)
		g.Expect(os.WriteFile(path, []byte(strings.ReplaceAll(plugin, "DIR", dir)), 0o700)).To(Succeed())
	}
	list := `{"cniVersion":"1.0.0","name":"test","plugins":[{"type":"test"}]}`
	g.Expect(os.WriteFile(filepath.Join(s.Networks(), "10-test.conflist"), []byte(list), 0o600)).To(Succeed())
	pause := containerd.Image{
		Names:      []string{containerd.Pause},
		Programs:   map[string]string{"bin/busybox": busybox},
		Entrypoint: []string{"/bin/busybox"},
		Arguments:  []string{"sleep", "1000000"},
	}
	g.Eventually(s.Import, patience, pace).WithArguments(t.Context(), pause).Should(Succeed())
	conn, err := grpc.NewClient("unix://"+s.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	g.Expect(err).NotTo(HaveOccurred())
	r := &realRuntime{Server: s, g: g, dir: dir, client: cri.NewRuntimeServiceClient(conn)}
	t.Cleanup(func() {
		r.removeAll(context.Background())
		_ = conn.Close()
	})
	return r
}

// removeAll removes the sandboxes that a failed test has left: they would outlive containerd.
func (r *realRuntime) removeAll(ctx context.Context) {
	list, err := r.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	r.g.Expect(err).NotTo(HaveOccurred())
	for _, s := range list.GetItems() {
		r.remove(ctx, s.GetId())
	}
}

// run makes a sandbox and returns its ID.
func (r *realRuntime) run(ctx context.Context, name string, network cri.NamespaceMode) (id string, err error) {
	a, err := r.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: network},
		}},
	}})
	return a.GetPodSandboxId(), err
}

func (r *realRuntime) stop(ctx context.Context, id string) {
	_, err := r.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	r.g.Expect(err).NotTo(HaveOccurred())
}

func (r *realRuntime) remove(ctx context.Context, id string) {
	r.stop(ctx, id)
	_, err := r.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	r.g.Expect(err).NotTo(HaveOccurred())
}

// TestContainerd follows the sandboxes of a real containerd from before their ADD to
// their removal.
func TestContainerd(t *testing.T) {
	c := startContainerd(t)
	g := c.g
	r := open(t, runtime.Options{Endpoint: "unix://" + c.Socket(), Now: time.Now})
	read := func() *witness.RuntimeView {
		t.Helper()
		v, err := r.ReadDetailed(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return v
	}
	g.Eventually(func() error { _, err := r.Read(t.Context()); return err }, patience, pace).Should(Succeed())
	g.Expect(read().Name).To(Equal("containerd"))
	g.Expect(read().Version).NotTo(BeEmpty())

	// During its ADD a sandbox is not listed: a lease is older than its sandbox.
	type answer struct {
		id  string
		err error
	}
	web := make(chan answer, 1)
	go func() {
		id, err := c.run(context.Background(), "web", cri.NamespaceMode_POD)
		web <- answer{id, err}
	}()
	adding := filepath.Join(c.dir, "adding")
	g.Eventually(adding, patience, pace).Should(BeAnExistingFile())
	g.Expect(read().Sandboxes).To(BeEmpty(), "containerd has begun to list sandboxes before their ADD returns: the package comment says otherwise")
	key, err := os.ReadFile(adding)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(c.dir, "go"), nil, 0o600)).To(Succeed())
	first := <-web
	g.Expect(first.err).NotTo(HaveOccurred())
	g.Expect(first.id+"\n").To(Equal(string(key)), "the ContainerID of CNI is the ID of the sandbox")

	host, err := c.run(t.Context(), "host", cri.NamespaceMode_NODE)
	g.Expect(err).NotTo(HaveOccurred())
	v := read()
	g.Expect(v.Sandboxes).To(HaveLen(2))
	s := v.Find(first.id)
	g.Expect(s).To(HaveValue(And(HaveField("Name", "web"), HaveField("Namespace", "default"), HaveField("UID", "uid-web"),
		HaveField("Ready", true), HaveField("HostNet", false), HaveField("Addrs", []netip.Addr{netip.MustParseAddr("10.1.5.7")}))))
	g.Expect(s.NetNS).To(HavePrefix(c.dir + "/state/"))
	g.Expect(s.Created).To(BeTemporally("<=", v.Taken))
	g.Expect(v.Find(host)).To(HaveValue(And(HaveField("HostNet", true), HaveField("NetNS", ""), HaveField("Addrs", BeEmpty()))))
	c.remove(t.Context(), host)

	// A restart: missing while it is away, present with the same sandboxes, and Since says it.
	since := read().Since
	g.Expect(c.Stop()).To(Succeed())
	_, err = r.Read(t.Context())
	g.Expect(err).To(HaveOccurred())
	g.Expect(c.Start()).To(Succeed())
	g.Eventually(func() error { _, err := r.Read(t.Context()); return err }, patience, pace).Should(Succeed())
	after := read()
	g.Expect(after.Sandboxes).To(HaveExactElements(HaveField("ID", first.id)))
	g.Expect(after.Since).To(BeTemporally(">", since))

	// The runtime lists a stopped sandbox until it is removed.
	netNS := s.NetNS
	c.stop(t.Context(), first.id)
	s = read().Find(first.id)
	g.Expect(s).To(HaveValue(And(HaveField("Ready", false), HaveField("NetNS", netNS), HaveField("Addrs", BeEmpty()))))
	c.remove(t.Context(), first.id)
	g.Expect(read().Sandboxes).To(BeEmpty())
}
