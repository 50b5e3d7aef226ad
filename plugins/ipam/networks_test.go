// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// change is a change of the cluster's state, as the loop brings it; nil deletes.
func (n *node) change(key string, m proto.Message) (follow []controller.Event) {
	r, _ := kv.ResourceOf(key)
	ev := &controller.KubeStateChange{Key: key, Resource: r.Name, Prev: n.kube[r.Name][key], New: m}
	n.put(r.Name, key, m)
	if m == nil {
		delete(n.kube[r.Name], key)
	}
	follow, err := n.update(ev)
	n.g.Expect(err).NotTo(HaveOccurred())
	return follow
}

// pools changes pools, one after the other.
func (n *node) pools(all ...*kv.Pool) {
	for _, m := range all {
		n.change(kv.PoolKey(m.Name), m)
	}
}

// of gives a pod's container an address of a pool.
func (n *node) of(pool, name string) (string, error) {
	ev := add(name)
	ev.Pool, ev.Key.Network = pool, pool
	if _, err := n.update(ev); err != nil {
		return "", err
	}
	var all []string
	for _, a := range ev.Addresses {
		all = append(all, a.String())
	}
	return strings.Join(all, ","), nil
}

func (n *node) mustOf(pool, name string) string {
	a, err := n.of(pool, name)
	n.g.Expect(err).NotTo(HaveOccurred())
	return a
}

// blocks are the ledger's of all pod networks: "default 10.1.5.0/24".
func (n *node) granted() (open, drain []string) {
	for _, b := range n.Ledger.Stats() {
		line := b.Pool + " " + b.Block.String()
		switch {
		case b.Pool == ipam.HostPool:
		case b.State == ledger.Active:
			open = append(open, line)
		default:
			drain = append(drain, line)
		}
	}
	return open, drain
}

// has expects these blocks; those that drain are behind "|".
func (n *node) has(want ...string) {
	open, drain := n.granted()
	got := append(open, "|")
	n.g.Expect(append(got, drain...)).To(Equal(want))
}

// troubles are the problems, "pool/a: text".
func (n *node) troubles() (all []string) {
	for _, p := range n.Problems() {
		all = append(all, p.Object+": "+p.Text)
	}
	return all
}

// pods are the addresses of all pods, by container.
func (n *node) pods() map[string]string {
	all := map[string]string{}
	for _, l := range n.Ledger.Leases() {
		if l.Purpose == ledger.ForPod && l.State == ledger.Held {
			all[l.Key.String()] += l.Addr.String() + " "
		}
	}
	return all
}

