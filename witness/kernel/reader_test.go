// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/kernel"
)

// found returns the labels of the namespaces and the names of the links that have an address.
func found(v *witness.KernelView, addr string) (places []string) {
	for _, p := range v.Find(netip.MustParseAddr(addr)) {
		places = append(places, p.Namespace.Label()+" "+p.Link.Name)
	}
	return places
}

func TestNamedNamespaces(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	n.do(func() error { return addresses("lo", "192.168.16.5/32") })
	_, first := n.pod("pod1", "10.1.5.2/24", "fd00:10:1:5::2/64")
	_, second := n.pod("pod2", "10.1.5.3/32")

	v, err := n.reader().Read(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Hidden).To(BeEmpty())
	g.Expect(v.Namespaces).To(HaveLen(3))
	g.Expect(v.Namespaces[0].Host).To(BeTrue())
	g.Expect(found(v, "192.168.16.5")).To(Equal([]string{"host lo"}))
	g.Expect(found(v, "10.1.5.2")).To(Equal([]string{first + " eth0"}))
	g.Expect(found(v, "fd00:10:1:5::2")).To(Equal([]string{first + " eth0"}))
	g.Expect(found(v, "10.1.5.3")).To(Equal([]string{second + " eth0"}))
	g.Expect(found(v, "10.1.5.4")).To(BeEmpty())
}

// view reads the node, and fails the test if that fails.
func (n *node) view(paths ...string) *witness.KernelView {
	n.t.Helper()
	v, err := n.reader().Read(n.t.Context(), paths)
	must(n.t, err)
	return v
}

func TestTheHost(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	pod, path := n.pod("pod1", "10.1.5.2/24")
	n.do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName("pod1")
		if err != nil {
			return err
		}
		remote := netlink.Neigh{
			LinkIndex: bridge.Attrs().Index, IP: net.ParseIP("10.1.5.77"), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7},
		}
		return errors.Join(
			netlink.LinkSetMaster(link, bridge), netlink.LinkSetUp(link), addresses("br0", "10.1.5.1/24", "fd00:10:1:5::1/64"),
			netlink.NeighAdd(&remote),
			netlink.AddrAdd(bridge, &netlink.Addr{IPNet: network("10.9.0.1/32"), Peer: network("10.9.0.2/32")}),
			netlink.RouteAdd(&netlink.Route{Dst: network("10.1.6.0/24"), Gw: net.ParseIP("10.1.5.6")}),
			netlink.RouteAdd(&netlink.Route{Dst: network("10.1.7.0/24"), Table: 100, Gw: net.ParseIP("10.1.5.6")}),
			netlink.RouteAdd(&netlink.Route{Dst: network("10.1.8.0/24"), MultiPath: []*netlink.NexthopInfo{
				{Gw: net.ParseIP("10.1.5.6")}, {Gw: net.ParseIP("10.1.5.7")},
			}}),
			netlink.RouteAdd(&netlink.Route{Dst: network("10.1.9.0/24"), Type: unix.RTN_BLACKHOLE}),
		)
	})
	must(t, pod.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: network("0.0.0.0/0"), Gw: net.ParseIP("10.1.5.1")})
	}))

	v := n.view()
	host := v.Namespaces[0]
	at := func(name string) witness.Link {
		return host.Links[slices.IndexFunc(host.Links, func(l witness.Link) bool { return l.Name == name })]
	}
	bridge, link := at("br0"), at("pod1")
	g.Expect(bridge.Kind).To(Equal("bridge"))
	g.Expect(bridge.Up).To(BeTrue())
	g.Expect(bridge.Addrs).To(ContainElements(netip.MustParsePrefix("10.1.5.1/24"), netip.MustParsePrefix("fd00:10:1:5::1/64")))
	g.Expect(link.Kind).To(Equal("veth"))
	g.Expect(link.Master).To(Equal(bridge.Index))

	eth0 := v.Find(netip.MustParseAddr("10.1.5.2"))[0]
	g.Expect(link.Peer).To(Equal(eth0.Link.Index))
	g.Expect(eth0.Link.Peer).To(Equal(link.Index))
	must(t, pod.Do(func() error {
		real, err := netlink.LinkByName("eth0")
		g.Expect(eth0.Link.MAC).To(Equal(real.Attrs().HardwareAddr.String()))
		return err
	}))
	g.Expect(v.At(path).Routes).To(ContainElement(witness.Route{
		Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: netip.MustParseAddr("10.1.5.1"), Link: eth0.Link.Index,
	}))

	var routes []string
	for _, r := range host.Routes {
		if r.Dst.Addr().Is4() {
			g.Expect(r.Link).To(Equal(bridge.Index))
			routes = append(routes, fmt.Sprint(r.Dst, " ", r.Gateway))
		}
	}
	g.Expect(found(v, "10.9.0.1")).To(Equal([]string{"host br0"}))
	g.Expect(found(v, "10.9.0.2")).To(BeEmpty(), "the address of the other end")
	g.Expect(routes).To(ConsistOf("10.9.0.2/32 invalid IP", "10.1.5.0/24 invalid IP", "10.1.6.0/24 10.1.5.6", "10.1.8.0/24 10.1.5.6", "10.1.8.0/24 10.1.5.7"))
	g.Expect(host.Routes).To(ContainElement(HaveField("Dst", netip.MustParsePrefix("fd00:10:1:5::/64"))))
	g.Expect(host.Neighbours).To(ContainElement(witness.Neighbour{
		Addr: netip.MustParseAddr("10.1.5.77"), MAC: "02:00:00:00:00:07", Link: bridge.Index, State: "PERMANENT",
	}))
}

