// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/faulty"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// publisher is node a, ID 1, over a store that has its record.
type publisher struct {
	*nodesync.NodeSync
	g     Gomega
	store *faulty.Store
}

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	p := &publisher{g: NewWithT(t), store: faulty.New(mem.New())}
	t.Cleanup(func() { p.store.Close() })
	id, err := nodesync.Claim(t.Context(), p.store, who("a"))
	p.g.Expect(err).NotTo(HaveOccurred())
	p.NodeSync = nodesync.NewPlugin(nodesync.Deps{ServiceLabel: label("a"), Store: p.store, ID: id, Instance: "uuid-of-a"})
	p.resync()
	return p
}

// resync reads the records as they are in the store.
func (p *publisher) resync() {
	kube := controller.KubeStateData{kubestate.NodeRecords: {}}
	for key, m := range records(p.g, p.store) {
		kube[kubestate.NodeRecords][key] = m
	}
	p.g.Expect(p.Resync(&controller.DBResync{}, kube, 1, nil)).To(Succeed())
}

func (p *publisher) publish(addresses ...string) {
	var all []netip.Prefix
	for _, a := range addresses {
		all = append(all, netip.MustParsePrefix(a))
	}
	p.g.Expect(p.PublishNodeIPs(all)).To(Succeed())
}

func (p *publisher) own() *kv.NodeRecord { return records(p.g, p.store)[kv.NodeRecordKey(1)] }

func (p *publisher) rev(t *testing.T) int64 {
	_, rev, err := p.store.List(t.Context(), "")
	p.g.Expect(err).NotTo(HaveOccurred())
	return rev
}

func TestPublishingIsStaged(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	p.publish("192.168.16.1/24", "fd00:3::1/64")
	g.Expect(p.own().IpAddresses).To(BeEmpty(), "not before the commit")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24", "fd00:3::1/64"}))
	g.Expect(p.own().Instance).To(Equal("uuid-of-a"))
	g.Expect(p.own().Name).To(Equal("a"))
}

func TestPublishingIsUndone(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	p.publish("192.168.16.1/24")
	p.Undo()
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(BeEmpty())
}

// What the record says already is not written again, whatever the event.
func TestEqualAddressesAreNotWritten(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	p.publish("192.168.16.1/24")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	before := p.rev(t)
	g.Expect(p.Commit(t.Context())).To(Succeed(), "nothing is staged any more")
	for range 10 {
		p.resync()
		p.publish("192.168.16.1/24")
		g.Expect(p.Commit(t.Context())).To(Succeed())
	}
	g.Expect(p.rev(t)).To(Equal(before))
	p.publish("192.168.16.1/25")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/25"}), "the mask counts")
	p.resync()
	p.publish()
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(BeEmpty())
}

// The slice stays the caller's.
func TestPublishedAddressesAreCopied(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	all := []netip.Prefix{netip.MustParsePrefix("192.168.16.1/24")}
	g.Expect(p.PublishNodeIPs(all)).To(Succeed())
	all[0] = netip.MustParsePrefix("192.0.2.1/32")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
}

// A record that is not ours any more is left alone.
func TestPublishingIntoAnothersRecord(t *testing.T) {
	for name, spoil := range map[string]func(g Gomega, s kvdb.Store){
		"of another instance": func(g Gomega, s kvdb.Store) {
			put(g, s, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "b", Instance: "uuid-of-b"})
		},
		"gone": func(g Gomega, s kvdb.Store) {
			_, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.NodeRecordKey(1))})
			g.Expect(err).NotTo(HaveOccurred())
		},
		"unreadable": func(g Gomega, s kvdb.Store) {
			_, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(1), []byte{0xff})})
			g.Expect(err).NotTo(HaveOccurred())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			p := newPublisher(t)
			spoil(g, p.store)
			before := p.rev(t)
			p.publish("192.168.16.1/24")
			g.Expect(p.Commit(t.Context())).To(MatchError(ContainSubstring("node 1")))
			g.Expect(p.rev(t)).To(Equal(before))
			g.Expect(p.Commit(t.Context())).To(Succeed(), "a commit that failed has undone what was staged")
		})
	}
}

// thief changes the record between the read and the write of a commit.
type thief struct {
	kvdb.Store
	steal func()
}

func (t thief) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	x, found, err := t.Store.Get(ctx, key)
	t.steal()
	return x, found, err
}

func TestPublishingIsCompareAndSwap(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	between := &kv.NodeRecord{Id: 1, Name: "a", Instance: "uuid-of-a", Generation: 9}
	slow := thief{p.store, func() { put(g, p.store, kv.NodeRecordKey(1), between) }}
	p.Store = slow
	p.publish("192.168.16.1/24")
	g.Expect(p.Commit(t.Context())).To(MatchError(kvdb.ErrConditions))
	g.Expect(p.own().Generation).To(BeNumerically("==", 9))
	g.Expect(p.own().IpAddresses).To(BeEmpty())
}

func TestPublishingToAFaultyStore(t *testing.T) {
	for _, op := range []string{faulty.Get, faulty.Txn} {
		g := NewWithT(t)
		p := newPublisher(t)
		p.store.Reset(faulty.On(op, 1, faulty.Fail()))
		p.publish("192.168.16.1/24")
		g.Expect(p.Commit(t.Context())).To(MatchError(faulty.ErrInjected))
		p.store.Reset()
		g.Expect(p.own().IpAddresses).To(BeEmpty())
		p.publish("192.168.16.1/24")
		g.Expect(p.Commit(t.Context())).To(Succeed())
		g.Expect(p.own().IpAddresses).To(HaveLen(1))
	}
}
