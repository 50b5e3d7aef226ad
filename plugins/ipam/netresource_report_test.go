// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// reporting runs a Reporter over a store that has the node's set, in simulated time.
type reporting struct {
	*node
	t         *testing.T
	store     kvdb.Store
	delivered int64 // revision that the loop has seen
}

func newReporting(t *testing.T, m *kv.NetResourceSet) *reporting {
	n := newNode(t, fromSet, 5)
	n.live = true
	n.start(fromSet)
	r := &reporting{node: n, t: t, store: mem.New()}
	t.Cleanup(func() { _ = r.store.Close() })
	r.write(m)
	n.setInState(r.read())
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Commit(t.Context())).To(Succeed())
	r.delivered = n.revision
	r.report(r.store)
	return r
}

// report runs a Reporter over a store.
func (r *reporting) report(store kvdb.Store) {
	reporter := nodeset.NewReporter(nodeset.ReporterDeps{
		Log: slog.New(slog.DiscardHandler), Node: thisNode, Allocator: r.Allocator(), Store: store, Now: time.Now,
	})
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- reporter.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		r.g.Expect(<-ended).To(Succeed())
	})
}

// write writes the set as the operator does.
func (r *reporting) write(m *kv.NetResourceSet) { r.put(setKey(), m) }

// put writes into the store.
func (r *reporting) put(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	r.g.Expect(err).NotTo(HaveOccurred())
	_, err = r.store.Txn(r.t.Context(), nil, []kvdb.Op{kvdb.Put(key, value)})
	r.g.Expect(err).NotTo(HaveOccurred())
}

func (r *reporting) delete(key string) {
	_, err := r.store.Txn(r.t.Context(), nil, []kvdb.Op{kvdb.Delete(key)})
	r.g.Expect(err).NotTo(HaveOccurred())
}

// missing reports whether the store has no set.
func (r *reporting) missing() bool {
	_, found, err := r.store.Get(r.t.Context(), setKey())
	r.g.Expect(err).NotTo(HaveOccurred())
	return !found
}

// read returns the set in the store.
func (r *reporting) read() *kv.NetResourceSet {
	x, _, err := r.store.Get(r.t.Context(), setKey())
	r.g.Expect(err).NotTo(HaveOccurred())
	m := &kv.NetResourceSet{}
	r.g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
	r.revision = x.ModRevision
	return m
}

// deliver hands the store's set to the loop, if it has not seen it.
func (r *reporting) deliver() {
	if is := r.read(); r.revision != r.delivered {
		r.setTo(is)
		r.delivered = r.revision
	}
}

// follow hands the store's set to the loop until nothing changes any more.
func (r *reporting) follow() {
	for range 20 {
		r.deliver()
		time.Sleep(time.Second)
		synctest.Wait()
	}
}

func TestTheFirstSetHasTheBlocksInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28", "10.9.0.16/28", "10.9.0.40"))
		r.add("a")
		r.delete(setKey())
		time.Sleep(time.Minute)
		r.g.Expect(r.missing()).To(BeTrue(), "the loop may still allocate: the held addresses are not known yet")
		r.add("b")
		r.setTo(nil)
		time.Sleep(time.Minute)
		r.g.Expect(r.missing()).To(BeTrue(), "the Node is gone: it has left the cluster")
		r.put(kv.NodeKey(thisNode), &kv.Node{Name: thisNode})
		time.Sleep(time.Minute)
		want := &kv.NetResourceSet{
			Name: thisNode, Pool: map[string]*kv.NetResource{"10.9.0.0/28": {}},
			Marks: &kv.NetResourceMarks{MinAllocate: 4, MaxAllocate: 64, PreAllocate: 8, MaxAboveWatermark: 2},
		}
		r.g.Expect(proto.Equal(r.read(), want)).To(BeTrue(), "%v", r.read())
		r.follow()
		r.g.Expect(r.add("c")).To(Equal("10.9.0.4"))
	})
}

