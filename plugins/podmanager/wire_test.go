// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// wires is a southbound that makes wires, with what it finds wrong.
type wires struct {
	ready, check error
	collected    int
}

func (w *wires) Ready() error                            { return w.ready }
func (w *wires) Check(context.Context, ledger.Key) error { return w.check }
func (w *wires) Collect()                                { w.collected++ }

// forgetful is a handler behind ipnet that takes the wire of an event away.
type forgetful struct{}

func (forgetful) HandlesEvent(ev controller.Event) bool { _, ok := ev.(*podmanager.AddPod); return ok }
func (forgetful) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return nil
}

func (forgetful) Update(event controller.Event, _ controller.UpdateOperations) (string, error) {
	event.(*podmanager.AddPod).Wire = nil
	return "", nil
}
func (forgetful) Revert(controller.Event) error { return nil }
func (forgetful) String() string                { return "forgetful" }

// newWirer is an agent whose southbound makes wires.
func newWirer(t *testing.T) (*agent, *wires) {
	a, w := newAgent(t, dual), &wires{}
	a.Wires = w
	return a, w
}

// mainRequest is a request for a network whose main plugin is cadastre-cni.
func mainRequest(command, container string) cni.Request {
	r := request(command, container)
	r.Main = true
	return r
}

func TestAMainADDHasBothEndsOfItsWire(t *testing.T) {
	g := NewWithT(t)
	a, _ := newWirer(t)
	r := mainRequest("ADD", "c1")
	r.MAC = "02:00:00:00:00:09"
	reply, err := a.serve(r)
	g.Expect(err).NotTo(HaveOccurred())
	wire := a.loop.txn.values["pod/pods/c1/eth0"].(*kv.PodNetwork).GetWire()
	g.Expect(wire.GetHostIfName()).To(HavePrefix("cad"))
	mtu := int(wire.GetMtu())
	g.Expect(reply.Interfaces).To(Equal([]cni.Interface{
		{Name: wire.GetHostIfName(), MAC: wire.GetHostMac(), MTU: mtu},
		{Name: "eth0", MAC: "02:00:00:00:00:09", MTU: mtu, Sandbox: "/run/netns/c1"},
	}), "the result has what the southbound is given")
	g.Expect(reply.IPs).To(Equal([]cni.IP{
		{Interface: new(1), Address: "10.1.5.2/32", Gateway: "10.1.5.1"},
		{Interface: new(1), Address: "fd00:1:0:5::2/128", Gateway: "fd00:1:0:5::1"},
	}))
	g.Expect(reply.Routes).To(HaveLen(2))
	for _, l := range a.leases.ByKey(key("c1")) {
		g.Expect(l.Wired).To(BeTrue())
		g.Expect(l.MAC).To(Equal("02:00:00:00:00:09"))
	}
	again, err := a.serve(r)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(reply), "a repetition has the same answer")
	g.Expect(a.leases.ByKey(key("c1"))).To(HaveLen(2))

	plain, err := a.serve(request("ADD", "c2"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(plain.Interfaces).To(BeEmpty(), "another main plugin makes the interface")
	g.Expect(plain.IPs[0].Address).To(HaveSuffix("/24"))
	g.Expect(a.leases.ByKey(key("c2"))[0].Wired).To(BeFalse())
}

func TestAnAgentWithoutADataPlaneRefusesAMainADD(t *testing.T) {
	for command, want := range map[string]uint{"ADD": cni.CodeInvalidConfig, "STATUS": cni.CodeNotAvailable} {
		g := NewWithT(t)
		a := newAgent(t, plain)
		_, err := a.serve(mainRequest(command, "c1"))
		g.Expect(code(g, err)).To(Equal(want), command)
		g.Expect(err).To(MatchError(ContainSubstring("cadastre.dataplane of this agent is none")), command)
		g.Expect(a.held()).To(BeEmpty(), command)
	}
}

// An event that no handler has described a wire for leaves neither a lease nor an answer.
func TestAWireThatNothingDescribes(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		a.Wires = &wires{}
		a.loop.handlers = append(a.loop.handlers, forgetful{})
		c := a.begin(mainRequest("ADD", "c1"))
		a.drain()
		g.Expect(code(g, c.err)).To(BeNumerically("==", cni.CodeInternal))
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
	})
}

