// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// uptime returns a clock that moves on by a second with each look.
func uptime() func() time.Time {
	now := time.Unix(1_700_000_000, 0)
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

func open(t *testing.T, opt runtime.Options) *runtime.Reader {
	t.Helper()
	if opt.Now == nil {
		opt.Now = uptime()
	}
	r := runtime.New(opt)
	t.Cleanup(r.Close)
	return r
}

// serve starts a runtime at a socket of its own.
func serve(t *testing.T, path string) *critest.Server {
	t.Helper()
	s := critest.New(path)
	NewWithT(t).Expect(s.Start()).To(Succeed())
	t.Cleanup(s.Stop)
	return s
}

func socket(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cri-") // short enough for a socket's address
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, name)
}

func sandbox(n int) critest.Sandbox {
	return critest.Sandbox{
		ID:        fmt.Sprintf("sandbox-%d", n),
		Namespace: "default",
		Name:      fmt.Sprintf("web-%d", n),
		UID:       fmt.Sprintf("uid-%d", n),
		Created:   time.Unix(1_600_000_000+int64(n), 0),
		NetNS:     fmt.Sprintf("/var/run/netns/cni-%d", n),
		Addrs:     []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 5, byte(n)})},
	}
}

func TestRead(t *testing.T) {
	g := NewWithT(t)
	path := socket(t, "c.sock")
	s := serve(t, path)
	ended, host := sandbox(2), sandbox(3)
	ended.NotReady, host.HostNet = true, true
	s.Set(sandbox(1), ended, host)
	r := open(t, runtime.Options{Endpoint: "unix://" + path})

	v, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Name).To(Equal("containerd"))
	g.Expect(v.Version).To(Equal("2.1.4"))
	g.Expect(v.Source).To(Equal("containerd 2.1.4 at " + path))
	g.Expect(v.Taken).To(Equal(time.Unix(1_700_000_001, 0)))
	g.Expect(v.Detailed).To(BeFalse())
	g.Expect(v.Sandboxes).To(Equal([]witness.Sandbox{
		{ID: "sandbox-1", Namespace: "default", Name: "web-1", UID: "uid-1", Ready: true, Created: sandbox(1).Created},
		{ID: "sandbox-2", Namespace: "default", Name: "web-2", UID: "uid-2", Created: ended.Created},
		{ID: "sandbox-3", Namespace: "default", Name: "web-3", UID: "uid-3", Ready: true, Created: host.Created},
	}))
	g.Expect(v.Find("sandbox-2").Name).To(Equal("web-2"))
	g.Expect(v.Find("sandbox-4")).To(BeNil())
	g.Expect(s.Calls("PodSandboxStatus")).To(BeZero(), "the statuses are expensive and were not asked for")

	v, err = r.ReadDetailed(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Detailed).To(BeTrue())
	g.Expect(v.Sandboxes[0].NetNS).To(Equal("/var/run/netns/cni-1"))
	g.Expect(v.Sandboxes[0].Addrs).To(Equal([]netip.Addr{netip.MustParseAddr("10.1.5.1")}))
	g.Expect(v.Sandboxes[0].HostNet).To(BeFalse())
	g.Expect(v.Sandboxes[2]).To(And(HaveField("HostNet", true), HaveField("NetNS", ""), HaveField("Addrs", BeEmpty())))
}

