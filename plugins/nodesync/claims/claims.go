// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package claims is the protocol by which nodes claim prefixes in the cluster store:
// podCIDRs, static blocks and pinned node addresses. Other nodes route these prefixes
// to their holder, and the prefixes do not follow from a node ID.
//
// A claim is a key of its own, by network, prefix and node. It is pending first. Ask
// makes it held by a write that is conditional on the claim's own revision. Before
// that write, a list has shown neither an overlapping held claim, nor an earlier
// pending one, nor a node ID that implies an overlapping prefix. Of two claimants the
// one whose pending claim was written later sees the other's, at each interleaving of
// single writes, so that the protocol needs no transactions.
//
// A pending claim allows nothing; any node may delete it, which makes its owner begin
// again. So a claimant deletes the pending claim of a node that does not beat, and
// the claimant of a node ID deletes those of what the ID implies (Register.CheckID).
// The holder of a held claim ends it: it makes the claim pending (Withdraw) and
// deletes it once its event loop has seen that (Delete). The release of the node ends
// a held claim too (End), from a time on that the claim then says. So does the node
// itself under another instance, which inherits the claim.
//
// All functions may be called from any goroutine. An error that is not
// ErrConditions leaves the outcome unknown; the next call reads it back.
package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Target is a prefix of a network.
type Target struct {
	Network string // kv.PodNetworkClaims or kv.NodeNetworkClaims
	Prefix  netip.Prefix
}

// Block returns the target of a block of pods.
func Block(prefix netip.Prefix) Target { return Target{kv.PodNetworkClaims, prefix.Masked()} }

// NodeAddress returns the target of a node address.
func NodeAddress(a netip.Addr) Target {
	return Target{kv.NodeNetworkClaims, netip.PrefixFrom(a, a.BitLen())}
}

// Overlaps reports whether two targets share addresses.
func (t Target) Overlaps(u Target) bool { return t.Network == u.Network && t.Prefix.Overlaps(u.Prefix) }

// Key returns where the claim of a node for the target is stored.
func (t Target) Key(node string) string { return kv.PrefixClaimKey(t.Network, t.Prefix, node) }

// TargetOf returns the target of a stored claim.
func TargetOf(c *kv.PrefixClaim) (Target, error) {
	p, err := netip.ParsePrefix(c.GetPrefix())
	if err != nil {
		return Target{}, fmt.Errorf(
			"claim of node %s: prefix %q: want a prefix, such as 10.1.77.0/24",
			c.GetNode(),
			c.GetPrefix(),
		)
	}
	return Target{c.GetNetwork(), p.Masked()}, nil
}

// Node is a claimant.
type Node struct {
	Name     string
	Instance string // UUID of the node's state directory
	ID       uint32 // whose beat says that the node is alive
	UID      string // of the Kubernetes Node, "" without one
}

// Register reads and writes the claims of a store.
type Register struct {
	Store kvdb.Store
	// Implied returns what follows from a node record: the node address and the
	// pod blocks that its ID derives, and what the record says the node has.
	Implied func(r *kv.NodeRecord, pools []*kv.Pool) []Target
	Fresh   time.Duration // how long a beat says that its agent is alive
	Expire  time.Duration // how long after its last beat a node may still allocate
}

// Outcome represents the state of a node's claim.
type Outcome struct {
	Held     bool
	Revision int64    // of the claim
	Blocker  *Blocker // the first thing that is in the way of a pending claim
}

// attempts bounds how often a call begins again because of conflicting writes.
const attempts = 100

// Ask claims t for a node, or finds how its claim stands. It does not wait: a
// claim that is blocked stays pending and is asked for again later.
func (r Register) Ask(ctx context.Context, me Node, t Target, now time.Time) (Outcome, error) {
	return r.ask(ctx, me, t, asking{now: now})
}

// Restore is Ask for a node that held the claim, or that has leases there. The node may
// find no claim in the store: the store was wiped or came back older, or had none before
// the node was upgraded. Restore deletes the pending claims that are in the way, also
// earlier ones. A held claim of another node stays.
func (r Register) Restore(ctx context.Context, me Node, t Target, now time.Time) (Outcome, error) {
	return r.ask(ctx, me, t, asking{now: now, first: true})
}

// asking holds one request for a claim.
type asking struct {
	now   time.Time
	first bool // before pending claims of other nodes
}

func (r Register) ask(ctx context.Context, me Node, t Target, a asking) (Outcome, error) {
	for range attempts {
		o, err := r.askOnce(ctx, me, t, a)
		if errors.Is(err, kvdb.ErrConditions) {
			continue
		}
		if err != nil {
			return Outcome{}, fmt.Errorf("claim %s in network %s for node %s: %w", t.Prefix, t.Network, me.Name, err)
		}
		return o, nil
	}
	return Outcome{}, fmt.Errorf(
		"claim %s in network %s for node %s: gave up after %d conflicting writes",
		t.Prefix,
		t.Network,
		me.Name,
		attempts,
	)
}

