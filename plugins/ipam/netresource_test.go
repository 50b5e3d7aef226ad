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
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ipam/nodeset"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

const fromSet = "cadastre: {podBlocks: netresource, coolDown: 60s, kvdb: {type: kubernetes}, netResource: {minAllocate: 4, maxAllocate: 64, preAllocate: 8, maxAboveWatermark: 2}}"

// aSet is this node's NetResourceSet with a pool.
func aSet(keys ...string) *kv.NetResourceSet {
	m := &kv.NetResourceSet{Name: thisNode, Pool: map[string]*kv.NetResource{}}
	for _, k := range keys {
		m.Pool[k] = &kv.NetResource{Resource: "eni-1"}
	}
	return m
}

func setKey() string { return kv.NetResourceSetKey(thisNode) }

// setInState puts the set into the cluster's state.
func (n *node) setInState(m *kv.NetResourceSet) {
	n.put(kubestate.NetResourceSets, setKey(), m)
}

// setTo is a change of the set while the agent runs.
func (n *node) setTo(m *kv.NetResourceSet) []controller.Event {
	follow, err := n.update(n.becomes(m))
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	return follow
}

// becomes is the event that the set has changed.
func (n *node) becomes(m *kv.NetResourceSet) controller.Event {
	prev := n.kube[kubestate.NetResourceSets][setKey()]
	ev := &controller.KubeStateChange{Key: setKey(), Resource: kubestate.NetResourceSets, Revision: n.revision, Prev: prev}
	if m == nil {
		delete(n.kube[kubestate.NetResourceSets], setKey())
	} else {
		ev.New = m
		n.setInState(m)
	}
	return ev
}

// open returns the active blocks of the default network.
func (n *node) open() (all []string) {
	for _, b := range n.Ledger.Stats() {
		if b.Pool == ipam.PodPool && b.State == ledger.Active {
			all = append(all, b.Block.String())
		}
	}
	return all
}

func withSet(t *testing.T, m *kv.NetResourceSet) *node {
	t.Helper()
	n := newNode(t, fromSet, 5)
	if m != nil {
		n.setInState(m)
	}
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	return n
}

func TestPodsGetTheAddressesOfTheNetResourceSet(t *testing.T) {
	n := withSet(t, aSet("10.9.0.16/28", "10.9.0.0/28"))
	n.g.Expect(n.Pending()).To(BeEmpty())
	n.g.Expect(n.open()).To(Equal([]string{"10.9.0.0/28", "10.9.0.16/28"}))
	n.g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.9.0.0/28"))
	n.g.Expect(n.PodGatewayIP().String()).To(Equal("10.9.0.1"))
	for i := 2; i < 14; i++ { // .0, .1, .14 and .15 are reserved; the lowest block is filled first
		n.g.Expect(n.add(fmt.Sprint("pod", i))).To(Equal(fmt.Sprintf("10.9.0.%d", i)))
	}
	n.g.Expect(n.add("more")).To(Equal("10.9.0.18"))
	n.del("pod5")
	n.clock.now = n.clock.now.Add(2 * time.Minute) // it has cooled
	n.g.Expect(n.add("again")).To(Equal("10.9.0.5"))
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("10.9.0.18/28")).String()).To(Equal("10.9.0.17"))
	n.sound()
}