// TestDetailsAreReadOnce: also the details of a removed sandbox are forgotten.
func TestDetailsAreReadOnce(t *testing.T) {
	g := NewWithT(t)
	path := socket(t, "c.sock")
	s := serve(t, path)
	r := open(t, runtime.Options{Endpoint: "unix://" + path})
	read := func(all ...critest.Sandbox) (v *witness.RuntimeView, asked int) {
		t.Helper()
		s.Set(all...)
		before := s.Calls("PodSandboxStatus")
		v, err := r.ReadDetailed(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return v, s.Calls("PodSandboxStatus") - before
	}
	_, asked := read(sandbox(1), sandbox(2))
	g.Expect(asked).To(Equal(2))
	v, asked := read(sandbox(1), sandbox(2), sandbox(3))
	g.Expect(asked).To(Equal(1))
	g.Expect(v.Find("sandbox-1").NetNS).To(Equal("/var/run/netns/cni-1"))
	stopped := sandbox(1)
	stopped.NotReady, stopped.Addrs = true, nil
	v, asked = read(stopped, sandbox(2))
	g.Expect(asked).To(Equal(1), "it has stopped")
	g.Expect(v.Find("sandbox-1").Addrs).To(BeEmpty())
	again := sandbox(3)
	again.NetNS = "/var/run/netns/other"
	v, asked = read(stopped, sandbox(2), again)
	g.Expect(asked).To(Equal(1), "sandbox-3 had been removed")
	g.Expect(v.Find("sandbox-3").NetNS).To(Equal("/var/run/netns/other"))

	// A sandbox that is removed between the list and its status stays in the view: it was listed.
	s.Set(sandbox(4))
	s.Before(func(_ context.Context, method string) error {
		if method == "PodSandboxStatus" {
			s.Set()
		}
		return nil
	})
	v, err := r.ReadDetailed(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Sandboxes).To(HaveExactElements(And(HaveField("ID", "sandbox-4"), HaveField("NetNS", ""))))
}

// TestDetailsOfASlowRuntime: what was read before a failure, or before a restart, is not
// read again.
func TestDetailsOfASlowRuntime(t *testing.T) {
	g := NewWithT(t)
	path := socket(t, "c.sock")
	s := serve(t, path)
	s.Set(sandbox(1), sandbox(2), sandbox(3))
	s.Before(func(_ context.Context, method string) error {
		if method == "PodSandboxStatus" && s.Calls(method) == 3 {
			return errors.New("it takes too long")
		}
		return nil
	})
	r := open(t, runtime.Options{Endpoint: "unix://" + path})
	_, err := r.ReadDetailed(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("it takes too long")))
	for range 2 {
		v, err := r.ReadDetailed(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(v.Find("sandbox-1").NetNS).To(Equal("/var/run/netns/cni-1"))
		g.Expect(s.Calls("PodSandboxStatus")).To(Equal(4), "two, one that failed, and that one again")
		s.Stop()
		g.Expect(s.Start()).To(Succeed())
	}
}

// TestVerboseInformation: the runtimes write the namespace's path in different places.
func TestVerboseInformation(t *testing.T) {
	for name, c := range map[string]struct{ info, path, fails string }{
		"containerd":              {info: `{"pid":1,"netNamespaceClosed":false,"runtimeSpec":{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/var/run/netns/a"}]}}}`, path: "/var/run/netns/a"},
		"containerd 2 that ended": {info: `{"pid":0,"processStatus":"deleted","runtimeSpec":null,"sandboxMetadata":{"Version":"v1","Metadata":{"NetNSPath":"/var/run/netns/b"}}}`, path: "/var/run/netns/b"},
		"CRI-O":                   {info: `{"image":"pause","pid":7,"runtimeSpec":{"ociVersion":"1.0.0","linux":{"namespaces":[{"type":"network","path":"/var/run/netns/c"},{"type":"ipc","path":"/var/run/ipcns/c"}]}}}`, path: "/var/run/netns/c"},
		"no path":                 {info: `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}`},
		"not JSON":                {info: `sandbox`, fails: "parse its verbose information"},
		"another type":            {info: `{"runtimeSpec":{"linux":[]}}`, fails: "parse its verbose information"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := socket(t, "c.sock")
			s := serve(t, path)
			x := sandbox(1)
			x.Info = c.info
			s.Set(x)
			v, err := open(t, runtime.Options{Endpoint: "unix://" + path}).ReadDetailed(t.Context())
			if c.fails != "" {
				g.Expect(err).To(MatchError(And(ContainSubstring("sandbox-1"), ContainSubstring(c.fails))))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(v.Sandboxes[0].NetNS).To(Equal(c.path))
		})
	}
}

// TestMissing: each of these runtimes may have sandboxes that a view would lack.
func TestMissing(t *testing.T) {
	hang := func(method string) func(*critest.Server) {
		return func(s *critest.Server) {
			s.Before(func(ctx context.Context, m string) error {
				if m != method {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
		}
	}
	unnamed, twice := sandbox(1), sandbox(1)
	unnamed.ID = ""
	odd := sandbox(1)
	odd.Info = "x"
	const stops = "stops in between"
	stopped := make(chan struct{})
	for name, c := range map[string]struct {
		fault func(*critest.Server)
		want  string
	}{
		"not ready":              {func(s *critest.Server) { s.SetNotReady("container runtime is starting") }, "containerd is not ready: NotReady: container runtime is starting"},
		"does not say whether":   {func(s *critest.Server) { s.SetSilent(true) }, "containerd does not say whether it is ready"},
		"version hangs":          {hang("Version"), "read its version: it has not answered within 100ms"},
		"status hangs":           {hang("Status"), "read its status: it has not answered within 100ms"},
		"list hangs":             {hang("ListPodSandbox"), "list sandboxes: it has not answered within 100ms"},
		"details hang":           {hang("PodSandboxStatus"), "read the status of sandbox sandbox-1: it has not answered within 100ms"},
		"list fails":             {func(s *critest.Server) { s.Before(failing("ListPodSandbox")) }, "list sandboxes: rpc error: code = Unknown desc = server is not initialized yet"},
		"details fail":           {func(s *critest.Server) { s.Before(failing("PodSandboxStatus")) }, "server is not initialized yet"},
		"stopped":                {func(s *critest.Server) { s.Stop() }, "found no socket at "},
		"no name":                {func(s *critest.Server) { s.SetName("") }, "its version has no name"},
		"a sandbox without ID":   {func(s *critest.Server) { s.Set(unnamed) }, "sandbox of pod default/web-1 has no ID"},
		"a sandbox listed twice": {func(s *critest.Server) { s.Set(twice, twice) }, "sandbox sandbox-1 is listed twice"},
		"odd information":        {func(s *critest.Server) { s.Set(odd) }, "parse its verbose information"},
		"a long answer": {func(s *critest.Server) {
			x := sandbox(1)
			x.Name = strings.Repeat("x", 1<<20)
			s.Set(x)
		}, "received message larger than max"},
		stops: {func(s *critest.Server) {
			s.Before(func(_ context.Context, m string) error {
				if m == "ListPodSandbox" {
					go func() {
						s.Stop() // waits for this call
						close(stopped)
					}()
					return errors.New("the server ends")
				}
				return nil
			})
		}, "list sandboxes: "},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := socket(t, "c.sock")
			s := serve(t, path)
			s.Set(sandbox(1))
			limit := 100 * time.Millisecond
			if name == "a long answer" { // which a busy machine may take long to receive
				limit = 10 * time.Second
			}
			r := open(t, runtime.Options{Endpoint: "unix://" + path, Timeout: limit, MaxAnswer: 1 << 19})
			c.fault(s)
			v, err := r.ReadDetailed(t.Context())
			g.Expect(v).To(BeNil())
			g.Expect(err).To(MatchError(And(HavePrefix("read the container runtime: "), ContainSubstring(c.want))))
			g.Expect(errors.Is(err, witness.ErrNotApplicable)).To(BeFalse())
			g.Expect(witness.ReportOf(witness.Runtime, err).State).To(Equal(witness.Missing))

			if name == stops {
				<-stopped
			}
			s.Before(nil) // the next reading needs no pause
			s.SetNotReady("")
			s.SetSilent(false)
			s.SetName("containerd")
			s.Set(sandbox(1))
			s.Stop()
			g.Expect(s.Start()).To(Succeed())
			v, err = r.ReadDetailed(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(v.Sandboxes).To(HaveLen(1))
		})
	}
}

func failing(method string) func(context.Context, string) error {
	return func(_ context.Context, m string) error {
		if m == method {
			return errors.New("server is not initialized yet")
		}
		return nil
	}
}

// TestNotARuntime: programs that answer something else, or nothing.
func TestNotARuntime(t *testing.T) {
	for name, talk := range map[string]func(net.Conn){
		"silent":        func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"hangs up":      func(net.Conn) {},
		"garbage":       func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\nwhat?")) },
		"binary":        func(c net.Conn) { _, _ = c.Write(make([]byte, 1<<16)) },
		"half a header": func(c net.Conn) { _, _ = c.Write([]byte{0, 0, 0}); _, _ = io.Copy(io.Discard, c) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := socket(t, "c.sock")
			l, err := net.Listen("unix", path)
			g.Expect(err).NotTo(HaveOccurred())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					talk(c)
					_ = c.Close()
				}
			}()
			r := runtime.New(runtime.Options{Sockets: []string{path}, Timeout: 200 * time.Millisecond})
			_, err = r.Read(t.Context())
			g.Expect(err).To(MatchError(ContainSubstring(path + ": read its version: ")))
			g.Expect(errors.Is(err, runtime.ErrNoRuntime)).To(BeFalse(), "there is one, and it does not answer")
			r.Close()
			g.Expect(l.Close()).To(Succeed())
			<-done
		})
	}
}

