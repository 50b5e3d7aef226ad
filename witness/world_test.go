// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

func TestVerdict(t *testing.T) {
	addr := netip.MustParseAddr("10.1.5.7")
	pod := ledger.Lease{Addr: addr, Key: ledger.Key{Network: "k8s", ContainerID: "c1", IfName: "eth0"}}
	docker := ledger.Lease{Addr: addr, Purpose: ledger.ForDocker, Key: ledger.Key{Network: "docker", ContainerID: "e1"}}
	api := ledger.Lease{Addr: addr, Key: ledger.Key{Network: ledger.APINetwork, ContainerID: "pod:default/web"}}
	infra := ledger.Lease{Addr: addr, Purpose: ledger.ForInfra}

	empty := &witness.KernelView{Namespaces: []witness.Namespace{{Host: true}}}
	hidden := &witness.KernelView{Hidden: "/run/netns/x: permission denied"}
	used := func(hidden string) *witness.KernelView {
		return &witness.KernelView{Hidden: hidden, Namespaces: []witness.Namespace{{Counts: true, Paths: []string{"/run/netns/x"}, Links: []witness.Link{
			{Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}},
		}}}}
	}
	with := &witness.RuntimeView{Sandboxes: []witness.Sandbox{{ID: "c1"}}}
	without := &witness.RuntimeView{Sandboxes: []witness.Sandbox{{ID: "c2"}}}
	network := func(n witness.EngineNetwork) *witness.EngineView {
		n.IPAMDriver = "cadastre"
		return &witness.EngineView{Networks: []witness.EngineNetwork{n}}
	}
	endpoint := network(witness.EngineNetwork{Endpoints: []witness.EngineEndpoint{{Addrs: []netip.Addr{addr}}}})
	gateway := network(witness.EngineNetwork{Pools: []witness.EnginePool{{Gateway: addr}}})
	aux := network(witness.EngineNetwork{Pools: []witness.EnginePool{{Aux: map[string]netip.Addr{"r": addr}}}})
	stopped := network(witness.EngineNetwork{ID: "n"})
	stopped.Containers = []witness.EngineContainer{{Fixed: map[string][]netip.Addr{"n": {addr}}}}
	foreign := network(witness.EngineNetwork{Pools: []witness.EnginePool{{Gateway: addr}}})
	foreign.Networks[0].IPAMDriver = "default"

	for name, c := range map[string]struct {
		lease ledger.Lease
		world witness.World
		want  witness.Conclusion
	}{
		"nothing was read":               {pod, witness.World{}, witness.Unproven},
		"both agree":                     {pod, witness.World{Kernel: empty, Runtime: without}, witness.Gone},
		"a sandbox":                      {pod, witness.World{Kernel: empty, Runtime: with}, witness.Alive},
		"an address":                     {pod, witness.World{Kernel: used(""), Runtime: without}, witness.Alive},
		"an address, others are hidden":  {pod, witness.World{Kernel: used("x"), Runtime: without}, witness.Alive},
		"namespaces are hidden":          {pod, witness.World{Kernel: hidden, Runtime: without}, witness.Unproven},
		"no runtime":                     {pod, witness.World{Kernel: empty}, witness.Unproven},
		"no runtime, but a sandbox":      {pod, witness.World{Runtime: with}, witness.Alive},
		"no kernel":                      {pod, witness.World{Runtime: without}, witness.Unproven},
		"a GC without a CRI":             {pod, witness.World{Kernel: empty, Unlisted: map[ledger.Key]bool{pod.Key: true}}, witness.Gone},
		"a GC that the runtime denies":   {pod, witness.World{Kernel: empty, Runtime: with, Unlisted: map[ledger.Key]bool{pod.Key: true}}, witness.Alive},
		"a GC, the kernel is missing":    {pod, witness.World{Unlisted: map[ledger.Key]bool{pod.Key: true}}, witness.Unproven},
		"the engine does not judge pods": {pod, witness.World{Kernel: empty, Engine: &witness.EngineView{}}, witness.Unproven},
		"docker: both agree":             {docker, witness.World{Kernel: empty, Engine: &witness.EngineView{}}, witness.Gone},
		"docker: an endpoint":            {docker, witness.World{Kernel: empty, Engine: endpoint}, witness.Alive},
		"docker: a gateway":              {docker, witness.World{Kernel: empty, Engine: gateway}, witness.Alive},
		"docker: an auxiliary address":   {docker, witness.World{Kernel: empty, Engine: aux}, witness.Alive},
		"docker: a stopped container":    {docker, witness.World{Kernel: empty, Engine: stopped}, witness.Alive},
		"docker: another driver":         {docker, witness.World{Kernel: empty, Engine: foreign}, witness.Gone},
		"docker: no engine":              {docker, witness.World{Kernel: empty, Runtime: without}, witness.Unproven},
		"through the Go API":             {api, witness.World{Kernel: empty, Runtime: without}, witness.Unproven},
		"infra":                          {infra, witness.World{Kernel: empty, Runtime: without, Engine: &witness.EngineView{}}, witness.Unproven},
	} {
		t.Run(name, func(t *testing.T) {
			c.world.Driver = "cadastre"
			got := c.world.Verdict(c.lease)
			NewWithT(t).Expect(got.Conclusion).To(Equal(c.want), "%+v", got)
		})
	}
}