func (r Register) askOnce(ctx context.Context, me Node, t Target, a asking) (Outcome, error) {
	key, now := t.Key(me.Name), a.now
	x, _, err := r.Store.Get(ctx, key) // the zero KeyValue without one
	if err != nil {
		return Outcome{}, err
	}
	have := decode(x)
	want := &kv.PrefixClaim{
		Network:  t.Network,
		Prefix:   t.Prefix.String(),
		Node:     me.Name,
		NodeId:   me.ID,
		Instance: me.Instance,
		NodeUid:  me.UID,
		Since:    now.UnixNano(),
	}
	rev := x.ModRevision
	switch {
	case have == nil: // none, or one that cannot be read: it allowed nothing
		if rev, err = r.put(ctx, key, rev, want); err != nil {
			return Outcome{}, err
		}
	case have.Instance != me.Instance:
		v, err := r.view(ctx)
		if err != nil {
			return Outcome{}, err
		}
		if v.alive(have, r.stale(t, v.beat(have.NodeId, have.Instance)), now) {
			return Outcome{Revision: rev, Blocker: v.blockedBy(have, r.Expire)}, nil
		}
		want.Held = have.Held
		if rev, err = r.put(ctx, key, rev, want); err != nil || want.Held {
			return Outcome{Held: want.Held, Revision: rev}, err
		}
	case have.Held && have.Ends == 0 && have.NodeId == me.ID && have.NodeUid == me.UID:
		return Outcome{Held: true, Revision: rev}, nil
	case have.Held:
		// Released while this node was away, or under another node ID before. As
		// long as the key is there no other node has what it stands for: a
		// claimant deletes an ended claim before it goes on.
		want.Held, want.Since = true, have.Since
		rev, err = r.put(ctx, key, rev, want)
		return Outcome{Held: true, Revision: rev}, err
	}
	v, err := r.view(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if v.claims[key].revision != rev {
		return Outcome{}, kvdb.ErrConditions
	}
	blocker, over := r.blocker(v, me, t, rev, now)
	if (a.first || r.has(v, me, t)) && over == nil && blocker != nil && blocker.Pending {
		over = v.pending(blocker)
	}
	if over != nil {
		if err := r.Delete(ctx, over.key, over.revision); err != nil {
			return Outcome{}, err
		}
		return Outcome{}, kvdb.ErrConditions // look again
	}
	if blocker != nil {
		return Outcome{Revision: rev, Blocker: blocker}, nil
	}
	want.Held = true
	rev, err = r.put(ctx, key, rev, want)
	return Outcome{Held: true, Revision: rev}, err
}

// has reports whether the record of a node says that it has a target already: its
// agent was of a version without claims, and other nodes route by the record.
func (r Register) has(v view, me Node, t Target) bool {
	for _, n := range v.records {
		if n.Instance == me.Instance && n.Name == me.Name && n.Released == 0 && n.SupersededBy == 0 {
			return slices.ContainsFunc(r.Implied(n, v.pools), func(u Target) bool { return u == t })
		}
	}
	return false
}

// stale returns how long after its last beat the claim of a predecessor, another
// instance under the same name, keeps the node out. A predecessor that cannot
// reach the store may allocate from a block until Expire; of a node address it has
// nothing to allocate.
func (r Register) stale(t Target, last *kv.NodeBeat) time.Duration {
	if t.Network == kv.NodeNetworkClaims {
		return r.Fresh
	}
	return r.mayAllocate(last)
}

// Withdraw makes a held claim pending: from then on it allows nothing, and still
// keeps every other node out. It returns the claim's new revision.
func (r Register) Withdraw(ctx context.Context, c *kv.PrefixClaim, key string, revision int64) (int64, error) {
	c = proto.Clone(c).(*kv.PrefixClaim)
	c.Held = false
	return r.put(ctx, key, revision, c)
}

// rewrite writes a held claim over as it is, so that no earlier request of this
// node can change it any more.
func (r Register) rewrite(ctx context.Context, key string, revision int64) (int64, error) {
	x, _, err := r.Store.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	c := decode(x)
	if c == nil || x.ModRevision != revision {
		return 0, kvdb.ErrConditions
	}
	c.Since++ // a store may take a write that changes nothing for none
	return r.put(ctx, key, revision, c)
}

// Delete ends a claim that was last written at revision.
func (r Register) Delete(ctx context.Context, key string, revision int64) error {
	_, err := r.Store.Txn(ctx, []kvdb.Cond{kvdb.AtRevision(key, revision)}, []kvdb.Op{kvdb.Delete(key)})
	return err
}

// put writes c if its key is as it was at revision, 0 for absent.
func (r Register) put(ctx context.Context, key string, revision int64, c *kv.PrefixClaim) (int64, error) {
	value, err := proto.Marshal(c)
	if err != nil {
		return 0, err
	}
	return r.Store.Txn(ctx, []kvdb.Cond{{Key: key, ModRevision: revision}}, []kvdb.Op{kvdb.Put(key, value)})
}

// decode returns the claim of a stored value, nil for none or an unreadable one.
func decode(x kvdb.KeyValue) *kv.PrefixClaim {
	c := &kv.PrefixClaim{}
	if x.ModRevision == 0 || proto.Unmarshal(x.Value, c) != nil {
		return nil
	}
	if t, err := TargetOf(c); err != nil || t.Key(c.Node) != x.Key {
		return nil
	}
	return c
}