func TestAuto(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Dir(socket(t, "x"))
	first, second := filepath.Join(dir, "1.sock"), filepath.Join(dir, "2.sock")
	r := open(t, runtime.Options{Sockets: []string{first, filepath.Join(dir, "none", "x.sock"), second}})
	_, err := r.Read(t.Context())
	g.Expect(errors.Is(err, runtime.ErrNoRuntime)).To(BeTrue())
	g.Expect(errors.Is(err, witness.ErrNotApplicable)).To(BeFalse(), "the caller decides")
	g.Expect(witness.Absent(err)).To(BeTrue())
	g.Expect(err).To(MatchError(ContainSubstring("found none of the sockets " + first)))

	b := serve(t, second)
	b.SetName("cri-o")
	b.Set(sandbox(2))
	v, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Name).To(Equal("cri-o"))

	// A second runtime: a sandbox is absent only if neither has it.
	a := serve(t, first)
	a.Set(sandbox(1))
	v, err = r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Name).To(Equal("containerd and cri-o"))
	g.Expect(v.Source).To(Equal("containerd 2.1.4 at " + first + " and cri-o 2.1.4 at " + second))
	g.Expect(v.Sandboxes).To(HaveExactElements(HaveField("ID", "sandbox-1"), HaveField("ID", "sandbox-2")))

	a.SetNotReady("it recovers")
	_, err = r.Read(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring(first+": containerd is not ready")), "although the other one is")
	a.SetNotReady("")

	// One socket under two names is one runtime.
	link := filepath.Join(dir, "3.sock")
	g.Expect(os.Symlink(first, link)).To(Succeed())
	v, err = open(t, runtime.Options{Sockets: []string{link, first}}).Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Sandboxes).To(HaveLen(1))

	// A socket that its runtime has left behind, and a file that is not a socket.
	stale := filepath.Join(dir, "4.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	g.Expect(err).NotTo(HaveOccurred())
	l.SetUnlinkOnClose(false)
	g.Expect(l.Close()).To(Succeed())
	_, err = open(t, runtime.Options{Sockets: []string{stale, first}}).Read(t.Context())
	g.Expect(err).To(MatchError(And(ContainSubstring(stale+": read its version"), ContainSubstring("connection refused"))))
	file := filepath.Join(dir, "file")
	g.Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
	_, err = open(t, runtime.Options{Sockets: []string{file, first}}).Read(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring(file + " is not a socket")))
}

