// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// publisher is node a, ID 1, its plugin, and the store that has its record.
type publisher struct {
	*nodesync.NodeSync
	*node
	store *faulty.Store
}

// publishing runs a test over a publisher whose claimer runs too, in simulated time.
func publishing(t *testing.T, test func(t *testing.T, g Gomega, p *publisher)) {
	t.Helper()
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		p := &publisher{store: store, node: newNode(t, store, who("a"), newDisk()).confirm(t)}
		p.NodeSync = nodesync.NewPlugin(nodesync.Deps{ServiceLabel: label("a"), IDClaimer: p.IDClaimer})
		p.Use()
		p.resync(nil)
		p.run(t)
		test(t, g, p)
		p.stop()
	})
}

// resync gives the plugin the records as they are in the store, and a Node object.
func (p *publisher) resync(object *kv.Node) {
	kube := controller.KubeStateData{kubestate.NodeRecords: {}, kubestate.Nodes: {}}
	for id, m := range records(p.g, p.store) {
		kube[kubestate.NodeRecords][kv.NodeRecordKey(id)] = m
	}
	if object != nil {
		kube[kubestate.Nodes][kv.NodeKey(object.Name)] = object
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

// commit ends an event, and waits for what its end sets off.
func (p *publisher) commit(t *testing.T) {
	p.g.Expect(p.Commit(t.Context())).To(Succeed())
	synctest.Wait()
}

func (p *publisher) own() *kv.NodeRecord { return records(p.g, p.store)[1] }

// recordAt is the revision of the own record.
func (p *publisher) recordAt(t *testing.T) int64 {
	x, _, err := p.store.Get(t.Context(), kv.NodeRecordKey(1))
	p.g.Expect(err).NotTo(HaveOccurred())
	return x.ModRevision
}

func TestPublishingIsStaged(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.publish("192.168.16.1/24", "fd00:3::1/64")
		synctest.Wait()
		g.Expect(p.own().IpAddresses).To(BeEmpty(), "not before the commit")
		began := time.Now()
		p.commit(t)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24", "fd00:3::1/64"}))
		g.Expect(time.Since(began)).To(BeZero(), "at once, not with the next beat")
		g.Expect(
			p.own(),
		).To(
			And(HaveField("Instance", "uuid-of-a"), HaveField("Name", "a"), HaveField("Generation", uint64(1))),
		)
	})
}

// What a commit would change is told before, and nothing else is.
func TestWhatIsStagedIsTold(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		g.Expect(p.Staged()).To(BeEmpty())
		p.publish("192.168.16.1/24")
		g.Expect(p.Staged()).To(HaveExactElements(ContainSubstring("192.168.16.1/24")))
		p.commit(t)
		g.Expect(p.Staged()).To(BeEmpty())
		p.publish("192.168.16.1/24")
		g.Expect(p.Staged()).To(BeEmpty(), "it is said already")
		p.publish("192.168.16.2/24")
		p.Undo()
		g.Expect(p.Staged()).To(BeEmpty())
	})
}

// The subnets that a plugin publishes count, whatever the Node object says.
func TestPodSubnetsArePublished(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.resync(&kv.Node{Name: "a", Uid: "uid", PodCidrs: []string{"10.1.0.0/24"}})
		p.commit(t)
		g.Expect(p.own().PodCidrs).To(BeEmpty(), "the blocks of this node follow from its ID, not from its Node object")
		p.PublishPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/28")})
		g.Expect(p.Staged()).To(HaveExactElements(ContainSubstring("10.9.0.0/28")))
		p.commit(t)
		g.Expect(p.own().PodCidrs).To(Equal([]string{"10.9.0.0/28"}))
		p.PublishPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.9.0.16/28")})
		p.Undo()
		p.commit(t)
		g.Expect(p.own().PodCidrs).To(Equal([]string{"10.9.0.0/28"}))
		p.PublishPodCIDRs(nil)
		p.commit(t)
		g.Expect(p.own().PodCidrs).To(BeEmpty(), "it has none")
	})
}

func TestPublishingIsUndone(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.publish("192.168.16.1/24")
		p.Undo()
		p.commit(t)
		g.Expect(p.own().IpAddresses).To(BeEmpty())
	})
}

// An event commits whatever the store does; it is written when the store is back.
func TestACommitWaitsForNoStore(t *testing.T) {
	for name, plan := range map[string]faulty.Plan{"fails": away, "does not answer": silent} {
		t.Run(name, func(t *testing.T) {
			publishing(t, func(t *testing.T, g Gomega, p *publisher) {
				p.store.Reset(plan)
				began := time.Now()
				p.publish("192.168.16.1/24")
				p.PublishPools()
				p.commit(t)
				p.publish("192.168.16.2/24")
				p.commit(t)
				g.Expect(time.Since(began)).To(BeZero())
				time.Sleep(3 * refresh)
				p.stop() // a store that does not answer is being waited for
				p.store.Reset()
				g.Expect(p.own().IpAddresses).To(BeEmpty())
				p.confirm(t)
				g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.2/24"}))
			})
		})
	}
}