// Growing and resizing, step by step: live pods keep their addresses.
func TestTheLifeOfPools(t *testing.T) {
	n := running(t, defaults, 5)
	n.has("default 10.1.5.0/24", "|")
	first := n.add("p1")
	n.g.Expect(first).To(Equal("10.1.5.2"))

	n.pools(firstPool())
	n.has("default 10.1.5.0/24", "|")
	n.pools(aPool("pods-2", 1, "10.2.0.0/16 23")) // grows
	n.has("default 10.1.5.0/24", "default 10.2.10.0/23", "|")
	n.g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.5.0/24"), "the first pool is the node's")
	n.pools(draining(aPool("default", 2, "10.1.0.0/16 24")))
	n.has("default 10.2.10.0/23", "|", "default 10.1.5.0/24")
	n.g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.2.10.0/23"))
	n.g.Expect(n.PodSubnetAllNodes().String()).To(Equal("10.2.0.0/16"))
	n.g.Expect(n.PodGatewayIP().String()).To(Equal("10.2.10.1"))
	n.g.Expect(n.NatLoopbackIP().String()).To(Equal("10.2.11.254"))
	other, err := n.PodSubnetOtherNode(7)
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(other.String()).To(Equal("10.2.14.0/23"))
	for i := range 20 {
		n.g.Expect(n.add(fmt.Sprint("q", i))).To(HavePrefix("10.2."), "nothing new of what drains")
	}
	n.g.Expect(n.add("p1")).To(Equal(first), "repeated")
	_, err = n.update(add("r1", "10.1.5.77"))
	n.g.Expect(err).To(MatchError(ledger.ErrOutside), "not by name either")

	n.pools(aPool("default", 3, "10.1.0.0/16 24")) // and back
	n.has("default 10.1.5.0/24", "default 10.2.10.0/23", "|")
	_, err = n.update(add("r1", "10.1.5.77"))
	n.g.Expect(err).NotTo(HaveOccurred())
	n.pools(draining(aPool("pods-2", 2, "10.2.0.0/16 23")), draining(aPool("default", 4, "10.1.0.0/16 24")), aPool("pods-3", 1, "10.3.0.0/16 26"))
	n.has("default 10.3.1.64/26", "|", "default 10.1.5.0/24", "default 10.2.10.0/23")
	n.del("p1")
	n.del("r1")
	n.clock.now = n.clock.now.Add(time.Hour)
	n.Ledger.Stats() // what has cooled is free
	n.g.Expect(n.resync()).To(Succeed())
	n.has("default 10.3.1.64/26", "|", "default 10.2.10.0/23")
	n.pools(removed(aPool("default", 5, "10.1.0.0/16 24")))
	n.has("default 10.3.1.64/26", "|", "default 10.2.10.0/23")
	for i := range 20 {
		n.del(fmt.Sprint("q", i))
	}
	n.clock.now = n.clock.now.Add(time.Hour)
	n.Ledger.Stats()
	n.pools(removed(aPool("pods-2", 3, "10.2.0.0/16 23")))
	n.has("default 10.3.1.64/26", "|")
	n.g.Expect(n.troubles()).To(BeEmpty())
	n.sound()
}

// A custom network has a pool of its own, which opens and drains while
// everything else goes on; pods ask for it by name.
func TestTheLifeOfACustomNetwork(t *testing.T) {
	n := running(t, defaults, 5)
	n.change(kv.PoolKey("default"), firstPool())
	n.add("p1")
	_, err := n.of("blue", "b0")
	n.g.Expect(err).To(MatchError(ledger.ErrNoPool))
	n.g.Expect(err).To(MatchError(ContainSubstring("pods have default")))
	before := n.Nodes()

	n.change(kv.CustomNetworkKey("blue"), blue())
	n.has("default 10.1.5.0/24", "|")
	follow := n.change(kv.PoolKey("blue"), bluePool(1))
	n.g.Expect(follow).To(HaveLen(1))
	n.g.Expect(follow[0].String()).To(Equal("Pod Network Change\n* cluster/pool/blue blue: 10.5.5.0/24 opens"))
	n.has("blue 10.5.5.0/24", "default 10.1.5.0/24", "|")
	n.g.Expect(n.mustOf("blue", "b1")).To(Equal("10.5.5.2/24"))
	n.g.Expect(n.mustOf("blue", "b1")).To(Equal("10.5.5.2/24"), "repeated")
	ev := add("b1")
	ev.Key.Network = "blue" // without naming the pool
	_, err = n.update(ev)
	n.g.Expect(err).To(MatchError(ledger.ErrKeyHeld))
	for _, own := range []string{"10.5.5.1", "10.5.5.254", "10.5.5.0", "10.5.5.255", "10.1.5.9"} {
		ev := add("b9", own)
		ev.Pool = "blue"
		_, err := n.update(ev)
		n.g.Expect(err).To(HaveOccurred(), own)
	}
	for _, name := range []string{ipam.HostPool, "", "infra/blue", "green"} {
		_, err := n.of(name, "b2")
		n.g.Expect(err).To(MatchError(ledger.ErrNoPool), name)
	}

	n.change(kv.CustomNetworkKey("blue"), nil)
	n.change(kv.PoolKey("blue"), deletedPool(2))
	n.has("default 10.1.5.0/24", "|", "blue 10.5.5.0/24")
	n.g.Expect(n.mustOf("blue", "b1")).To(Equal("10.5.5.2/24"), "it stays the pod's")
	_, err = n.of("blue", "b3")
	n.g.Expect(err).To(MatchError(ledger.ErrNoBlock))
	n.change(kv.CustomNetworkKey("blue"), blue())
	n.change(kv.PoolKey("blue"), bluePool(3))
	n.g.Expect(n.mustOf("blue", "b3")).To(Equal("10.5.5.3/24"))
	n.g.Expect(n.Nodes()).To(Equal(before), "of the node itself nothing has changed")
	n.g.Expect(n.pods()).To(HaveLen(3))
	n.g.Expect(n.troubles()).To(BeEmpty())
	n.sound()
}

