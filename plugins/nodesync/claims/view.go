// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// stored is a claim and where it was written last.
type stored struct {
	*kv.PrefixClaim
	key      string
	revision int64
}

// view holds the claims, nodes and pools of the store at one revision.
type view struct {
	claims  map[string]stored
	records []*kv.NodeRecord
	beats   map[uint32]*kv.NodeBeat
	pools   []*kv.Pool
}

// view lists the store. A claim that cannot be read blocks no other node: it allows
// its owner nothing. A record that cannot be read keeps its ID, and with it the node
// address that the ID implies. Whether its blocks followed from the ID is not known;
// if they did, those of the nodes that read it do too, and need no claims.
func (r Register) view(ctx context.Context) (view, error) {
	kvs, _, err := r.Store.List(ctx, kv.PrefixClaimPrefix, kv.NodeRecordPrefix, kv.BeatPrefix, kv.PoolPrefix)
	if err != nil {
		return view{}, err
	}
	v := view{claims: map[string]stored{}, beats: map[uint32]*kv.NodeBeat{}}
	for _, x := range kvs {
		if c := decode(x); c != nil {
			v.claims[x.Key] = stored{c, x.Key, x.ModRevision}
			continue
		}
		v.take(x)
	}
	return v, nil
}

// take adds a record, a beat or a pool to the view.
func (v *view) take(x kvdb.KeyValue) {
	r, _ := kv.ResourceOf(x.Key)
	switch r.Name {
	case kv.NodeRecordResource:
		id, m := kv.NodeRecordID(x.Key), &kv.NodeRecord{}
		if proto.Unmarshal(x.Value, m) != nil || m.Id != id {
			m = &kv.NodeRecord{Id: id, ExplicitBlocks: true} // of no node that is known
		}
		if id != 0 {
			v.records = append(v.records, m)
		}
	case kv.PoolResource:
		if m := (&kv.Pool{}); proto.Unmarshal(x.Value, m) == nil {
			v.pools = append(v.pools, m)
		}
	case "":
		if m := (&kv.NodeBeat{}); proto.Unmarshal(x.Value, m) == nil && x.Key == kv.BeatKey(m.Id) {
			v.beats[m.Id] = m
		}
	}
}

// beat returns the last beat of an instance under a node ID, nil for none.
func (v view) beat(id uint32, instance string) *kv.NodeBeat {
	if b := v.beats[id]; b.GetInstance() == instance {
		return b
	}
	return nil
}

// alive reports whether the agent of a claim beat within fresh.
func (v view) alive(c *kv.PrefixClaim, fresh time.Duration, now time.Time) bool {
	b := v.beat(c.NodeId, c.Instance)
	return b != nil && !b.Stopped && now.Sub(time.Unix(0, b.At)) < fresh
}

// mayAllocate returns how long after its last beat an agent may allocate: as its
// own configuration has it, and no less than that of this node.
func (r Register) mayAllocate(b *kv.NodeBeat) time.Duration {
	return max(r.Expire, time.Duration(b.GetExpire()))
}

// Blocker describes what prevents a claim.
type Blocker struct {
	Target
	Node     string
	Pending  bool      // an earlier claim that is not held yet
	NodeID   uint32    // the prefix follows from this ID; 0: it is a claim
	Since    time.Time // when the claim became what it is; zero with NodeID
	LastSeen time.Time // the last beat of its node; zero for never
	Ends     time.Time // the node was released, and the claim ends then; zero: it was not
	Expires  time.Time // when it ends if the node is gone by then
}