// A repeated ADD that asks for what cannot be changed is refused, and changes nothing.
func TestAnotherKindOfADDForAnAttachment(t *testing.T) {
	for name, c := range map[string]struct {
		first, second func(r *cni.Request)
		saying        string
	}{
		"first with another main plugin": {func(r *cni.Request) { r.Main = false }, func(*cni.Request) {}, "another main plugin"},
		"first with ours":                {func(*cni.Request) {}, func(r *cni.Request) { r.Main = false }, "another main plugin"},
		"in another namespace":           {func(*cni.Request) {}, func(r *cni.Request) { r.Netns = "/run/netns/other" }, "/run/netns/other"},
		"with another MAC": {func(r *cni.Request) { r.MAC = "02:00:00:00:00:03" }, func(r *cni.Request) { r.MAC = "02:00:00:00:00:04" },
			"02:00:00:00:00:03"},
		"with a MAC after one without": {func(*cni.Request) {}, func(r *cni.Request) { r.MAC = "02:00:00:00:00:04" }, "derived"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a, _ := newWirer(t)
			first, second := mainRequest("ADD", "c1"), mainRequest("ADD", "c1")
			c.first(&first)
			c.second(&second)
			_, err := a.serve(first)
			g.Expect(err).NotTo(HaveOccurred())
			before := a.leases.ByKey(key("c1"))
			_, err = a.serve(second)
			g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeDiffers))
			g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
			g.Expect(a.leases.ByKey(key("c1"))).To(Equal(before))
			a.del("c1")
			_, err = a.serve(second)
			g.Expect(err).NotTo(HaveOccurred(), "after a DEL it is another attachment")
		})
	}
}

func TestCheckOfAWire(t *testing.T) {
	for name, c := range map[string]struct {
		add    func(r *cni.Request)
		change func(r *cni.Request, w *wires)
		saying string // "": it is well
	}{
		"as it was made":                 {nil, func(*cni.Request, *wires) {}, ""},
		"with prevResult":                {nil, func(r *cni.Request, _ *wires) { r.Previous = []string{"10.1.5.2/32", "fd00:1:0:5::2/128"} }, ""},
		"an address that is not its own": {nil, func(r *cni.Request, _ *wires) { r.Previous = []string{"10.1.5.3/32"} }, "10.1.5.3"},
		"what the southbound finds":      {nil, func(_ *cni.Request, w *wires) { w.check = errors.New("route 10.1.5.2/32 is missing") }, "route 10.1.5.2/32 is missing"},
		"another namespace":              {nil, func(r *cni.Request, _ *wires) { r.Netns = "/run/netns/other" }, "/run/netns/other"},
		"another MAC": {func(r *cni.Request) { r.MAC = "02:00:00:00:00:03" },
			func(r *cni.Request, _ *wires) { r.Link = &cni.Interface{Name: "eth0", MAC: "02:00:00:00:00:04"} }, "02:00:00:00:00:04"},
		"an interface of another plugin": {func(r *cni.Request) { r.Main = false }, func(*cni.Request, *wires) {}, "another main plugin"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a, w := newWirer(t)
			add, check := mainRequest("ADD", "c1"), mainRequest("CHECK", "c1")
			if c.add != nil {
				c.add(&add)
			}
			_, err := a.serve(add)
			g.Expect(err).NotTo(HaveOccurred())
			c.change(&check, w)
			_, err = a.serve(check)
			if c.saying == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeDiffers))
			g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
		})
	}
}

// CHECK of a network with another main plugin does not ask for wires.
func TestCheckWithoutAWire(t *testing.T) {
	g := NewWithT(t)
	a, w := newWirer(t)
	w.check = errors.New("no wire")
	a.add("c1")
	_, err := a.serve(request("CHECK", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
}

func TestStatusOfTheWires(t *testing.T) {
	g := NewWithT(t)
	a, w := newWirer(t)
	_, err := a.serve(mainRequest("STATUS", ""))
	g.Expect(err).NotTo(HaveOccurred())
	w.ready = errors.New("no resync has been applied to the kernel")
	_, err = a.serve(mainRequest("STATUS", ""))
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeNotAvailable))
	g.Expect(err).To(MatchError(ContainSubstring("no resync has been applied")))
	_, err = a.serve(request("STATUS", ""))
	g.Expect(err).NotTo(HaveOccurred(), "another main plugin does not need them")
}

// A GC has stray wires removed, also those of attachments that have no lease.
func TestGCCollectsWires(t *testing.T) {
	g := NewWithT(t)
	a, w := newWirer(t)
	_, err := a.serve(mainRequest("ADD", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	gc := mainRequest("GC", "")
	gc.Attachments = []cni.Attachment{}
	_, err = a.serve(gc)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.held()).To(BeEmpty())
	g.Expect(w.collected).To(Equal(1))
	gc.Attachments = nil
	_, err = a.serve(gc)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.collected).To(Equal(1), "a GC without a list knows of nothing that is stray")
}

// The host end of a wire is in the result without a namespace, and the pod's end is the one
// that the addresses belong to. The plugins portmap and bandwidth look for that.
func TestARequestedAddressOfAMainADD(t *testing.T) {
	g := NewWithT(t)
	a, _ := newWirer(t)
	r := mainRequest("ADD", "c1")
	r.Wanted = []string{"10.1.5.77", "fd00:1:0:5::77"}
	reply, err := a.serve(r)
	g.Expect(err).NotTo(HaveOccurred())
	for i, want := range []string{"10.1.5.77", "fd00:1:0:5::77"} {
		p := netip.MustParsePrefix(reply.IPs[i].Address)
		g.Expect(p.Addr().String()).To(Equal(want))
		g.Expect(p.IsSingleIP()).To(BeTrue())
		g.Expect(reply.Interfaces[*reply.IPs[i].Interface].Sandbox).To(Equal("/run/netns/c1"))
	}
}
