// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
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