// A custom network can have more pools than its own, and both families.
func TestPoolsOfACustomNetwork(t *testing.T) {
	n := running(t, dual, 5)
	n.pools(in("blue", aPool("blue-a", 1, "10.5.0.0/16 24", "fd00:5::/48 64")), in("blue", aPool("blue-b", 1, "10.6.0.0/16 29")))
	n.g.Expect(n.mustOf("blue", "b1")).To(Equal("10.5.5.2/24,fd00:5:0:5::2/64"))
	n.pools(draining(in("blue", aPool("blue-a", 2, "10.5.0.0/16 24", "fd00:5::/48 64"))))
	n.has("blue 10.6.0.40/29", "default 10.1.5.0/24", "default fd00:1:0:5::/64", "|", "blue 10.5.5.0/24", "blue fd00:5:0:5::/64")
	n.g.Expect(n.mustOf("blue", "b2")).To(Equal("10.6.0.42/29"), "of the families that are left")
	for i := range 3 {
		n.mustOf("blue", fmt.Sprint("b", i+3))
	}
	_, err := n.of("blue", "b9")
	n.g.Expect(err).To(MatchError(ContainSubstring("blue")))
	n.g.Expect(n.Pending()).To(BeEmpty())
	n.g.Expect(n.add("p1")).To(Equal("10.1.5.2"))
}

// A family that has no pool any more: no pod gets an address of one family only.
func TestAFamilyWithoutAPool(t *testing.T) {
	n := running(t, dual, 5)
	before := n.mustOf("default", "p1")
	n.g.Expect(before).To(Equal("10.1.5.2/24,fd00:1:0:5::2/64"))
	n.pools(draining(aPool("default", 2, "10.1.0.0/16 24", "fd00:1::/48 64")), aPool("pods-2", 1, "10.2.0.0/16 24"))
	n.g.Expect(n.Pending()).To(ContainSubstring("no pool of network default has a block of the family"))
	_, err := n.of("default", "p2")
	n.g.Expect(err).To(MatchError(ContainSubstring("no pool of network default")))
	n.g.Expect(n.mustOf("default", "p1")).To(Equal(before))
	n.pools(aPool("pods-6", 1, "fd00:6::/48 64"))
	n.g.Expect(n.Pending()).To(BeEmpty())
	n.g.Expect(n.mustOf("default", "p2")).To(Equal("10.2.5.2/24,fd00:6:0:5::2/64"))
}

// A definition that disappears from the store was lost, not removed: the pool
// stays as it was, also through a resync.
func TestADefinitionThatDisappears(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(firstPool(), aPool("pods-2", 1, "10.2.0.0/16 24"), bluePool(1), draining(aPool("old", 2, "10.3.0.0/16 24")))
	before, drain := n.granted()
	all := n.Pools()
	for _, name := range []string{"default", "pods-2", "blue", "old"} {
		n.change(kv.PoolKey(name), nil)
	}
	n.g.Expect(n.resync()).To(Succeed())
	open, drained := n.granted()
	n.g.Expect(open).To(Equal(before))
	n.g.Expect(drained).To(Equal(drain))
	n.g.Expect(n.Pools()).To(Equal(all))
	n.mustOf("blue", "b1")
	n.pools(aPool("pods-2", 0, "10.2.0.0/16 24"), firstPool()) // invalid, and older
	n.g.Expect(n.Pools()).To(Equal(all))
}