// String names the holder of the prefix, the end of its claim, and what ends it earlier.
func (b *Blocker) String() string {
	if b.Node == "" {
		return fmt.Sprintf(
			"node ID %d implies %s, and its record cannot be read: see \"cadastre node list\"",
			b.NodeID,
			b.Prefix,
		)
	}
	has := "holds"
	switch {
	case b.NodeID != 0:
		has = fmt.Sprintf("holds (by node ID %d)", b.NodeID)
	case b.Pending:
		has = "waits, since before this node, for"
	}
	text := fmt.Sprintf("node %s %s %s", b.Node, has, b.Prefix)
	if !b.Ends.IsZero() {
		return text + fmt.Sprintf("; it was released, and its claim ends at %s", utc(b.Ends))
	}
	if b.LastSeen.IsZero() {
		return text + fmt.Sprintf(" and has never been seen; \"cadastre node release %s\" ends its claim", b.Node)
	}
	return text + fmt.Sprintf(
		"; it was last seen at %s; its claim ends when its last address there is free, at %s if the node is gone by then, or with \"cadastre node release %s\"",
		utc(b.LastSeen),
		utc(b.Expires),
		b.Node,
	)
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// blocker returns what keeps the claim of me, pending at revision, from being
// held; or a claim that is over and has to be deleted first.
func (r Register) blocker(v view, me Node, t Target, revision int64, now time.Time) (b *Blocker, over *stored) {
	for _, key := range slices.Sorted(maps.Keys(v.claims)) {
		c := v.claims[key]
		other, _ := TargetOf(c.PrefixClaim)
		if c.Node == me.Name || !t.Overlaps(other) || !c.Held && c.revision > revision {
			continue
		}
		if ended(c.PrefixClaim, now) || !c.Held && !v.alive(c.PrefixClaim, r.Fresh, now) {
			return nil, &c
		}
		if b == nil || b.Pending && c.Held { // the holder says more than another node that waits
			b = v.blockedBy(c.PrefixClaim, r.Expire)
		}
	}
	if b != nil && !b.Pending {
		return b, nil
	}
	for _, n := range v.records {
		if n.Instance == me.Instance || n.Name == me.Name && !v.predecessor(n, t) || n.Id == me.ID && n.Name == "" {
			continue
		}
		if found := r.impliedBy(v, n, t, now); found != nil {
			return found, nil
		}
	}
	return b, nil
}

// predecessor reports whether the record of an earlier instance of a node counts for
// t, as that of another node does. Its agent may still run, and allocate blocks that
// have no claims to inherit. Of a node address it has nothing to allocate.
func (v view) predecessor(n *kv.NodeRecord, t Target) bool {
	b := v.beat(n.Id, n.Instance)
	return t.Network == kv.PodNetworkClaims && n.SupersededBy != 0 && b != nil && !b.Stopped
}

// ended reports whether a claim of a released node is over.
func ended(c *kv.PrefixClaim, now time.Time) bool {
	return c.Ends != 0 && !now.Before(time.Unix(0, c.Ends))
}

// pending returns the stored claim of a Blocker that is one.
func (v view) pending(b *Blocker) *stored {
	c := v.claims[b.Key(b.Node)]
	return &c
}

// blockedBy returns a claim as a Blocker.
func (v view) blockedBy(c *kv.PrefixClaim, expire time.Duration) *Blocker {
	t, _ := TargetOf(c)
	b := &Blocker{Target: t, Node: c.Node, Pending: !c.Held, Since: time.Unix(0, c.Since)}
	if c.Ends != 0 {
		b.Ends = time.Unix(0, c.Ends)
	}
	b.seen(v.beat(c.NodeId, c.Instance), expire)
	return b
}

func (b *Blocker) seen(beat *kv.NodeBeat, expire time.Duration) {
	if beat != nil {
		b.LastSeen = time.Unix(0, beat.At)
		b.Expires = b.LastSeen.Add(max(expire, time.Duration(beat.Expire)))
	}
}

// impliedBy returns a Blocker if t overlaps what follows from the record of a
// node. What a node may still use that was released by force, or superseded by
// another instance of its name, counts until its agent stops allocating by itself.
func (r Register) impliedBy(v view, n *kv.NodeRecord, t Target, now time.Time) *Blocker {
	b := &Blocker{Node: n.Name, NodeID: n.Id}
	beat := v.beat(n.Id, n.Instance)
	b.seen(beat, r.Expire)
	if n.Released != 0 || n.SupersededBy != 0 {
		if n.Clean || !now.Before(b.Expires) {
			return nil
		}
		b.Ends = b.Expires
	}
	for _, u := range r.Implied(n, v.pools) {
		if t.Overlaps(u) {
			b.Target = u
			return b
		}
	}
	return nil
}
