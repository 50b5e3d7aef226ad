// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/internal/testkit/generated"
	"github.com/cadastre/cadastre/ledger"
)

func at(clock string) time.Time {
	t, err := time.Parse(time.DateTime, "2026-11-23 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func web(n int) ledger.Pod { return ledger.Pod{Namespace: "default", Name: fmt.Sprint("web-", n)} }

func key(n int) ledger.Key {
	return ledger.Key{Network: "pods", ContainerID: fmt.Sprintf("%012x", n), IfName: "eth0"}
}

// node returns a node with one block of each family that has room.
func node() *explain.Node {
	return &explain.Node{
		Now: at("14:10:00"), Name: "node-5", ID: 5, PodBlocks: "nodeid",
		Pools: []ledger.Pool{{Name: "default", CoolDown: time.Minute}},
		Blocks: []ledger.BlockStat{
			{Pool: "default", Family: ledger.IPv4, Block: netip.MustParsePrefix("10.1.5.0/24"), Size: 256, Free: 200, Held: 52, Infra: 2, Reserved: 2},
			{Pool: "default", Family: ledger.IPv6, Block: netip.MustParsePrefix("fd00:0:0:5::/64"), Size: 1 << 63, Free: 1 << 62, Held: 52, Infra: 2, Reserved: 2},
		},
	}
}

func lease(n int, a string, since string, change ...func(*ledger.Lease)) ledger.Lease {
	l := ledger.Lease{
		Addr: ip(a), Block: netip.MustParsePrefix("10.1.5.0/24"), Pool: "default", Key: key(n), Pod: web(n),
		Since: at(since), Generation: uint64(n),
	}
	for _, f := range change {
		f(&l)
	}
	return l
}

func in(s ledger.State) func(*ledger.Lease) { return func(l *ledger.Lease) { l.State = s } }

// entry returns an entry of the history of lease n.
func entry(n int, clock string, a ledger.Action, addr string, change ...func(*ledger.HistoryEntry)) ledger.HistoryEntry {
	e := ledger.HistoryEntry{
		Time: at(clock), Action: a, Pool: "default", Addr: ip(addr), Block: netip.MustParsePrefix("10.1.5.0/24"),
		Key: key(n), Pod: web(n), Generation: uint64(n),
	}
	for _, f := range change {
		f(&e)
	}
	return e
}

func since(clock string) func(*ledger.HistoryEntry) {
	return func(e *ledger.HistoryEntry) { e.Since = at(clock) }
}

func by(number uint64, name, reason string) func(*ledger.HistoryEntry) {
	return func(e *ledger.HistoryEntry) { e.Event, e.EventName, e.Reason = number, name, reason }
}

func failed(number uint64, clock, text string) controller.Record {
	return controller.Record{
		SeqNum: number, Name: "Add Pod", ProcessingStart: at(clock), ProcessingEnd: at(clock), Error: "ipam: Add Pod: " + text,
		Handlers: []controller.HandlerRecord{{Handler: "podmanager"}, {Handler: "ipam", Error: text}},
		Subject:  controller.Subject{Pod: "default/web-9", Pool: "default"},
	}
}

// fullNode has a full block, one that drains, and a claim that is pending.
func fullNode() *explain.Node {
	n := node()
	n.PodBlocks = "podcidr"
	n.Blocks = []ledger.BlockStat{
		{Pool: "default", Block: netip.MustParsePrefix("10.1.4.0/24"), State: ledger.Draining, Size: 256, Held: 7, Infra: 2, Reserved: 2},
		{Pool: "default", Block: netip.MustParsePrefix("10.1.5.0/24"), Size: 256, Held: 250, Infra: 2, Quarantined: 1, Reserved: 3},
	}
	n.Leases = []ledger.Lease{
		lease(3, "10.1.4.9", "14:09:30", in(ledger.Cooling), func(l *ledger.Lease) { l.Block = netip.MustParsePrefix("10.1.4.0/24") }),
		lease(4, "10.1.5.9", "11:00:00", in(ledger.Quarantined), func(l *ledger.Lease) {
			l.Reason = "kernel: link eth0 of /run/netns/x has 10.1.5.9"
		}),
	}
	n.Exclusions = []ledger.Exclusion{{Pool: "default", Addr: ip("10.1.5.7"), Owner: "ops", Reason: "a printer has it"}}
	n.Claims = []explain.Claim{
		{Prefix: netip.MustParsePrefix("10.1.5.0/24"), Held: true},
		{Prefix: netip.MustParsePrefix("10.1.77.0/24"), Since: at("14:00:00"), Reason: "node a holds it until 14:20:00"},
	}
	return n
}

// TestScenarios compares the text of each scenario with a file. make generate writes
// the files.
func TestScenarios(t *testing.T) {
	held := []ledger.HistoryEntry{entry(7, "14:00:00", ledger.Claimed, "10.1.5.7", by(17, "Add Pod", ""))}
	released := append([]ledger.HistoryEntry{
		entry(7, "14:08:00", ledger.Released, "10.1.5.7", since("14:00:00"), by(31, "Delete Pod", "CNI DEL")),
	}, held...)
	reused := append([]ledger.HistoryEntry{entry(8, "14:09:30", ledger.Claimed, "10.1.5.7", by(40, "Add Pod", ""))}, released...)
	oldest := at("09:00:00")
	const noAddress = `claim in pool "default" for default/web-9: no IP address is free in pool "default" (ipv4)`
	suspended := node()
	suspended.Suspended = "the database came back older than it was; see what would be forgotten with cadastre accept"
	suspended.NotReady = suspended.Suspended
	waiting := node()
	waiting.Blocks, waiting.NotReady = nil, "waiting for Node.spec.podCIDRs of node node-5"
	waiting.PodBlocks = "podcidr"
	pending := lease(7, "10.1.5.7", "14:00:00", in(ledger.Pending))
	pending.Expiry = ledger.Expiry{Token: "reclaim", After: 10 * time.Minute}
	noPorts := node()
	noPorts.NoHostPorts = "/opt/cni/bin/portmap does not exist"
	wired := func(l *ledger.Lease) { l.Wired = true }
	kube := node()
	kube.Kubernetes = true
	byHand := append([]ledger.HistoryEntry{
		entry(7, "14:08:00", ledger.Released, "10.1.5.7", since("14:00:00"), by(31, "Release Leases", "released by hand")),
	}, held...)
	diskFull := node()
	diskFull.StateDir = "/var/lib/cadastre"
	diskFull.NotReady = "a commit to the database failed: write /var/lib/cadastre/cadastre.db: no space left on device"
	meets := func(kubernetes bool) *explain.Node {
		n := node()
		n.Kubernetes = kubernetes
		n.Peers = []explain.Peer{
			{Name: "node-6", ID: 6, Addr: ip("10.200.2.6"), Seen: at("14:09:58"), Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.6.0/24")}},
			{Name: "node-7", ID: 7, Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.7.0/24")}},
		}
		return n
	}
	with := func(n *explain.Node, leases ...ledger.Lease) *explain.Node { n.Leases = leases; return n }

	duplicate := explain.Pod(with(node(), lease(7, "10.1.5.7", "14:00:00")), web(7), &explain.Past{History: held})
	duplicate.Conclude([]explain.Finding{
		{Number: "C204", Text: "10.1.5.7 is on links of two network namespaces", Fix: "end the user that the lease does not name"},
	})

	for name, tree := range map[string]*explain.Tree{
		"pod-has-an-address":     explain.Pod(with(node(), lease(7, "10.1.5.7", "14:00:00")), web(7), &explain.Past{History: held}),
		"pod-without-host-ports": explain.Pod(with(noPorts, lease(7, "10.1.5.7", "14:00:00", wired)), web(7), &explain.Past{}),
		"pod-on-a-full-node": explain.Pod(fullNode(), web(9), &explain.Past{Events: []controller.Record{
			failed(50, "14:01:00", noAddress), failed(52, "14:01:05", noAddress), failed(60, "14:01:15", noAddress),
		}}),
		"pod-was-refused-and-there-is-room-again": explain.Pod(node(), web(9), &explain.Past{
			Events: []controller.Record{failed(50, "14:01:00", noAddress)},
		}),
		"pod-was-released":                       explain.Pod(node(), web(7), &explain.Past{History: released, Oldest: oldest}),
		"pod-was-released-by-hand":               explain.Pod(node(), web(7), &explain.Past{History: byHand, Oldest: oldest}),
		"pod-of-kubernetes-was-released-by-hand": explain.Pod(kube, web(7), &explain.Past{History: byHand, Oldest: oldest}),
		"pod-of-kubernetes-is-unknown":           explain.Pod(kube, web(9), &explain.Past{Oldest: oldest}),
		"pod-while-the-disk-is-full":             explain.Pod(diskFull, web(9), &explain.Past{Events: []controller.Record{failed(50, "14:01:00", "no space left on device")}}),
		"pod-with-findings":                      duplicate,
		"address-of-another-node":                explain.Address(meets(false), ip("10.1.6.9"), time.Time{}, &explain.Past{Oldest: oldest}),
		"address-of-another-node-of-kubernetes":  explain.Address(meets(true), ip("10.1.7.9"), time.Time{}, &explain.Past{Oldest: oldest}),
		"pod-is-unknown":                         explain.Pod(node(), web(9), &explain.Past{Oldest: oldest}),
		"pod-is-reclaimed": explain.Pod(with(node(), pending), web(7), &explain.Past{History: append([]ledger.HistoryEntry{
			entry(7, "14:09:00", ledger.MadePending, "10.1.5.7", func(e *ledger.HistoryEntry) {
				e.After, e.Reason = 10*time.Minute, "kernel: none of 12 network namespaces has 10.1.5.7; runtime: containerd has no sandbox"
			}),
		}, held...)}),
		"pod-while-suspended":      explain.Pod(suspended, web(9), &explain.Past{Events: []controller.Record{failed(50, "14:01:00", "suspended")}}),
		"container":                explain.Container(with(node(), lease(7, "10.1.5.7", "14:00:00")), key(7).ContainerID, &explain.Past{History: held}),
		"address-then-reused":      explain.Address(with(node(), lease(8, "10.1.5.7", "14:09:30")), ip("10.1.5.7"), at("14:05:00"), &explain.Past{History: reused, Oldest: oldest}),
		"address-then-free":        explain.Address(with(node(), lease(8, "10.1.5.7", "14:09:30")), ip("10.1.5.7"), at("14:08:30"), &explain.Past{History: reused, Oldest: oldest}),
		"address-before-history":   explain.Address(node(), ip("10.1.5.99"), at("08:00:00"), &explain.Past{Oldest: oldest}),
		"address-now-cooling":      explain.Address(with(node(), lease(7, "10.1.5.7", "14:09:40", in(ledger.Cooling))), ip("10.1.5.7"), time.Time{}, &explain.Past{History: released, Oldest: oldest}),
		"address-now-quarantined":  explain.Address(fullNode(), ip("10.1.5.9"), time.Time{}, &explain.Past{Oldest: oldest}),
		"address-now-excluded":     explain.Address(fullNode(), ip("10.1.5.7"), time.Time{}, &explain.Past{Oldest: oldest}),
		"address-of-no-block":      explain.Address(node(), ip("10.9.0.1"), time.Time{}, &explain.Past{Oldest: oldest}),
		"node-that-serves":         explain.ThisNode(node()),
		"node-that-is-full":        explain.ThisNode(fullNode()),
		"node-without-a-block":     explain.ThisNode(waiting),
		"node-that-is-suspended":   explain.ThisNode(suspended),
		"pool-that-is-not-there":   explain.Pool(node(), "blue"),
		"pool-with-room":           explain.Pool(node(), "default"),
		"pool-that-is-full":        explain.Pool(fullNode(), "default"),
		"pool-that-only-cools-now": explain.Pool(coolingNode(), "default"),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			generated.File(t, filepath.Join("testdata", name+".txt"), tree.Text())
			data, err := json.Marshal(tree)
			g.Expect(err).NotTo(HaveOccurred())
			var again explain.Tree
			g.Expect(json.Unmarshal(data, &again)).To(Succeed())
			g.Expect(again.Text()).To(Equal(tree.Text()), "the JSON form has all of it")
		})
	}
}

// coolingNode has no free address but one that cools, which the next claim gets.
func coolingNode() *explain.Node {
	n := node()
	n.Blocks = n.Blocks[:1]
	n.Blocks[0].Free, n.Blocks[0].Held, n.Blocks[0].Cooling = 0, 251, 1
	n.Leases = []ledger.Lease{lease(3, "10.1.5.9", "14:09:30", in(ledger.Cooling))}
	return n
}

func TestReasonIsOneSentence(t *testing.T) {
	suspended, waiting := node(), fullNode()
	suspended.Suspended = "node ID 5 may belong to another node"
	waiting.Blocks = nil
	full := &ledger.Exhausted{Pool: "default", Family: ledger.IPv4}
	for _, c := range []struct {
		node *explain.Node
		pool string
		err  error
		want string
	}{
		{fullNode(), "default", fmt.Errorf("claim: %w", full), "no IP address is free in pool default (IPv4) of node node-5: block 10.1.4.0/24 is draining; " +
			"block 10.1.5.0/24 has 250 held, 2 infra, 0 cooling, 1 quarantined and 3 reserved of 256 addresses"},
		{suspended, "default", fmt.Errorf("claim: %w", ledger.ErrSuspended), "node node-5 allocates no new address: node ID 5 may belong to another node"},
		{waiting, "default", fmt.Errorf("claim: %w of family ipv4 yet", ledger.ErrNoBlock), "pool default has no active block on node node-5: " +
			"the claim of 10.1.77.0/24 is pending since 14:00:00: node a holds it until 14:20:00"},
		{node(), "blue", ledger.ErrNoPool, `node node-5 has no pool "blue": its pools are default`},
		{node(), "default", errors.New("disk full"), ""},
	} {
		NewWithT(t).Expect(explain.Reason(c.node, c.pool, c.err)).To(Equal(c.want))
	}
}

// TestThenFindsTheOwner asks for the owner of one address at moments of several tenures.
func TestThenFindsTheOwner(t *testing.T) {
	g := NewWithT(t)
	const a = "10.1.5.7"
	past := &explain.Past{Oldest: at("09:00:00")}
	push := func(e ledger.HistoryEntry) { past.History = append([]ledger.HistoryEntry{e}, past.History...) }
	push(entry(1, "10:00:00", ledger.Claimed, a))
	push(entry(1, "10:10:00", ledger.MadePending, a))
	push(entry(1, "10:12:00", ledger.Confirmed, a))
	push(entry(1, "10:30:00", ledger.Released, a, since("10:12:00")))
	push(entry(0, "10:40:00", ledger.Excluded, a))
	push(entry(0, "10:45:00", ledger.Readmitted, a))
	push(entry(2, "11:00:00", ledger.Released, a, since("10:50:00"))) // its claim was removed
	push(entry(3, "12:00:00", ledger.Claimed, a))
	leases := []ledger.Lease{lease(3, a, "12:00:00")}
	for clock, want := range map[string]int{
		"09:30:00": 0, "10:00:00": 1, "10:11:00": 1, "10:29:00": 1, "10:30:00": 0, "10:42:00": 0, "10:55:00": 2, "11:30:00": 0, "12:30:00": 3,
	} {
		found, known := explain.Then(leases, past, ip(a), at(clock))
		g.Expect(known).To(BeTrue(), clock)
		if want == 0 {
			g.Expect(found).To(BeEmpty(), clock)
			continue
		}
		g.Expect(found).To(HaveLen(1), clock)
		g.Expect(found[0].Pod).To(Equal(web(want)), clock)
	}
	found, _ := explain.Then(leases, past, ip(a), at("10:05:00"))
	g.Expect(found[0].To).To(Equal(at("10:30:00")), "the end of the tenure, not of its first state")
	found, known := explain.Then([]ledger.Lease{lease(9, "10.1.5.9", "08:30:00")}, past, ip("10.1.5.9"), at("10:00:00"))
	g.Expect(known).To(BeTrue())
	g.Expect(found).To(HaveLen(1), "a lease that is older than the history")
	_, known = explain.Then(leases, past, ip(a), at("08:00:00"))
	g.Expect(known).To(BeFalse())
}

// TestAnEndThatIsNotRecorded: a version without a history has released the address, and
// perhaps given it to another owner.
func TestAnEndThatIsNotRecorded(t *testing.T) {
	past := &explain.Past{Oldest: at("09:00:00"), History: []ledger.HistoryEntry{entry(7, "10:00:00", ledger.Claimed, "10.1.5.7")}}
	asked := func(leases ...ledger.Lease) string {
		n := node()
		n.Leases = leases
		return explain.Address(n, ip("10.1.5.7"), at("11:00:00"), past).Answer
	}
	g := NewWithT(t)
	const lost = "pod default/web-7 had it in pool default from 10:00:00, and has it no more; when it ended is not recorded"
	g.Expect(asked()).To(Equal(lost))
	g.Expect(asked(lease(8, "10.1.5.7", "12:00:00"))).To(Equal(lost), "another owner has it now")
	g.Expect(asked(lease(7, "10.1.5.7", "12:00:00"))).To(HaveSuffix("and still has it"))
}

// TestATimeThatHasNotCome: the answer for now is not given as that for the future.
func TestATimeThatHasNotCome(t *testing.T) {
	tree := explain.Address(node(), ip("10.1.5.7"), at("15:00:00"), &explain.Past{})
	NewWithT(t).Expect(tree.Answer).To(Equal("15:00:00 has not come yet; now it is free in pool default"))
}