// A store that came back older does not take back what this node has followed.
func TestAnOlderDefinition(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(draining(aPool("default", 4, "10.1.0.0/16 24")), aPool("pods-2", 1, "10.2.0.0/16 24"), firstPool())
	n.has("default 10.2.5.0/24", "|")
	n.g.Expect(n.resync()).To(Succeed())
	n.has("default 10.2.5.0/24", "|")
}

// contiv.conf gives the first value only; a difference is reported.
func TestPoolsPrecedeTheConfiguration(t *testing.T) {
	n := newNode(t, "ipamConfig: {podSubnetCIDR: 10.9.0.0/16, podSubnetOneNodePrefixLen: 25}", 5)
	n.put(kubestate.Pools, kv.PoolKey("default"), firstPool())
	n.g.Expect(n.resync()).To(Succeed())
	n.has("default 10.1.5.0/24", "|")
	n.g.Expect(n.PodSubnetAllNodes().String()).To(Equal("10.1.0.0/16"))
	n.g.Expect(n.ConfigDiffers()).To(Equal("contiv.conf has podSubnetCIDR 10.9.0.0/16 (a /25 for each node), but the cluster has pool default with 10.1.0.0/16 (a /24 for each node), " +
		"and the cluster's pools count: write the ranges of one of them into contiv.conf, or change the pools with cadastre apply"))
	n.start(defaults)
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.ConfigDiffers()).To(BeEmpty())
	n.pools(draining(aPool("default", 2, "10.1.0.0/16 24")))
	n.g.Expect(n.ConfigDiffers()).To(BeEmpty(), "the first half of a change")
	n.pools(aPool("pods-2", 1, "10.9.0.0/16 25"), draining(aPool("default", 2, "10.1.0.0/16 24")))
	n.g.Expect(n.ConfigDiffers()).To(ContainSubstring("podSubnetCIDR 10.1.0.0/16 (a /24 for each node), but the cluster has pool pods-2 with 10.9.0.0/16"))
	n = running(t, "ipamConfig: {podSubnetCIDR: 10.9.0.0/16}", 5) // nothing is stored yet
	n.has("default 10.9.5.0/24", "|")
	n.g.Expect(n.ConfigDiffers()).To(BeEmpty())
}

// A node that does not fit a custom network has no block of it, and all other blocks.
func TestANodeThatDoesNotFitACustomNetwork(t *testing.T) {
	n := running(t, defaults, 200)
	n.pools(firstPool(), in("blue", aPool("blue", 1, "10.5.0.0/20 24")), in("red", aPool("red", 1, "10.6.0.0/16 24")))
	n.has("default 10.1.200.0/24", "red 10.6.200.0/24", "|")
	n.g.Expect(n.troubles()).To(ConsistOf(HavePrefix("network/blue: pool blue: prefix of node 200")))
	_, err := n.of("blue", "b1")
	n.g.Expect(err).To(HaveOccurred())
	n.mustOf("red", "r1")
	n.add("p1")
}

// If blocks are not computed from the node ID, the pools of the pods' network
// do not count; custom networks are as everywhere.
func TestPoolsWithExternalIPAM(t *testing.T) {
	for _, c := range []struct{ name, conf, subnet string }{
		{"podCIDR", external, "10.1.77.0/25"},
		{"static", "cadastre: {podBlocks: static, staticPodCIDRs: [10.1.77.0/25]}", "10.1.77.0/25"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, c.conf, 5)
			n.podCIDRs("10.1.77.0/25")
			n.g.Expect(n.resync()).To(Succeed())
			n.pools(aPool("default", 1, "10.1.0.0/16 24"), aPool("pods-2", 1, "10.2.0.0/16 24"), bluePool(1))
			n.has("blue 10.5.5.0/24", "default 10.1.77.0/25", "|")
			n.g.Expect(n.add("p1")).To(Equal("10.1.77.2"))
			n.g.Expect(n.mustOf("blue", "b1")).To(Equal("10.5.5.2/24"))
			n.pools(deletedPool(2), draining(aPool("default", 2, "10.1.0.0/16 24")))
			n.has("default 10.1.77.0/25", "|", "blue 10.5.5.0/24")
			n.g.Expect(n.PodSubnetThisNode().String()).To(Equal(c.subnet))
			n.g.Expect(n.resync()).To(Succeed())
			n.has("default 10.1.77.0/25", "|", "blue 10.5.5.0/24")
			n.change(kv.CustomNetworkKey("red"), aNetwork("red", "10.1.0.0/20", 24))
			n.g.Expect(n.troubles()).To(ConsistOf(And(HavePrefix("network/red: "), ContainSubstring("overlaps podSubnetCIDR, 10.1.0.0/16"))))
		})
	}
}