// The loop receives late a set that was created and deleted, and would allocate from it.
func TestTheNextSetIsCreatedAfterTheLoopHasSeenTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28", "10.9.0.16/28"))
		r.put(kv.NodeKey(thisNode), &kv.Node{Name: thisNode})
		r.add("a")
		r.delete(setKey())
		r.revision += 2
		r.setTo(nil)
		time.Sleep(time.Minute)
		made := r.read()
		r.g.Expect(made.Pool).To(HaveLen(1))
		r.del("a")
		time.Sleep(2 * time.Minute) // it has cooled: a set that is made now claims nothing
		r.delete(setKey())
		time.Sleep(time.Minute)
		r.g.Expect(r.missing()).To(BeTrue(), "the loop has still to hear of the other one")
		r.setTo(made)
		r.add("b")
		r.revision += 2
		r.setTo(nil)
		time.Sleep(time.Minute)
		r.g.Expect(r.read().Pool).To(HaveKey("10.9.0.0/28"), "of which b has an address")
	})
}

func TestUsedAddressesAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28", "10.9.0.16/28", "10.9.0.40"))
		r.follow()
		r.g.Expect(r.read().Used).To(BeEmpty(), "the gateway alone does not count as use")
		r.add("a")
		r.follow()
		used := r.read().Used
		r.g.Expect(slices.Sorted(maps.Keys(used))).To(Equal([]string{"10.9.0.0", "10.9.0.1", "10.9.0.14", "10.9.0.15", "10.9.0.2"}))
		r.g.Expect(used["10.9.0.2"]).To(And(HaveField("Owner", "default/a"), HaveField("Resource", "eni-1")))
		r.g.Expect(used["10.9.0.1"].Owner).To(Equal("cadastre/gateway"))
		r.del("a")
		r.follow()
		r.g.Expect(r.read().Used["10.9.0.2"].Owner).To(Equal("default/a (cooling)"))
		time.Sleep(time.Minute)
		r.follow()
		r.g.Expect(r.read().Used).To(BeEmpty(), "it has cooled")
	})
}

func TestANewSetNamesTheMachine(t *testing.T) {
	for conf, want := range map[string]string{
		fromSet: "i-0abc",
		strings.Replace(fromSet, "coolDown", "instanceID: i-1, coolDown", 1): "i-1",
	} {
		n := newNode(t, conf, 5)
		node := &kv.Node{Name: thisNode, ProviderId: "aws:///eu-west-1a/i-0abc"}
		n.g.Expect(n.Allocator().First(node).InstanceId).To(Equal(want))
		n.g.Expect(n.Allocator().First(&kv.Node{Name: thisNode, ProviderId: "i-2"}).InstanceId).NotTo(Equal("i-2"), "not a provider ID")
	}
}

// TestAReportIsWrittenOnlyToTheVersionThatTheLoopHasSeen has a loop that is behind: what
// was marked, and is marked again, was active in between.
func TestAReportIsWrittenOnlyToTheVersionThatTheLoopHasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28"))
		marked := r.read()
		marked.Releases = map[string]string{"10.9.0.0/28": string(handshake.Marked)}
		r.write(marked)
		r.deliver()
		time.Sleep(time.Minute)
		r.g.Expect(r.read().Releases).To(HaveKeyWithValue("10.9.0.0/28", string(handshake.Ready)))
		r.write(aSet("10.9.0.0/28"))
		aborted := r.read()
		r.write(marked)
		time.Sleep(time.Minute)
		r.g.Expect(r.read().Releases).To(HaveKeyWithValue("10.9.0.0/28", string(handshake.Marked)), "the loop has not seen that it is marked again")
		r.setTo(aborted)
		r.add("a")
		r.follow()
		r.g.Expect(r.read().Releases).To(HaveKeyWithValue("10.9.0.0/28", string(handshake.DoNotRelease)))
	})
}

// TestAFailingStoreGetsNoRequestForEveryPod has a store that answers nothing and
// pods that come and go, each of which is a commit of the loop.
func TestAFailingStoreGetsNoRequestForEveryPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28"))
		r.follow()
		down := &downStore{Store: r.store}
		r.report(down)
		for i := range 600 {
			r.add(fmt.Sprint("pod", i))
			r.g.Expect(r.Commit(t.Context())).To(Succeed())
			r.del(fmt.Sprint("pod", i))
			r.g.Expect(r.Commit(t.Context())).To(Succeed())
			time.Sleep(100 * time.Millisecond)
		}
		r.g.Expect(down.asked.Load()).To(BeNumerically("<", 20), "in a minute")
	})
}