// A runtime that stops removes its socket: the view of the other one shows none of its
// sandboxes, although they go on.
func TestAutoMissesARuntimeThatHadSandboxes(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Dir(socket(t, "x"))
	first, second := filepath.Join(dir, "1.sock"), filepath.Join(dir, "2.sock")
	a, b := serve(t, first), serve(t, second)
	b.SetName("cri-o")
	b.Set(sandbox(2))
	r := open(t, runtime.Options{Sockets: []string{first, second}})
	_, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())

	b.Stop()
	for range 3 {
		_, err = r.Read(t.Context())
		g.Expect(err).To(MatchError(ContainSubstring(second + ": cri-o is not there any more, and had 1 sandboxes")))
	}
	a.Stop()
	_, err = r.Read(t.Context())
	g.Expect(err).To(HaveOccurred())
	g.Expect(witness.Absent(err)).To(BeFalse())
	g.Expect(a.Start()).To(Succeed())

	g.Expect(b.Start()).To(Succeed())
	b.Set()
	_, err = r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	b.Stop()
	v, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred(), "it was removed without a sandbox")
	g.Expect(v.Name).To(Equal("containerd"))
}

// TestContainerdWithoutCRI: the containerd of a Docker engine has the socket, but not the CRI.
func TestContainerdWithoutCRI(t *testing.T) {
	g := NewWithT(t)
	dir := filepath.Dir(socket(t, "x"))
	bare, real := filepath.Join(dir, "1.sock"), filepath.Join(dir, "2.sock")
	stop, err := critest.ServeWithoutCRI(bare)
	g.Expect(err).NotTo(HaveOccurred())
	defer stop()
	r := open(t, runtime.Options{Sockets: []string{bare, real}})
	_, err = r.Read(t.Context())
	g.Expect(errors.Is(err, runtime.ErrNoRuntime)).To(BeTrue())
	g.Expect(err).To(MatchError(ContainSubstring(bare + " answers without the service runtime.v1.RuntimeService")))
	serve(t, real).Set(sandbox(1))
	v, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Source).To(Equal("containerd 2.1.4 at " + real))
}