// What other nodes have of all networks, also what drains.
func TestBlocksOfOtherNodes(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(draining(aPool("default", 2, "10.1.0.0/16 24")), aPool("pods-2", 1, "10.2.0.0/16 23"), bluePool(1), removed(in("red", aPool("red", 3, "10.6.0.0/16 24"))),
		in("tiny", aPool("tiny", 1, "10.7.0.0/28 29")))
	n.g.Expect(fmt.Sprint(n.BlocksOf(&nodesync.Node{ID: 7}))).To(Equal("[10.5.7.0/24 10.2.14.0/23 10.1.7.0/24]"))
	n.g.Expect(fmt.Sprint(n.BlocksOf(&nodesync.Node{ID: 2}))).To(Equal("[10.5.2.0/24 10.2.4.0/23 10.1.2.0/24 10.7.0.0/29]"))
	n.g.Expect(n.BlocksOf(&nodesync.Node{})).To(BeEmpty())
	n.g.Expect(n.BlocksOf(nil)).To(BeEmpty())
}

// A change without an effect has no follow-up.
func TestChangesThatChangeNothing(t *testing.T) {
	n := running(t, defaults, 5)
	n.g.Expect(n.change(kv.PoolKey("default"), firstPool())).To(BeEmpty(), "as it was taken to be")
	n.g.Expect(n.change(kv.CustomNetworkKey("blue"), blue())).To(BeEmpty())
	n.g.Expect(n.change(kv.PoolKey("blue"), bluePool(1))).To(HaveLen(1))
	n.g.Expect(n.change(kv.PoolKey("blue"), bluePool(1))).To(BeEmpty())
	n.g.Expect(n.change(kv.PoolKey("blue"), nil)).To(BeEmpty())
	n.g.Expect(n.change(kv.PoolKey("bad"), aPool("bad", 0))).To(BeEmpty())
	n.g.Expect(n.change(kv.PoolKey("blue"), deletedPool(2))).To(HaveLen(1))
	n.g.Expect(n.change(kv.PoolKey("blue"), removed(deletedPool(3)))).To(HaveLen(1), "other nodes do not have it any more")
	_, err := n.of("blue", "b1")
	n.g.Expect(err).To(MatchError(ledger.ErrNoPool))
	commits := n.journal.Commits()
	n.change(kv.PoolKey("blue"), removed(deletedPool(3)))
	n.g.Expect(n.journal.Commits()).To(Equal(commits))
}

// counting is a nodesync that counts the calls of PublishPools.
type counting struct {
	*nodes
	calls int
}

func (t *counting) PublishPools() { t.calls++ }

// A node publishes its use of pools after each change of a pool, and each resync.
func TestUseOfPoolsIsPublished(t *testing.T) {
	n := running(t, defaults, 5)
	to := &counting{nodes: n.nodes}
	n.NodeSync = to
	n.pools(firstPool(), bluePool(1))
	n.g.Expect(to.calls).To(Equal(2))
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(to.calls).To(Equal(3))
}

// A reader gets the state before or after a change of pools, never a mixture.
func TestReadingWhilePoolsChange(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(firstPool(), aPool("pods-2", 1, "10.2.0.0/16 23"))
	done, asked := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(asked)
		for {
			select {
			case <-done:
				return
			default:
			}
			subnet, gateway := n.Nodes()[0].PodSubnet, n.Nodes()[0].PodGateway
			if node := n.Nodes()[0]; !node.PodSubnet.Contains(node.PodGateway) || !subnet.IsValid() || !gateway.IsValid() {
				asked <- fmt.Errorf("%s is not of %s", node.PodGateway, node.PodSubnet)
				return
			}
			n.PoolUses()
			n.Problems()
			n.PodSubnetAllNodes()
		}
	}()
	for i := range uint64(100) {
		n.pools(draining(aPool("default", 2*i+2, "10.1.0.0/16 24")), aPool("default", 2*i+3, "10.1.0.0/16 24"))
	}
	close(done)
	n.g.Expect(<-asked).NotTo(HaveOccurred())
}