// At whichever step the store fails, what was published gets there.
func TestPublishingToAFaultyStore(t *testing.T) {
	for _, fault := range []faulty.Fault{faulty.Fail(), faulty.Tear(), faulty.FailWith(kvdb.ErrConditions)} {
		for k := 1; k <= 4; k++ {
			publishing(t, func(t *testing.T, g Gomega, p *publisher) {
				p.store.Reset(func(_ string, n int) faulty.Fault {
					if n <= k {
						return fault
					}
					return faulty.Fault{}
				})
				p.publish("192.168.16.1/24")
				p.commit(t)
				time.Sleep(time.Duration(k) * refresh)
				p.store.Reset()
				g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}), "%d faults", k)
				g.Expect(p.Problem()).To(BeEmpty())
			})
		}
	}
}

// What the record says already is not written again: all nodes watch it.
func TestEqualAddressesAreNotWritten(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.publish("192.168.16.1/24")
		p.commit(t)
		before, all := p.recordAt(t), revision(g, p.store)
		p.commit(t) // nothing is staged any more
		for range 10 {
			p.resync(nil)
			p.publish("192.168.16.1/24")
			p.commit(t)
		}
		g.Expect(revision(g, p.store)).To(Equal(all), "not even a beat")
		time.Sleep(time.Hour)
		g.Expect(p.recordAt(t)).To(Equal(before))
		p.publish("192.168.16.1/25")
		p.commit(t)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/25"}), "the mask counts")
		p.publish()
		p.commit(t)
		g.Expect(p.own().IpAddresses).To(BeEmpty())
	})
}

// The slice stays the caller's.
func TestPublishedAddressesAreCopied(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		all := []netip.Prefix{netip.MustParsePrefix("192.168.16.1/24")}
		g.Expect(p.PublishNodeIPs(all)).To(Succeed())
		all[0] = netip.MustParsePrefix("192.0.2.1/32")
		p.commit(t)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
	})
}

// The last word counts, within an event and over several, also while the store
// is away or the watch has brought nothing yet.
func TestPublishingIsTakenBack(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.publish("192.168.16.1/24")
		p.commit(t)
		p.publish("192.168.16.2/24")
		p.publish("192.168.16.1/24")
		p.commit(t)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
		p.store.Reset(away)
		for _, a := range []string{"192.168.16.2/24", "192.168.16.1/24"} {
			p.publish(a)
			p.commit(t)
		}
		p.store.Reset()
		time.Sleep(refresh)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
		p.store.Reset(faulty.On(faulty.Txn, 1, faulty.Tear())) // it may be there, or not
		p.publish("192.168.16.2/24")
		p.commit(t)
		p.publish("192.168.16.1/24")
		p.commit(t)
		time.Sleep(refresh)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
	})
}

// A restart publishes nothing before it knows better, and so takes nothing back.
func TestARestartKeepsWhatWasPublished(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.publish("192.168.16.1/24")
		p.commit(t)
		p.stop()
		next := newNode(t, p.store, again(who("a")), p.disk).confirm(t).run(t)
		time.Sleep(time.Hour)
		g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
		next.stop()
	})
}

// What was published is there again after the store was wiped.
func TestPublishedAddressesOutliveTheStore(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.resync(&kv.Node{Name: "a", Uid: "uid-1"})
		p.publish("192.168.16.1/24")
		p.commit(t)
		wipe(g, p.store)
		time.Sleep(refresh)
		g.Expect(
			p.own(),
		).To(
			And(
				HaveField("IpAddresses", []string{"192.168.16.1/24"}),
				HaveField("NodeUid", "uid-1"),
				HaveField("Generation", uint64(2)),
			),
		)
	})
}

// A record that is not ours any more is left alone.
func TestPublishingIntoAnothersRecord(t *testing.T) {
	for name, m := range map[string]*kv.NodeRecord{
		"of another instance":          {Id: 1, Name: "b", Instance: "uuid-of-b", Generation: 1},
		"of another one of this name":  {Id: 1, Name: "a", Instance: "new-uuid-of-a", Generation: 1},
		"of another one, later by far": {Id: 1, Name: "b", Instance: "uuid-of-b", Generation: 99},
	} {
		t.Run(name, func(t *testing.T) {
			publishing(t, func(t *testing.T, g Gomega, p *publisher) {
				put(g, p.store, kv.NodeRecordKey(1), m)
				before := p.recordAt(t)
				p.publish("192.168.16.1/24")
				p.commit(t)
				time.Sleep(time.Hour)
				g.Expect(p.recordAt(t)).To(Equal(before))
				g.Expect(p.Problem()).NotTo(BeEmpty())
			})
		})
	}
}