func TestSingleAddressesHaveTheLinkAsTheirGateway(t *testing.T) {
	n := withSet(t, aSet("10.9.0.7", "10.9.0.9"))
	n.g.Expect(n.Pending()).To(BeEmpty())
	n.g.Expect(n.PodSubnetThisNode()).To(BeNil())
	n.g.Expect([]string{n.add("a"), n.add("b")}).To(Equal([]string{"10.9.0.7", "10.9.0.9"}))
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("10.9.0.7/32")).String()).To(Equal("172.30.5.1"))
	_, err := n.update(add("c"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
}

// TestAllAddressesOfSmallBlocksAreAllocated has a block of four come and go beside one that
// has a gateway: allocation from either does not depend on the other.
func TestAllAddressesOfSmallBlocksAreAllocated(t *testing.T) {
	n := withSet(t, aSet("10.9.0.0/28"))
	n.setTo(aSet("10.9.0.0/28", "10.8.0.0/30"))
	n.g.Expect([]string{n.add("a"), n.add("b"), n.add("c"), n.add("d"), n.add("e")}).To(Equal([]string{"10.8.0.0", "10.8.0.1", "10.8.0.2", "10.8.0.3", "10.9.0.2"}))
	for _, edge := range []string{"10.9.0.0", "10.9.0.1", "10.9.0.14", "10.9.0.15"} {
		_, err := n.update(add("f", edge))
		n.g.Expect(err).To(HaveOccurred(), edge)
	}
	n.setTo(aSet("10.9.0.0/28"))
	n.g.Expect(n.add("b")).To(Equal("10.8.0.1"), "it is its")
	for i := range 11 {
		n.add(fmt.Sprint("g", i))
	}
	_, err := n.update(add("h"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	n.sound()
}

func TestWithoutASetNothingIsAllocatedAndTheReasonIsReported(t *testing.T) {
	n := withSet(t, nil)
	_, err := n.update(add("a"))
	n.g.Expect(err).To(MatchError(ContainSubstring("waiting for NetResourceSet node-a")))
	m := aSet()
	m.OperatorError = "no AddressPool has a free block"
	n.setTo(m)
	_, err = n.update(add("a"))
	n.g.Expect(err).To(MatchError(And(ContainSubstring("no addresses"), ContainSubstring("no AddressPool has a free block"))))
	follow := n.setTo(aSet("10.9.0.0/28"))
	n.g.Expect(follow).To(HaveLen(1))
	n.g.Expect(n.add("a")).To(Equal("10.9.0.2"))
	n.setTo(nil) // it is deleted: pods keep their addresses, and no new address is allocated
	_, err = n.update(add("b"))
	n.g.Expect(err).To(MatchError(ContainSubstring("waiting for NetResourceSet node-a")))
	n.g.Expect(n.add("a")).To(Equal("10.9.0.2"))
}

func TestAnUnusableBlockAffectsNoOther(t *testing.T) {
	m := aSet("10.9.0.0/28", "here", "10.9.1.1/28", "fd00:7::/112", "172.30.0.0/24", "10.9.0.4", "::ffff:10.9.0.1")
	n := withSet(t, m)
	n.g.Expect(n.open()).To(Equal([]string{"10.9.0.0/28"}))
	var texts []string
	for _, p := range n.Problems() {
		texts = append(texts, p.Object+": "+p.Text)
	}
	slices.Sort(texts)
	n.g.Expect(texts).To(HaveExactElements(
		Equal(`netresourceset/node-a: "10.9.0.4/32" lies within 10.9.0.0/28, and is left out`),
		Equal(`netresourceset/node-a: "10.9.1.1/28" has host bits set: 10.9.1.0/28 would be right`),
		ContainSubstring(`"172.30.0.0/24" cannot be used: 172.30.0.0/24 overlaps vppHostSubnetCIDR`),
		ContainSubstring(`"::ffff:10.9.0.1" is neither an address nor a block`),
		ContainSubstring(`"fd00:7::/112" is of a family that contiv.conf does not have`),
		ContainSubstring(`"here" is neither an address nor a block like 10.1.4.0/28`),
	))
}

// TestNoPartOfAReleasingBlockIsAllocated has keys that overlap: a node that gives a
// block back gives all of its addresses back.
func TestNoPartOfAReleasingBlockIsAllocated(t *testing.T) {
	for _, c := range []struct {
		what string
		pool []string
		back string
		open []string
	}{
		{"an address of it", []string{"10.9.0.0/28", "10.9.0.4", "10.9.0.40"}, "10.9.0.0/28", []string{"10.9.0.40/32"}},
		{"a block of it", []string{"10.9.0.0/28", "10.9.0.8/29"}, "10.9.0.0/28", nil},
		{"its first block", []string{"10.9.0.0/28", "10.9.0.0/29"}, "10.9.0.0/28", nil},
		{"itself, written otherwise", []string{"10.9.0.4/32", "10.9.0.4"}, "10.9.0.4", nil},
		{"what it is a part of", []string{"10.9.0.0/28", "10.9.0.4"}, "10.9.0.4", []string{"10.9.0.0/28"}},
	} {
		for _, state := range []handshake.State{handshake.Marked, handshake.Ready, handshake.Released} {
			m := aSet(c.pool...)
			m.Releases = map[string]string{c.back: string(state)}
			n := withSet(t, m)
			n.g.Expect(n.open()).To(Equal(c.open), "%s, %s", c.what, state)
		}
	}
}

func TestAnAgentStartsFromTheMirrorWithWhatItHadAndNoMore(t *testing.T) {
	n := withSet(t, aSet("10.9.0.0/28", "10.9.0.16/28"))
	n.add("a")
	marked := aSet("10.9.0.0/28", "10.9.0.16/28")
	marked.Releases = map[string]string{"10.9.0.16/28": string(handshake.Marked)}
	n.setTo(marked)
	n.g.Expect(n.open()).To(Equal([]string{"10.9.0.0/28"}))
	n.start(fromSet)
	n.setInState(aSet("10.9.0.0/28", "10.9.0.16/28")) // as it was before
	n.g.Expect(n.Resync(&controller.DBResync{Local: true, KubeState: n.kube}, n.kube, 1, newTxn())).To(Succeed())
	n.g.Expect(n.Stage.Commit(context.Background())).To(Succeed())
	n.g.Expect(n.open()).To(Equal([]string{"10.9.0.0/28"}), "the other one may have been reported as ready")
	n.g.Expect(n.add("b")).To(Equal("10.9.0.3"), "a restart needs no remote system")
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.open()).To(Equal([]string{"10.9.0.0/28", "10.9.0.16/28"}))
}

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
		r.g.Expect(r.missing()).To(BeTrue(), "there is no Node: it has left the cluster")
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

func TestAddressesGoBackOnlyWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28", "10.9.0.16/28"))
		r.add("a")
		marked := r.read()
		marked.Releases = map[string]string{"10.9.0.0/28": string(handshake.Marked), "10.9.0.16/28": string(handshake.Marked), "10.9.9.9": string(handshake.Marked)}
		r.write(marked)
		r.follow()
		r.g.Expect(r.read().Releases).To(Equal(map[string]string{
			"10.9.0.0/28": string(handshake.DoNotRelease), "10.9.0.16/28": string(handshake.Ready), "10.9.9.9": string(handshake.DoNotRelease),
		}))
		r.g.Expect(r.open()).To(Equal([]string{"10.9.0.0/28"}), "the refused one is active again")
		next := r.read() // the operator aborts one, and goes on with the other
		next.Releases = map[string]string{"10.9.0.16/28": string(handshake.Released)}
		r.write(next)
		r.follow()
		r.g.Expect(r.read().Releases).To(HaveLen(1))
		next = r.read()
		delete(next.Pool, "10.9.0.16/28")
		r.write(next)
		r.follow()
		r.g.Expect(r.read().Releases).To(BeEmpty(), "it is gone, so the report does not name it")
	})
}

func TestAnAddressOfAnActiveBlockIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28", "10.9.0.3", "10.9.0.16/28", "10.9.0.18"))
		r.add("a")
		marked := r.read()
		marked.Releases = map[string]string{"10.9.0.3": string(handshake.Marked), "10.9.0.18": string(handshake.Marked)}
		r.write(marked)
		r.follow()
		r.g.Expect(r.read().Releases).To(Equal(map[string]string{"10.9.0.3": string(handshake.DoNotRelease), "10.9.0.18": string(handshake.Marked)}))
		_, err := r.update(add("b", "10.9.0.18"))
		r.g.Expect(err).NotTo(HaveOccurred(), "its block is active")
	})
}

func TestAnAbortedReleaseActivatesTheBlockAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28"))
		m := r.read()
		m.Releases = map[string]string{"10.9.0.0/28": string(handshake.Marked)}
		r.write(m)
		r.follow()
		r.g.Expect(r.open()).To(BeEmpty())
		m = r.read()
		r.g.Expect(m.Releases).To(HaveKeyWithValue("10.9.0.0/28", string(handshake.Ready)))
		m.Releases = nil
		r.write(m)
		r.follow()
		r.g.Expect(r.open()).To(Equal([]string{"10.9.0.0/28"}))
		r.add("a")
	})
}