// downStore is a store that does not answer.
type downStore struct {
	kvdb.Store
	asked atomic.Int64
}

func (d *downStore) Get(context.Context, string) (kvdb.KeyValue, bool, error) {
	d.asked.Add(1)
	return kvdb.KeyValue{}, false, errors.New("connection refused")
}

func TestALeasedAddressThatLeftThePoolIsReportedWithItsInterface(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.7", "10.9.0.9"))
		r.follow()
		r.add("a")
		r.follow()
		m := r.read()
		delete(m.Pool, "10.9.0.7")
		r.write(m)
		r.follow()
		r.add("b") // a further report
		r.follow()
		r.g.Expect(r.read().Used).To(HaveLen(2))
		r.g.Expect(r.read().Used["10.9.0.7"].Resource).To(Equal("eni-1"))
	})
}

// TestHandshakesOfARandomOperator has an operator that marks, aborts, releases and gives
// at random. Its provider gives to others what was released. No address is ever held that
// the provider has taken back.
func TestHandshakesOfARandomOperator(t *testing.T) {
	released := 0
	for seed := range uint64(45) {
		synctest.Test(t, func(t *testing.T) {
			r := newReporting(t, aSet("10.9.0.0/29", "10.9.0.8/29", "10.9.0.16", "10.9.0.17"))
			rng, pods := rand.New(rand.NewPCG(seed, 5)), map[string]bool{}
			taken := map[string]bool{} // by the provider
			for range 300 {
				switch rng.IntN(6) {
				case 0, 1:
					name := fmt.Sprint("pod", rng.IntN(12))
					if ev := add(name); !pods[name] {
						if _, err := r.update(ev); err == nil {
							pods[name] = true
						}
					}
				case 2:
					name := fmt.Sprint("pod", rng.IntN(12))
					r.del(name)
					delete(pods, name)
				case 3:
					r.deliver()
				case 4:
					released += r.operate(rng, taken)
				case 5:
					time.Sleep(time.Duration(rng.IntN(40)) * time.Second)
				}
				r.g.Expect(r.Commit(t.Context())).To(Succeed())
				synctest.Wait()
				for _, l := range r.Ledger.Leases() {
					for key := range taken {
						p, err := netip.ParsePrefix(key)
						if err != nil {
							p = netip.PrefixFrom(netip.MustParseAddr(key), 32)
						}
						r.g.Expect(l.Pool == ipam.PodPool && l.Purpose == ledger.ForPod && p.Contains(l.Addr)).To(BeFalse(), "seed %d: %s is held and %s was taken back", seed, l.Addr, key)
					}
				}
			}
		})
	}
	NewWithT(t).Expect(released).To(BeNumerically(">", 30), "otherwise nothing was tried")
}

// operate is one step of the operator over one key; 1 where it took one back.
func (r *reporting) operate(rng *rand.Rand, taken map[string]bool) int {
	m, took := r.read(), 0
	keys := []string{"10.9.0.0/29", "10.9.0.8/29", "10.9.0.16", "10.9.0.17"}
	key := keys[rng.IntN(len(keys))]
	entry := handshake.State(m.Releases[key])
	want := handshake.Want{Excess: rng.IntN(2) == 0, Needed: rng.IntN(4) == 0, Gone: taken[key]}
	if m.Releases == nil {
		m.Releases = map[string]string{}
	}
	switch next := handshake.Decide(entry, want); {
	case m.Pool[key] == nil && entry == handshake.None: // it is given again
		if rng.IntN(3) == 0 {
			delete(taken, key)
			m.Pool[key] = &kv.NetResource{Resource: "eni-1"}
		}
	case next == handshake.None:
		delete(m.Releases, key)
	case handshake.Call(next, want) && entry == handshake.Released: // what was written before
		taken[key], took = true, 1
	case taken[key]:
		delete(m.Pool, key)
	default:
		m.Releases[key] = string(next)
	}
	r.write(m)
	return took
}