// A pool that drains and whose last lease is gone can be used again.
func TestReactivationOfAnEmptyPool(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(firstPool(), aPool("pods-2", 1, "10.2.0.0/16 24"), draining(aPool("default", 2, "10.1.0.0/16 24")))
	n.has("default 10.2.5.0/24", "|")
	n.pools(aPool("default", 3, "10.1.0.0/16 24"), draining(aPool("pods-2", 2, "10.2.0.0/16 24")))
	n.has("default 10.1.5.0/24", "|")
	n.g.Expect(n.add("p1")).To(HavePrefix("10.1.5."))
	n.sound()
}

// An address that drains is the pod's also through a restart.
func TestDrainingThroughARestart(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(firstPool(), bluePool(1))
	first, second := n.add("p1"), n.mustOf("blue", "b1")
	n.pools(aPool("pods-2", 1, "10.2.0.0/16 24"), draining(aPool("default", 2, "10.1.0.0/16 24")), deletedPool(2))
	n.start(defaults)
	n.g.Expect(n.resync()).To(Succeed())
	n.has("default 10.2.5.0/24", "|", "blue 10.5.5.0/24", "default 10.1.5.0/24")
	n.g.Expect(n.add("p1")).To(Equal(first))
	n.g.Expect(n.mustOf("blue", "b1")).To(Equal(second))
	n.pools(in("red", aPool("red", 1, "10.6.0.0/16 24")))
	n.start(defaults) // and where nothing of the pools is known: they drain
	n.kube = controller.KubeStateData{}
	n.put(kubestate.Pools, kv.PoolKey("pods-2"), aPool("pods-2", 1, "10.2.0.0/16 24"))
	n.g.Expect(n.resync()).To(Succeed())
	n.has("default 10.2.5.0/24", "|", "blue 10.5.5.0/24", "default 10.1.5.0/24")
	_, err := n.of("red", "r1")
	n.g.Expect(err).To(MatchError(ledger.ErrNoPool))
	n.sound()
}

// Two networks' attachments of one container are two leases.
func TestOneContainerInTwoNetworks(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(bluePool(1))
	n.mustOf("blue", "c1")
	n.mustOf("default", "c1")
	n.g.Expect(n.pods()).To(HaveLen(2))
	_, err := n.update(&podmanager.DeletePod{Key: ledger.Key{Network: "blue", ContainerID: "c1", IfName: "eth0"}})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.pods()).To(HaveLen(1))
}

// good is a cluster in which all is well.
func good() controller.KubeStateData { return stored(firstPool(), blue(), bluePool(1)) }