func TestABlockIsReadyOnlyAfterItsDrainIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.0/28", "10.9.0.16/28"))
		marked := r.read()
		marked.Releases = map[string]string{"10.9.0.0/28": string(handshake.Marked)}
		r.write(marked)
		r.fault = journal.Fail
		marked = r.read()
		r.g.Expect(r.process(r.becomes(marked))).NotTo(Succeed())
		r.fault = journal.None
		r.g.Expect(r.process(&podmanager.DeletePod{Key: key("x")})).To(Succeed(), "what comes next has nothing to do with it")
		time.Sleep(time.Minute)
		r.g.Expect(r.open()).To(ContainElement("10.9.0.0/28"), "it is active")
		r.g.Expect(r.read().Releases).To(HaveKeyWithValue("10.9.0.0/28", string(handshake.Marked)))
		r.g.Expect(r.resync()).To(Succeed(), "healing")
		r.g.Expect(r.Commit(t.Context())).To(Succeed())
		time.Sleep(time.Minute)
		r.g.Expect(r.open()).NotTo(ContainElement("10.9.0.0/28"))
		r.g.Expect(r.read().Releases).To(HaveKeyWithValue("10.9.0.0/28", string(handshake.Ready)))
	})
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

func TestPodsOfADrainingBlockStayReachable(t *testing.T) {
	n := withSet(t, aSet("10.9.0.0/28", "10.9.0.16/28", "10.9.0.40"))
	n.add("a")
	marked := aSet("10.9.0.0/28", "10.9.0.16/28", "10.9.0.40")
	marked.Releases = map[string]string{"10.9.0.0/28": string(handshake.Marked), "10.9.0.16/28": string(handshake.Marked)}
	n.setTo(marked)
	n.g.Expect(fmt.Sprint(n.nodes.cidrs)).To(Equal("[10.9.0.0/28]"), "the other nodes send to what a pod has")
	n.setTo(nil)
	n.g.Expect(fmt.Sprint(n.nodes.cidrs)).To(Equal("[10.9.0.0/28]"))
	n.del("a")
	n.setTo(aSet())
	n.g.Expect(n.nodes.cidrs).To(BeEmpty())
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

// TestACoolingAddressIsKept marks an address from which a pod has just gone: draining it
// would end its cool-down.
func TestACoolingAddressIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReporting(t, aSet("10.9.0.7", "10.9.0.9"))
		r.follow()
		r.add("a")
		r.del("a")
		r.follow()
		m := r.read()
		m.Releases = map[string]string{"10.9.0.7": string(handshake.Marked)}
		r.write(m)
		r.follow()
		r.g.Expect(r.read().Releases).To(HaveKeyWithValue("10.9.0.7", string(handshake.DoNotRelease)))
		r.g.Expect(r.leases(ledger.ForPod, ledger.Cooling)).To(Equal([]string{"10.9.0.7"}))
	})
}

// TestHandshakesOfARandomOperator has an operator that marks, aborts, releases
// and gives at random, whose provider gives to others what was released; no
// address is ever held that the provider has taken back.
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

// onUplink is a set whose blocks are prefixes of an interface.
func onUplink(keys ...string) *kv.NetResourceSet {
	m := aSet(keys...)
	m.Interfaces = map[string]*kv.NetResourceInterface{
		"eni-1": {Mac: "02:00:00:00:00:01", Ranges: []*kv.SubnetRange{{Cidr: "10.9.0.0/16", Gateway: "10.9.0.1"}}},
	}
	return m
}

