// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package library

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A caller that has gone gets no answer: not a new address, not the one that it has, and not
// the success of a release of nothing.
func TestACancelledContextIsRefused(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	l, err := ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	pool, key := ledger.Pool{Name: "p"}, ledger.Key{Network: "n", ContainerID: "held"}
	grants, blocks := ipam.NewDirectGranter(l), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	g.Expect(grants.Grant(ctx, pool, blocks)).To(Succeed())
	held, _, err := l.Claim(ctx, ledger.Request{Pool: "p", Key: key})
	g.Expect(err).NotTo(HaveOccurred())
	free := netip.MustParseAddr("10.0.0.99")

	m, err := ipam.New(ctx, ipam.Deps{Name: "node-a", Config: newDaemon("crd"), Ledger: l})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(m.Update(ctx, newDaemon("crd").set)).To(Succeed())
	ds := datastore.New(datastore.Options{})
	g.Expect(ds.AddENI("eni-1", 0, true, false)).To(Succeed())
	g.Expect(ds.AddIPv4AddressToStore("eni-1", "10.0.0.10")).To(Succeed())
	assigned, err := ds.Assign(ctx, containerKey("a"), datastore.IPAMMetadata{}, ledger.IPv4)
	g.Expect(err).NotTo(HaveOccurred())
	d, err := ipamapi.New(ctx, ipamapi.Deps{Ledger: l})
	g.Expect(err).NotTo(HaveOccurred())
	docker, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault"})
	g.Expect(err).NotTo(HaveOccurred())
	pods := podmanager.NewPlugin(podmanager.Deps{Ledger: l, EventLoop: nowhere{}})

	gone := errors.New("the caller has gone")
	cancel(gone)
	before := l.Leases()
	for name, call := range map[string]func() error{
		"ledger: claim": func() error {
			_, _, err := l.Claim(ctx, ledger.Request{Pool: "p", Key: ledger.Key{Network: "x"}})
			return err
		},
		"ledger: repeated claim": func() error { _, _, err := l.Claim(ctx, ledger.Request{Pool: "p", Key: key}); return err },
		"ledger: claim of one": func() error {
			_, _, err := l.ClaimAddr(ctx, &ledger.Request{Pool: "p", Key: key, Families: []ledger.Family{ledger.IPv4}})
			return err
		},
		"ledger: release":         func() error { _, err := l.Release(ctx, ledger.Selector{Key: key}); return err },
		"ledger: release nothing": func() error { _, err := l.Release(ctx, ledger.Selector{Key: ledger.Key{Network: "x"}}); return err },
		"ledger: free":            func() error { _, err := l.Free(ctx, ledger.Selector{Key: key}); return err },
		"ledger: free nothing":    func() error { _, err := l.Free(ctx, ledger.Selector{Key: ledger.Key{Network: "x"}}); return err },
		"ledger: free a key":      func() error { _, _, err := l.FreeKey(ctx, ledger.Key{Network: "x"}); return err },
		"ledger: exclude":         func() error { return l.Exclude(ctx, ledger.Exclusion{Pool: "p", Addr: free}) },
		"ledger: readmit":         func() error { return l.Readmit(ctx, "p", free) },
		"ledger: cool":            func() error { return l.Cool(ctx, "p", free, 0) },
		"ledger: move":            func() error { return l.Move(ctx, "p", "p", held[0].Addr) },
		"ledger: start an expiry": func() error {
			return l.StartExpiry(ctx, ledger.Selector{Key: key}, ledger.Expiry{Token: "t", After: time.Hour})
		},
		"ledger: stop an expiry": func() error { return l.StopExpiry(ctx, ledger.Selector{Key: key}, "t") },
		"manager: make": func() error {
			_, err := ipam.New(ctx, ipam.Deps{Config: newDaemon("kubernetes"), Node: newDaemon("kubernetes")})
			return err
		},
		"manager: ready":       func() error { return m.Ready(ctx) },
		"manager: update":      func() error { return m.Update(ctx, newDaemon("crd").set) },
		"manager: exclude":     func() error { return m.Exclude(ctx, netip.MustParseAddr("10.0.1.7"), "me", "") },
		"manager: readmit":     func() error { return m.Readmit(ctx, free) },
		"manager: review":      func() error { _, err := m.Review(ctx); return err },
		"manager: grant again": func() error { return grants.Grant(ctx, pool, blocks) },
		"datastore: assign": func() error {
			_, err := ds.Assign(ctx, containerKey("b"), datastore.IPAMMetadata{}, ledger.IPv4)
			return err
		},
		"datastore: assign again": func() error {
			_, err := ds.Assign(ctx, containerKey("a"), datastore.IPAMMetadata{}, ledger.IPv4)
			return err
		},
		"datastore: unassign":      func() error { _, err := ds.Unassign(ctx, containerKey("a")); return err },
		"datastore: unassign none": func() error { _, err := ds.Unassign(ctx, containerKey("b")); return err },
		"docker: make":             func() error { _, err := ipamapi.New(ctx, ipamapi.Deps{Ledger: l}); return err },
		"docker: end a pool":       func() error { _, err := d.EndPool(ctx, docker.PoolID, true); return err },
		"docker: keep a pool":      func() error { return d.KeepPool(ctx, docker.PoolID) },
		"docker: observe":          func() error { return d.Observe(ctx, ipamapi.Observation{}) },
		"docker: reclaim":          func() error { _, err := d.Reclaim(ctx, held[0], ""); return err },
		"docker: change no pools":  func() error { return ipamapi.NewDirectPools(l).Change(ctx, ipamapi.PoolChange{}) },
		"podmanager: ADD":          func() error { _, err := pods.Serve(ctx, cniRequest("ADD", "c1")); return err },
		"podmanager: DEL":          func() error { _, err := pods.Serve(ctx, cniRequest("DEL", "c1")); return err },
		"podmanager: reclaim":      func() error { _, err := pods.Reclaim(ctx, held[0], ""); return err },
	} {
		err := call()
		g.Expect(err).To(HaveOccurred(), name)
		var cerr *cni.Error
		g.Expect(errors.Is(err, gone) || errors.Is(err, context.Canceled) || errors.As(err, &cerr)).To(BeTrue(), "%s: %v", name, err)
		g.Expect(l.Leases()).To(Equal(before), name)
	}
	g.Expect(ds.AllocatedIPs()).To(HaveLen(1))
	g.Expect(ds.AllocatedIPs()[0].IP).To(Equal(assigned.Addr.String()))
	g.Expect(d.Pools()).To(HaveLen(1))
}

// nowhere is an event loop that has no room: who pushes an event waits for the context.
type nowhere struct{}

func (nowhere) PushEvent(controller.Event) error { return controller.ErrEventQueueFull }
func (nowhere) PushEventWait(ctx context.Context, _ controller.Event) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func cniRequest(command, container string) cni.Request {
	return cni.Request{Command: command, Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container}
}

// A podmanager without a logger logs nothing, as the other plugins.
func TestAPodManagerWithoutALogger(t *testing.T) {
	g := NewWithT(t)
	l, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	pods := podmanager.NewPlugin(podmanager.Deps{Ledger: l, EventLoop: nowhere{}})
	bad := cniRequest("ADD", "c1")
	bad.IfName = "a name that is too long for the kernel"
	_, err = pods.Serve(t.Context(), bad)
	g.Expect(err).To(MatchError(ContainSubstring("15 bytes are the most")), "a refusal is logged")
}
