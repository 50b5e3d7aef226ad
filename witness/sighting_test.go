// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// What a kernel test cannot make: devices, and what other witnesses say. The pod of the test is on a link that the host
// knows nothing of, as with a data plane in user space.
func TestSightings(t *testing.T) {
	const path = "/run/netns/web"
	addr := netip.MustParseAddr("10.1.5.7")
	world := func(link witness.Link, change func(*witness.World, *witness.Namespace)) *witness.World {
		link.Name, link.Index, link.Addrs = "eth0", 2, append(link.Addrs, netip.PrefixFrom(addr, 32))
		ns := witness.Namespace{Counts: true, NSID: 1, Paths: []string{path}, Links: []witness.Link{link}}
		host := witness.Namespace{Host: true, Counts: true, Links: []witness.Link{{Index: 7, Name: "pod1", Kind: "veth", Peer: 2, Away: true, NSID: 1}}}
		w := &witness.World{Kernel: &witness.KernelView{Namespaces: []witness.Namespace{host, ns}}}
		if change != nil {
			change(w, &w.Kernel.Namespaces[1])
		}
		return w
	}
	tap, nic := witness.Link{Kind: "tun"}, witness.Link{MAC: "02:00:00:00:00:07"}
	wire := witness.Link{Kind: "veth", Peer: 7, Away: true}
	other := nic
	other.Addrs = []netip.Prefix{netip.MustParsePrefix("192.168.1.7/24"), netip.MustParsePrefix("fe80::7/64")}
	runtime := func(s witness.Sandbox) func(*witness.World, *witness.Namespace) {
		return func(w *witness.World, _ *witness.Namespace) {
			s.ID, s.Namespace, s.Name = "c1", "shop", "web"
			w.Runtime = &witness.RuntimeView{Name: "containerd", Sandboxes: []witness.Sandbox{s}}
		}
	}
	for name, c := range map[string]struct {
		link    witness.Link
		change  func(*witness.World, *witness.Namespace)
		answers bool
		why     string
		pod     string
	}{
		"nothing is known":             {tap, nil, false, "no route and no permanent neighbour", ""},
		"a device of the machine":      {nic, nil, true, "is a device of the machine", ""},
		"a device of another subnet":   {other, nil, false, "no route", ""},
		"the namespace does not count": {nic, func(_ *witness.World, ns *witness.Namespace) { ns.Counts = false }, false, "names the namespace", ""},
		"the runtime has assigned it":  {tap, runtime(witness.Sandbox{NetNS: path, Addrs: []netip.Addr{addr}}), true, "containerd reports it for sandbox c1", "shop/web"},
		"the runtime knows the pod":    {wire, runtime(witness.Sandbox{NetNS: path}), false, "no route", "shop/web"},
		"the pod is elsewhere":         {wire, runtime(witness.Sandbox{NetNS: path + "2", Addrs: []netip.Addr{addr}}), false, "no route", ""},
		"the pod is of the host":       {wire, runtime(witness.Sandbox{NetNS: path, HostNet: true, Addrs: []netip.Addr{addr}}), false, "no route", ""},
		"a CNI result lists it":        {tap, cached(path, addr), true, "a CNI result lists it for container c1", "shop/web"},
		"a CNI result lists another":   {tap, cached(path, addr.Next()), false, "no route", "shop/web"},
		"the engine has an endpoint":   {tap, engine(addr), true, "the engine has it for container db of network back", ""},
		"a route over the link":        {wire, route("10.1.5.7/32", ""), true, "the host's route 10.1.5.7/32 leads to it over link pod1", ""},
		"a gateway that is the pod":    {wire, route("10.1.5.0/24", "10.1.5.7"), true, "the host's route 10.1.5.0/24", ""},
		"a better route leads elsewhere": {wire, func(w *witness.World, ns *witness.Namespace) {
			route("10.1.0.0/16", "")(w, ns)
			host := &w.Kernel.Namespaces[0]
			host.Links = append(host.Links, witness.Link{Index: 8, Name: "eth0"})
			host.Routes = append(host.Routes, witness.Route{Dst: netip.MustParsePrefix("10.1.5.0/24"), Link: 8})
		}, false, "no route", ""},
		"the default route of the host": {wire, route("0.0.0.0/0", ""), true, "the host's route 0.0.0.0/0", ""},
		"a default route of some sources": {wire, func(w *witness.World, _ *witness.Namespace) {
			w.Kernel.Namespaces[0].OtherRoutes = []witness.Route{{Dst: netip.MustParsePrefix("0.0.0.0/0"), Link: 7, Table: 100}}
		}, false, "no route", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := world(c.link, c.change)
			found := w.Sightings(func(a netip.Addr) bool { return a == addr })
			g.Expect(found).To(HaveLen(1))
			g.Expect(found[0].Answers).To(Equal(c.answers), found[0].Why)
			g.Expect(found[0].Why).To(ContainSubstring(c.why))
			g.Expect(found[0].Pod).To(Equal(c.pod))
			g.Expect(found[0].Place).To(Equal(w.Kernel.Find(addr)[0]))
		})
	}
	g := NewWithT(t)
	g.Expect((&witness.World{}).Sightings(func(netip.Addr) bool { return true })).To(BeEmpty())
}

func cached(path string, addr netip.Addr) func(*witness.World, *witness.Namespace) {
	return func(w *witness.World, _ *witness.Namespace) {
		w.Attachments = []witness.Attachment{{
			Key: ledger.Key{ContainerID: "c1"}, Pod: ledger.Pod{Namespace: "shop", Name: "web"}, NetNS: path, Addrs: []netip.Addr{addr},
		}}
	}
}

func engine(addr netip.Addr) func(*witness.World, *witness.Namespace) {
	return func(w *witness.World, _ *witness.Namespace) {
		w.Engine = &witness.EngineView{Networks: []witness.EngineNetwork{{
			Name: "back", Endpoints: []witness.EngineEndpoint{{Name: "db", Addrs: []netip.Addr{addr}}},
		}}}
	}
}

func route(dst, gateway string) func(*witness.World, *witness.Namespace) {
	return func(w *witness.World, _ *witness.Namespace) {
		r := witness.Route{Dst: netip.MustParsePrefix(dst), Link: 7}
		if gateway != "" {
			r.Gateway = netip.MustParseAddr(gateway)
		}
		w.Kernel.Namespaces[0].Routes = []witness.Route{r}
	}
}