// One bad object is reported on that object, whether it comes as a change or in
// a snapshot, and harms nothing else; when it is gone, all is well.
func TestBadObjects(t *testing.T) {
	pool := func(m *kv.Pool) *kv.Pool { m.Name = "bad"; return m }
	network := func(cidr string, n uint32) *kv.CustomNetwork { return aNetwork("bad", cidr, n) }
	for _, c := range []struct {
		name string
		key  string
		bad  proto.Message
		want string
	}{
		{"a pool without a generation", kv.PoolKey("bad"), aPool("bad", 0, "10.2.0.0/16 24"), "pool/bad: stored pool \"bad\": generation"},
		{"a pool of nothing", kv.PoolKey("bad"), aPool("bad", 1), "pool/bad: stored pool \"bad\": ranges"},
		{"a pool of no network", kv.PoolKey("bad"), pool(aPool("", 1, "10.2.0.0/99 24")), "pool/bad: stored pool \"bad\": ranges[0].cidr"},
		{"a pool with host bits", kv.PoolKey("bad"), aPool("bad", 1, "10.2.0.1/16 24"), "pool/bad: stored pool \"bad\": ranges[0].cidr"},
		{"a pool cut too small", kv.PoolKey("bad"), aPool("bad", 1, "10.2.0.0/16 31"), "pool/bad: stored pool \"bad\": ranges[0].oneNodePrefixLen"},
		{"a pool without a name", kv.PoolKey(""), aPool("", 1, "10.2.0.0/16 24"), "pool/: stored pool \"\": name"},
		{"a pool of the node's link", kv.PoolKey("bad"), in(ipam.HostPool, aPool("bad", 1, "10.2.0.0/16 24")), "pool/bad: network \"vpphost\" is this node's own link"},
		{"a pool under another name", kv.PoolKey("bad"), removed(aPool("default", 99, "10.1.0.0/16 24")), "pool/bad: it is named \"default\", which belongs at pool/default"},
		{"a pool under another name, of the same generation", kv.PoolKey("a"), draining(aPool("default", 1, "10.1.0.0/16 24")), "pool/a: it is named \"default\""},
		{"a network of no network", kv.CustomNetworkKey("bad"), network("10.2.0.0", 24), "network/bad: custom network \"bad\": subnetCIDR"},
		{"a network without a length", kv.CustomNetworkKey("bad"), network("10.2.0.0/16", 0), "network/bad: custom network \"bad\": subnetOneNodePrefixLen"},
		{"a network named as the pods'", kv.CustomNetworkKey("default"), aNetwork("default", "10.2.0.0/16", 24), "network/default: custom network \"default\": name"},
		{"a network named as the node's link", kv.CustomNetworkKey("vpphost"), aNetwork("vpphost", "10.2.0.0/16", 24), "network/vpphost: network \"vpphost\" is this node's own link"},
		{"a network under another name", kv.CustomNetworkKey("bad"), blue(), "network/bad: it is named \"blue\", which belongs at network/blue"},
		{"a network that overlaps the pods'", kv.CustomNetworkKey("bad"), network("10.1.0.0/20", 24), "network/bad: ranges[0].cidr: \"10.1.0.0/20\" overlaps pool default, 10.1.0.0/16"},
		{"a network that overlaps another one", kv.CustomNetworkKey("bad"), network("10.5.0.0/20", 24), "network/bad: ranges[0].cidr: \"10.5.0.0/20\" overlaps pool blue, 10.5.0.0/16"},
		{"a network that overlaps the services", kv.CustomNetworkKey("bad"), network("10.96.0.0/16", 24), "network/bad: ranges[0].cidr: \"10.96.0.0/16\" overlaps serviceCIDR, 10.96.0.0/12"},
		{"a network that overlaps the links", kv.CustomNetworkKey("bad"), network("172.30.0.0/17", 24), "network/bad: ranges[0].cidr: \"172.30.0.0/17\" overlaps vppHostSubnetCIDR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, defaults, 5)
			n.kube = good()
			n.g.Expect(n.resync()).To(Succeed())
			well := func(when string) {
				n.g.Expect(n.troubles()).To(BeEmpty(), when)
				n.has("blue 10.5.5.0/24", "default 10.1.5.0/24", "|")
			}
			well("before")
			pools := n.Pools()
			ill := func(when string) {
				n.g.Expect(n.troubles()).To(ConsistOf(HavePrefix(c.want)), when)
				n.has("blue 10.5.5.0/24", "default 10.1.5.0/24", "|")
				n.g.Expect(n.Pools()).To(Equal(pools), when)
				n.g.Expect(n.Pending()).To(BeEmpty())
				n.add("p-" + when)
				n.mustOf("blue", "b-"+when)
			}
			n.change(c.key, c.bad)
			ill("changed")
			n.g.Expect(n.resync()).To(Succeed())
			ill("resynced")
			n.change(c.key, nil)
			well("after")
			if r, _ := kv.ResourceOf(c.key); r.Name == kubestate.CustomNetworks && strings.HasSuffix(c.key, "/bad") {
				n.change(c.key, c.bad)
				n.change(c.key, network("10.6.0.0/16", 24)) // it is made good
				well("made good")
				n.change(c.key, nil)
			}
			n.change(c.key, c.bad)
			n.put(kubestate.Pools, c.key, c.bad)
			for _, resource := range n.kube {
				delete(resource, c.key)
			}
			n.g.Expect(n.resync()).To(Succeed())
			well("after a resync without it")
		})
	}
}