// TestAllAddressesOfADelegatedPrefixAreAllocated: its subnet has the gateway, and the cloud routes each of its addresses to the interface.
func TestAllAddressesOfADelegatedPrefixAreAllocated(t *testing.T) {
	n := withSet(t, onUplink("10.9.0.16/28"))
	n.g.Expect(n.Pending()).To(BeEmpty())
	for i := range 16 {
		n.g.Expect(n.add(fmt.Sprint("pod", i))).To(Equal(fmt.Sprintf("10.9.0.%d", 16+i)))
	}
	_, err := n.update(add("more"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	n.g.Expect(n.PodSubnetThisNode()).To(BeNil())
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("10.9.0.16/28")).String()).To(Equal("172.30.5.1"))
	n.sound()

	n.setTo(onUplink("10.9.0.16/28", "10.9.0.32/28")) // beside one that is not of an interface
	m := onUplink("10.9.0.16/28", "10.9.0.32/28", "10.9.0.48/28")
	m.Pool["10.9.0.48/28"].Resource = ""
	n.setTo(m)
	for i := range 28 {
		n.add(fmt.Sprint("further", i))
	}
	_, err = n.update(add("more"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	for _, edge := range []string{"10.9.0.48", "10.9.0.49", "10.9.0.62", "10.9.0.63"} {
		_, err := n.update(add("edge", edge))
		n.g.Expect(err).To(HaveOccurred(), edge)
	}
	n.sound()
}

// TestABlockWithPodsKeepsItsGateway: pods have the gateway in their routes. A block becomes a delegated prefix, or is none any more, without its pods noticing it.
func TestABlockWithPodsKeepsItsGateway(t *testing.T) {
	n := withSet(t, aSet("10.9.0.16/28"))
	block := netip.MustParsePrefix("10.9.0.16/28")
	n.g.Expect(n.add("a")).To(Equal("10.9.0.18"))
	gateway := func() string { return n.BlockGateway(block).String() }
	for _, restart := range []bool{false, true} {
		if restart {
			n.start(fromSet)
			n.g.Expect(n.resync()).To(Succeed())
		}
		n.setTo(onUplink("10.9.0.16/28"))
		n.g.Expect(gateway()).To(Equal("10.9.0.17"))
		_, err := n.update(add("b", "10.9.0.17"))
		n.g.Expect(err).To(HaveOccurred())
		n.sound()
	}
	n.del("a")
	n.clock.now = n.clock.now.Add(time.Hour)
	n.setTo(onUplink("10.9.0.16/28", "10.9.7.7")) // the pods are gone
	n.g.Expect(gateway()).To(Equal("172.30.5.1"))
	for i := range 16 {
		n.g.Expect(n.add(fmt.Sprint("pod", i))).To(Equal(fmt.Sprintf("10.9.0.%d", 16+i)))
	}
	n.sound()
	for _, restart := range []bool{false, true} {
		n.setTo(aSet("10.9.0.16/28"))
		if restart {
			n.start(fromSet)
			n.g.Expect(n.resync()).To(Succeed())
		}
		n.g.Expect(gateway()).To(Equal("172.30.5.1"))
		n.g.Expect(n.add("pod1")).To(Equal("10.9.0.17"))
		n.sound()
	}
	for i := range 16 {
		n.del(fmt.Sprint("pod", i))
	}
	n.clock.now = n.clock.now.Add(time.Hour)
	n.setTo(aSet("10.9.0.16/28", "10.9.7.8"))
	n.g.Expect(gateway()).To(Equal("10.9.0.17"))
	n.setTo(aSet("10.9.0.16/28"))
	n.g.Expect(n.add("last")).To(Equal("10.9.0.18"))
	n.sound()
}

// TestAnInterfacesModeKeepsTheGatewaysOfPods: podBlocks changes while pods run.
func TestAnInterfacesModeKeepsTheGatewaysOfPods(t *testing.T) {
	n := withSet(t, aSet("192.168.77.16/28"))
	n.g.Expect(n.add("a")).To(Equal("192.168.77.18"))
	n.start("cadastre: {podBlocks: interfaces, coolDown: 60s}")
	n.g.Expect(n.resyncWith(&controller.DBResync{})).To(Succeed())
	gives := func(blocks ...string) {
		g := datastore.Grant{}
		for _, b := range blocks {
			g.Blocks = append(g.Blocks, datastore.GrantedBlock{Prefix: netip.MustParsePrefix(b), Interface: "eni-1", Usable: true})
		}
		ev := &ipam.InterfaceChange{Grant: g, Uplinks: []ipam.Uplink{{Interface: "eni-1"}}, OnDone: func(error) {}}
		_, err := n.update(ev)
		n.g.Expect(err).NotTo(HaveOccurred())
	}
	gives("192.168.77.16/28", "192.168.77.32/28")
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("192.168.77.16/28")).String()).To(Equal("192.168.77.17"))
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("192.168.77.32/28")).String()).To(Equal("172.30.5.1"))
	for _, edge := range []string{"192.168.77.16", "192.168.77.17", "192.168.77.30", "192.168.77.31"} {
		_, err := n.update(add("edge", edge))
		n.g.Expect(err).To(HaveOccurred(), edge)
	}
	for i := range 11 + 16 {
		n.add(fmt.Sprint("pod", i))
	}
	_, err := n.update(add("more"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	n.sound()
}