func network(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func TestAProcessWithoutAFile(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	ns := newNamespace(t)
	pid := n.process(ns, "10.1.5.9/32", 65534)
	must(t, ns.Close()) // only the process holds it
	g.Expect(found(n.view(), "10.1.5.9")).To(BeEmpty(), "without processes, nothing leads to the namespace")

	v, err := kernel.New(kernel.Options{Host: n.ns.Path(), Dirs: []string{n.dir}}).Read(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found(v, "10.1.5.9")).To(Equal([]string{fmt.Sprintf("/proc/%d/ns/net lo", pid)}))
	g.Expect(n.view().Limits).To(ContainSubstring("are not seen"))
	g.Expect(v.Limits).NotTo(Equal(n.view().Limits))
}

// A process of root in a user namespace of its own makes its own network namespace.
func TestAUserNamespace(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	pid := n.userNamespace()
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	v := n.view(path)
	g.Expect(v.Hidden).To(BeEmpty())
	g.Expect(v.At(path).Links).To(ConsistOf(HaveField("Name", "lo")))
}

func TestThePathOfALease(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	ns := newNamespace(t)
	must(t, ns.Do(func() error { return addresses("lo", "10.1.5.9/32") }))
	g.Expect(found(n.view(), "10.1.5.9")).To(BeEmpty())
	v := n.view(ns.Path(), "/var/run/netns/not-there", "")
	g.Expect(found(v, "10.1.5.9")).To(Equal([]string{ns.Path() + " lo"}))
	g.Expect(v.Hidden).To(BeEmpty())
	g.Expect(v.At(ns.Path())).NotTo(BeNil())
}

// A pod that no file and no visible process shows is found through the host's link. A
// runtime has removed the file, and a process that cannot end holds the namespace.
func TestAPodWithoutAFile(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	_, path := n.pod("pod1", "10.1.5.2/24")
	must(t, unbind(path)) // the test's open file still holds it
	v := n.view()
	g.Expect(v.Namespaces).To(HaveLen(2))
	g.Expect(found(v, "10.1.5.2")).To(Equal([]string{fmt.Sprintf("nsid %d eth0", v.Namespaces[1].NSID)}))
}

func TestOneNamespaceUnderManyNamesCountsOnce(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	ns, first := n.pod("pod1", "10.1.5.2/24")
	second := n.named(ns, "other")
	n.process(ns, "10.1.5.3/32", 0)

	r := kernel.New(kernel.Options{Host: n.ns.Path(), Dirs: []string{n.dir}})
	v, err := r.Read(t.Context(), []string{ns.Path(), first})
	g.Expect(err).NotTo(HaveOccurred())
	places := v.Find(netip.MustParseAddr("10.1.5.2"))
	g.Expect(places).To(HaveLen(1))
	g.Expect(places[0].Namespace.Paths).To(ContainElements(first, second, ns.Path()))
	g.Expect(slices.IsSorted(places[0].Namespace.Paths)).To(BeTrue())
}

func TestFilesThatAreNoNamespaces(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	stale, other, pipe := filepath.Join(n.dir, "stale"), filepath.Join(n.dir, "uts"), filepath.Join(n.dir, "pipe")
	must(t, os.WriteFile(stale, nil, 0o600))
	must(t, os.Mkdir(filepath.Join(n.dir, "folder"), 0o700))
	must(t, unix.Mkfifo(pipe, 0o600))
	bind(t, "/proc/self/ns/uts", other)

	v := n.view(stale, pipe, "/dev/null", "/etc/hostname/x", "/run/"+strings.Repeat("n", 256), strings.Repeat("/run", 2000))
	g.Expect(v.Hidden).To(BeEmpty())
	g.Expect(v.Namespaces).To(HaveLen(1), "only the host")
}

func TestMoves(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	first, firstPath := n.pod("pod1", "10.1.5.2/24")
	second, secondPath := n.pod("pod2", "10.1.5.3/24")

	must(t, first.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrDel(link, &netlink.Addr{IPNet: network("10.1.5.2/24")})
	}))
	must(t, second.Do(func() error { return addresses("eth0", "10.1.5.2/24") }))
	g.Expect(found(n.view(), "10.1.5.2")).To(Equal([]string{secondPath + " eth0"}), "the address has moved")

	file, err := os.Open(first.Path())
	must(t, err)
	defer file.Close()
	must(t, second.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, "eth1"), netlink.LinkSetNsFd(link, int(file.Fd())))
	}))
	g.Expect(found(n.view(), "10.1.5.3")).To(BeEmpty(), "a link loses its addresses when it moves")
	must(t, first.Do(func() error { return addresses("eth1", "10.1.5.3/24") }))
	v := n.view()
	g.Expect(found(v, "10.1.5.3")).To(Equal([]string{firstPath + " eth1"}))
	g.Expect(v.At(secondPath).Links).To(HaveLen(1))
}