// Only the namespace that a lease has recorded keeps it, whatever its path names now.
func TestVerdictOnARecordedNamespace(t *testing.T) {
	addr := netip.MustParseAddr("10.1.5.7")
	own := kv.NetNSID{Boot: "b", Dev: 4, Inode: 100, Cookie: 7}
	lease := func(id kv.NetNSID) ledger.Lease {
		return ledger.Lease{Addr: addr, NetNS: "/run/netns/x", NetNSID: id, Key: ledger.Key{Network: "k8s", ContainerID: "c1"}}
	}
	noCookie := kv.NetNSID{Boot: "b", Dev: 4, Inode: 100}
	link := []witness.Link{{Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}}}
	ns := func(inode, cookie uint64, links []witness.Link) witness.Namespace {
		return witness.Namespace{Counts: true, ID: witness.NamespaceID{Dev: 4, Inode: inode}, Cookie: cookie, Paths: []string{"/run/netns/x"}, Links: links}
	}
	for name, c := range map[string]struct {
		lease        ledger.Lease
		boot         string
		namespace    witness.Namespace
		want         witness.Conclusion
		unidentified bool
	}{
		"its own, with the address":              {lease(own), "b", ns(100, 7, link), witness.Alive, false},
		"its own, without the address":           {lease(own), "b", ns(100, 7, nil), witness.Alive, false},
		"a later one with its inode":             {lease(own), "b", ns(100, 8, link), witness.Gone, false},
		"another one at its path":                {lease(own), "b", ns(101, 8, link), witness.Gone, false},
		"the same numbers after a reboot":        {lease(own), "c", ns(100, 7, link), witness.Gone, false},
		"a boot that is not known":               {lease(own), "", ns(101, 8, nil), witness.Unproven, true},
		"no cookie in the view":                  {lease(own), "b", ns(100, 0, nil), witness.Unproven, true},
		"no cookie in the view, the address":     {lease(own), "b", ns(100, 0, link), witness.Alive, true},
		"no cookie in the lease":                 {lease(noCookie), "b", ns(100, 7, nil), witness.Unproven, true},
		"no cookie in the lease, another inode":  {lease(noCookie), "b", ns(101, 7, link), witness.Gone, false},
		"nothing recorded, a namespace is there": {lease(kv.NetNSID{}), "b", ns(101, 7, nil), witness.Unproven, true},
		"only a link leads there, the address":   {lease(own), "b", witness.Namespace{Counts: true, NSID: 3, Links: link}, witness.Alive, false},
		"only a link leads there":                {lease(own), "b", witness.Namespace{Counts: true, NSID: 3}, witness.Gone, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := witness.World{
				BootID: c.boot, Runtime: &witness.RuntimeView{},
				Kernel: &witness.KernelView{Namespaces: []witness.Namespace{{Host: true, Counts: true}, c.namespace}},
			}
			got := w.Verdict(c.lease)
			g.Expect(got.Conclusion).To(Equal(c.want), "%+v", got)
			g.Expect(w.Unidentified(c.lease)).To(Equal(c.unidentified))
		})
	}
	stray := ledger.Lease{Addr: addr, Key: ledger.Key{Network: "k8s", ContainerID: "c1"}}
	w := witness.World{Runtime: &witness.RuntimeView{}, Kernel: &witness.KernelView{Namespaces: []witness.Namespace{{Links: link}}}}
	NewWithT(t).Expect(w.Verdict(stray).Conclusion).To(Equal(witness.Gone), "a namespace that does not count")
}