// A bad pool that is made good is a pool.
func TestAnInvalidPoolIsCorrected(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(firstPool(), aPool("pods-2", 0, "10.2.0.0/16 24"))
	n.g.Expect(n.troubles()).To(HaveLen(1))
	n.pools(aPool("pods-2", 1, "10.2.0.0/16 24"))
	n.g.Expect(n.troubles()).To(BeEmpty())
	n.has("default 10.1.5.0/24", "default 10.2.5.0/24", "|")
	n.pools(aPool("pods-2", 2, "10.2.0.0/16 99")) // and bad again: it stays what it was
	n.g.Expect(n.troubles()).To(HaveLen(1))
	n.has("default 10.1.5.0/24", "default 10.2.5.0/24", "|")
}

// A custom network that differs from its pool is reported.
func TestACustomNetworkThatIsNotItsPool(t *testing.T) {
	for _, c := range []struct {
		name string
		pool *kv.Pool
		want string
	}{
		{"it is", bluePool(1), ""},
		{"it drains on request", draining(bluePool(2)), ""},
		{"it was cut otherwise", in("blue", aPool("blue", 1, "10.5.0.0/16 25")), "network/blue: it says pool blue of network blue: 10.5.0.0/16 cut in /24"},
		{"it was removed", removed(bluePool(3)), "network/blue: its pool was removed, and a removed pool does not come back: choose another name"},
		{"it is of another network", aPool("blue", 1, "10.5.0.0/16 24"), "network/blue: its name is that of pool blue of network default"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := running(t, defaults, 5)
			n.pools(firstPool(), c.pool)
			n.change(kv.CustomNetworkKey("blue"), blue())
			for _, when := range []string{"changed", "resynced"} {
				want := BeEmpty()
				if c.want != "" {
					want = ConsistOf(HavePrefix(c.want))
				}
				n.g.Expect(n.troubles()).To(want, when)
				n.g.Expect(n.resync()).To(Succeed())
			}
			n.add("p1")
		})
	}
}

// Pools that overlap although none may: nothing more is allocated from either, and leases
// stay. A custom network does not stop the pods' network.
func TestPoolsThatOverlap(t *testing.T) {
	n := running(t, defaults, 5)
	n.pools(firstPool(), aPool("pods-2", 1, "10.2.0.0/16 24"))
	first := n.add("p1")
	n.pools(aPool("pods-3", 1, "10.1.0.0/17 24"))
	n.has("default 10.2.5.0/24", "|", "default 10.1.5.0/24")
	n.g.Expect(n.troubles()).To(ConsistOf(HavePrefix("network/default: pool default: 10.1.0.0/16 overlaps pool pods-3"), HavePrefix("network/default: pool pods-3: 10.1.0.0/17 overlaps pool default")))
	n.g.Expect(n.add("p1")).To(Equal(first))
	n.g.Expect(n.add("p2")).To(HavePrefix("10.2.5."))
	n.pools(in("red", aPool("red", 1, "10.2.0.0/16 24"))) // which Admit would refuse
	n.has("default 10.2.5.0/24", "|", "default 10.1.5.0/24")
	n.g.Expect(n.add("p3")).To(HavePrefix("10.2.5."))
	_, err := n.of("red", "r1")
	n.g.Expect(err).To(HaveOccurred())
	n.pools(removed(aPool("pods-3", 3, "10.1.0.0/17 24")))
	n.has("default 10.1.5.0/24", "default 10.2.5.0/24", "|")
	n.g.Expect(n.troubles()).To(ConsistOf(HavePrefix("network/red: pool red: 10.2.0.0/16 overlaps pool pods-2")))
	n.sound()
}