// While namespaces and processes come and go, a read neither fails nor calls any of them
// hidden, and always shows the pod that stays.
func TestNamespacesVanishWhileTheyAreRead(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	_, path := n.pod("stays", "10.1.5.2/24")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for worker := range 3 {
		group.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				n.shortLife(fmt.Sprintf("w%d-%d", worker, i%7), worker == 0)
			}
		})
	}
	r := kernel.New(kernel.Options{Host: n.ns.Path(), Dirs: []string{n.dir}})
	sizes := map[int]bool{}
	for range effort.Times(t, 2000) {
		v, err := r.Read(ctx, []string{path})
		if err != nil || v.Hidden != "" || len(found(v, "10.1.5.2")) != 1 {
			t.Errorf("found %q, hidden %q: %v", found(v, "10.1.5.2"), v.Hidden, err)
			break
		}
		sizes[len(v.Namespaces)] = true
	}
	cancel()
	group.Wait()
	g.Expect(len(sizes)).To(BeNumerically(">", 1), "no namespace came or went during the test")
	g.Expect(threadNamespaces(t)).To(HaveLen(1), "a thread of this process is in another namespace")
}

// shortLife makes a namespace with a file and ends it.
func (n *node) shortLife(name string, withProcess bool) {
	ns, err := netlab.New()
	if err != nil {
		n.t.Error(err)
		return
	}
	path := filepath.Join(n.dir, name)
	if err := errors.Join(os.WriteFile(path, nil, 0o600), unix.Mount(ns.Path(), path, "", unix.MS_BIND, "")); err != nil {
		n.t.Error(err)
	}
	if withProcess {
		if err := ns.Do(exec.Command("true").Run); err != nil {
			n.t.Error(err)
		}
	}
	if err := errors.Join(ns.Close(), unbind(path)); err != nil {
		n.t.Error(err)
	}
}

// threadNamespaces returns the network namespaces of the threads of this process.
func threadNamespaces(t *testing.T) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	must(t, err)
	var all []string
	for _, task := range tasks {
		if name, err := os.Readlink(task); err == nil && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// A namespace ends as soon as its file is removed, although a reader has read it, and
// although another one reads all the time. The kernel then removes the host's link.
func TestAReaderKeepsNoNamespaceAlive(t *testing.T) {
	for name, readers := range map[string]int{"after a read": 0, "during reads": 2} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t)
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			for range readers {
				group.Go(func() {
					for ctx.Err() == nil {
						_, _ = n.reader().Read(ctx, nil)
					}
				})
			}
			for i := range 10 {
				name := fmt.Sprintf("pod%d", i)
				ns, path := n.pod(name, "10.1.5.2/24")
				g.Expect(found(n.view(), "10.1.5.2")).To(Equal([]string{path + " eth0"}))
				gone := n.removal(ctx, name)
				g.Expect(errors.Join(ns.Close(), unbind(path))).To(Succeed())
				g.Expect(gone()).To(Succeed(), "the namespace of %s has not ended", name)
			}
			cancel()
			group.Wait()
		})
	}
}