// TestSince: a restart between two readings is seen, although both succeed.
func TestSince(t *testing.T) {
	g := NewWithT(t)
	path := socket(t, "c.sock")
	s := serve(t, path)
	r := open(t, runtime.Options{Endpoint: "unix://" + path})
	read := func() *witness.RuntimeView {
		t.Helper()
		v, err := r.Read(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return v
	}
	first := read()
	g.Expect(first.Since).To(Equal(first.Taken))
	g.Expect(read().Since).To(Equal(first.Since))
	s.Stop()
	g.Expect(s.Start()).To(Succeed())
	after := read()
	g.Expect(after.Since).To(Equal(after.Taken), "it has restarted")
	g.Expect(read().Since).To(Equal(after.Since))
	s.SetNotReady("x")
	_, err := r.Read(t.Context())
	g.Expect(err).To(HaveOccurred())
	s.SetNotReady("")
	ready := read()
	g.Expect(ready.Since).To(Equal(ready.Taken), "it was not ready in between")
	s.SetName("other")
	other := read()
	g.Expect(other.Since).To(Equal(other.Taken), "it is another one")
	g.Expect(os.Rename(path, path+".away")).To(Succeed())
	_, err = r.Read(t.Context())
	g.Expect(err).To(HaveOccurred(), "although the connection is open")
	g.Expect(os.Rename(path+".away", path)).To(Succeed())
	back := read()
	g.Expect(back.Since).To(Equal(back.Taken), "the socket was away in between")
}

func TestEndpoint(t *testing.T) {
	g := NewWithT(t)
	_, err := open(t, runtime.Options{Endpoint: runtime.None}).Read(t.Context())
	g.Expect(errors.Is(err, witness.ErrNotApplicable)).To(BeTrue())
	g.Expect(witness.ReportOf(witness.Runtime, err).State).To(Equal(witness.NotApplicable))
	for endpoint, want := range map[string]string{
		"tcp://127.0.0.1:1":                   "want auto, none, or unix:///PATH",
		"unix://run/x":                        "want auto, none, or unix:///PATH",
		"/run/x.sock":                         "want auto, none, or unix:///PATH",
		"unix:///" + strings.Repeat("x", 200): "want a path of at most 107 bytes",
	} {
		_, err := runtime.ParseEndpoint(endpoint)
		g.Expect(err).To(MatchError(ContainSubstring(want)), endpoint)
		_, err = open(t, runtime.Options{Endpoint: endpoint}).Read(t.Context())
		g.Expect(err).To(MatchError(ContainSubstring(want)), endpoint)
	}
	g.Expect(runtime.ParseEndpoint("unix:///run/x.sock")).To(Equal("/run/x.sock"))
}

// TestReadingsTakeTurns: a reading that waits for another one ends with its context.
func TestReadingsTakeTurns(t *testing.T) {
	g := NewWithT(t)
	path := socket(t, "c.sock")
	s := serve(t, path)
	s.Set(sandbox(1))
	entered, leave := make(chan struct{}), make(chan struct{})
	s.Before(func(_ context.Context, method string) error {
		if method == "ListPodSandbox" {
			close(entered)
			<-leave
		}
		return nil
	})
	r := open(t, runtime.Options{Sockets: []string{path}, Timeout: time.Hour})
	first := make(chan error, 1)
	go func() {
		_, err := r.Read(context.Background())
		first <- err
	}()
	<-entered
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller has gone"))
	_, err := r.Read(ctx)
	g.Expect(err).To(MatchError(ContainSubstring("wait for another reading: the caller has gone")))
	close(leave)
	g.Expect(<-first).To(Succeed())
}

// BenchmarkRead250 reads 250 sandboxes, of which the details are known, or not. The time
// is that of reader and server together.
func BenchmarkRead250(b *testing.B) {
	dir, err := os.MkdirTemp("/tmp", "cri-")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := critest.New(filepath.Join(dir, "c.sock"))
	if err := s.Start(); err != nil {
		b.Fatal(err)
	}
	defer s.Stop()
	var all []critest.Sandbox
	for i := range 250 {
		x := sandbox(i)
		all = append(all, x)
	}
	s.Set(all...)
	r := runtime.New(runtime.Options{Sockets: []string{filepath.Join(dir, "c.sock")}})
	defer r.Close()
	first := func(ctx context.Context) (*witness.RuntimeView, error) {
		r := runtime.New(runtime.Options{Sockets: []string{filepath.Join(dir, "c.sock")}})
		defer r.Close()
		return r.ReadDetailed(ctx)
	}
	for name, read := range map[string]func(context.Context) (*witness.RuntimeView, error){
		"list":           r.Read,
		"detailed":       r.ReadDetailed,
		"detailed first": first,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := read(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