// What others write into the record meanwhile is not overwritten unread.
func TestPublishingIsCompareAndSwap(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		put(
			g,
			p.store,
			kv.NodeRecordKey(1),
			&kv.NodeRecord{Id: 1, Name: "a", Instance: "uuid-of-a", Generation: 9, NodeUid: "kept"},
		)
		p.publish("192.168.16.1/24")
		p.commit(t)
		g.Expect(
			p.own(),
		).To(
			And(
				HaveField("Generation", uint64(9)),
				HaveField("NodeUid", "kept"),
				HaveField("IpAddresses", []string{"192.168.16.1/24"}),
			),
		)
		g.Expect(p.Held()).To(Equal(nodesync.Held{ID: 1, Generation: 9}))
	})
}

// The UID of the Node object is noted, and nothing follows from it: neither
// another UID nor none moves an agent that is there.
func TestTheUIDOfANodeIsEvidenceOnly(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		for _, c := range []struct{ uid, want string }{{"uid-1", "uid-1"}, {"uid-2", "uid-2"}, {"", "uid-2"}} {
			p.resync(&kv.Node{Name: "a", Uid: c.uid})
			synctest.Wait()
			g.Expect(p.own()).To(And(HaveField("NodeUid", c.want), HaveField("Generation", uint64(1))))
			g.Expect(records(g, p.store)).To(HaveLen(1))
		}
		p.resync(nil)
		p.resync(&kv.Node{Name: "b", Uid: "of another node"})
		time.Sleep(refresh)
		g.Expect(p.own().NodeUid).To(Equal("uid-2"))
		ev := &controller.KubeStateChange{
			Key:      kv.NodeKey("a"),
			Resource: kubestate.Nodes,
			New:      &kv.Node{Name: "a", Uid: "uid-3"},
		}
		_, err := p.Update(ev, &txn{})
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		g.Expect(p.own().NodeUid).To(Equal("uid-3"), "also by a change")
		g.Expect(p.Problem()).To(BeEmpty())
		g.Expect(p.GetNodeID()).To(BeNumerically("==", 1))
	})
}

// A beat is due when what the node has of the pools has changed.
func TestPoolsArePublished(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.mu.Lock()
		p.uses = []*kv.PoolUse{{Pool: "blue", Leases: 7}}
		p.mu.Unlock()
		p.PublishPools()
		p.Undo()
		p.commit(t)
		g.Expect(beatOf(g, p.store, 1).Pools).To(BeEmpty())
		p.PublishPools()
		p.commit(t)
		g.Expect(beatOf(g, p.store, 1).Pools).To(HaveLen(1))
	})
}

// What a watch tells of the own record has it looked at, long before the next
// beat; what it tells of others does not.
func TestTheOwnRecordIsWatched(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*kv.NodeRecord)
		problem bool
	}{
		"released":    {func(m *kv.NodeRecord) { m.Released = 1 }, false},
		"taken":       {func(m *kv.NodeRecord) { m.Name, m.Instance, m.Generation = "b", "uuid-of-b", 2 }, true},
		"claimed too": {func(m *kv.NodeRecord) { m.Generation = 2 }, false},
		"superseded":  {func(m *kv.NodeRecord) { m.SupersededBy = 7 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			publishing(t, func(t *testing.T, g Gomega, p *publisher) {
				before := revision(g, p.store)
				other := &controller.KubeStateChange{
					Key:      kv.NodeRecordKey(2),
					Resource: kubestate.NodeRecords,
					New:      &kv.NodeRecord{Id: 2, Name: "c", Instance: "uuid-of-c"},
				}
				_, err := p.Update(other, &txn{})
				g.Expect(err).NotTo(HaveOccurred())
				synctest.Wait()
				g.Expect(revision(g, p.store)).To(Equal(before))

				was, now := p.own(), p.own()
				c.change(now)
				put(g, p.store, kv.NodeRecordKey(1), now)
				ev := &controller.KubeStateChange{
					Key:      kv.NodeRecordKey(1),
					Resource: kubestate.NodeRecords,
					Prev:     was,
					New:      now,
				}
				_, err = p.Update(ev, &txn{})
				g.Expect(err).NotTo(HaveOccurred())
				synctest.Wait()
				g.Expect(p.Problem() != "").To(Equal(c.problem), p.Problem())
				if !c.problem {
					g.Expect(
						p.own(),
					).To(
						And(
							HaveField("Instance", "uuid-of-a"),
							HaveField("Released", BeZero()),
							HaveField("SupersededBy", BeZero()),
							HaveField("Generation", uint64(2)),
						),
					)
				}
			})
		})
	}
}