// The leases of a claim go together, whichever comes first.
func TestVerdictOnAClaim(t *testing.T) {
	lease := func(a string, id kv.NetNSID) ledger.Lease {
		return ledger.Lease{Addr: netip.MustParseAddr(a), NetNS: "/run/netns/x", NetNSID: id, Key: ledger.Key{Network: "k8s", ContainerID: "c1"}}
	}
	gone, also := lease("10.1.5.7", kv.NetNSID{Boot: "b", Dev: 4, Inode: 1, Cookie: 1}), lease("10.1.5.8", kv.NetNSID{Boot: "b", Dev: 4, Inode: 1, Cookie: 1})
	unproven, alive := lease("fd00::7", kv.NetNSID{}), lease("fd00::8", kv.NetNSID{})
	link := witness.Link{Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(alive.Addr, 64)}}
	w := witness.World{BootID: "b", Runtime: &witness.RuntimeView{Name: "containerd"}, Kernel: &witness.KernelView{Namespaces: []witness.Namespace{
		{Host: true},
		{ID: witness.NamespaceID{Dev: 4, Inode: 9}, Cookie: 9, Counts: true, Paths: []string{"/run/netns/x"}, Links: []witness.Link{link}},
	}}}
	for _, c := range []struct {
		claim    []ledger.Lease
		want     witness.Conclusion
		evidence int
	}{
		{nil, witness.Unproven, 0},
		{[]ledger.Lease{gone}, witness.Gone, 2},
		{[]ledger.Lease{gone, also}, witness.Gone, 3}, // the statement of the runtime counts once
		{[]ledger.Lease{gone, unproven}, witness.Unproven, 1},
		{[]ledger.Lease{unproven, gone}, witness.Unproven, 1},
		{[]ledger.Lease{gone, alive}, witness.Alive, 2},
		{[]ledger.Lease{alive, gone, unproven}, witness.Alive, 2},
		{[]ledger.Lease{unproven, alive}, witness.Alive, 2},
	} {
		g := NewWithT(t)
		got := w.Verdict(c.claim...)
		g.Expect(got.Conclusion).To(Equal(c.want), "%v: %+v", c.claim, got)
		g.Expect(got.Evidence).To(HaveLen(c.evidence), "%v: %+v", c.claim, got)
	}
}

func TestReportOf(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want witness.Report
	}{
		"read":                         {nil, witness.Report{Name: witness.Engine}},
		"failed":                       {errors.New("connection refused"), witness.Report{Name: witness.Engine, State: witness.Missing, Reason: "connection refused"}},
		"not applicable, the reason":   {fmt.Errorf("there is no engine: %w", witness.ErrNotApplicable), witness.Report{Name: witness.Engine, State: witness.NotApplicable, Reason: "there is no engine"}},
		"not applicable: the reason":   {fmt.Errorf("%w: there is no engine", witness.ErrNotApplicable), witness.Report{Name: witness.Engine, State: witness.NotApplicable, Reason: "there is no engine"}},
		"not applicable, says no more": {witness.ErrNotApplicable, witness.Report{Name: witness.Engine, State: witness.NotApplicable, Reason: "not applicable"}},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(witness.ReportOf(witness.Engine, c.err)).To(Equal(c.want))
		})
	}
}
