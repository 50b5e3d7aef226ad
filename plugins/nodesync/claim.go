// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Identity is who claims a node ID, and which IDs will do.
type Identity struct {
	Name     string
	Instance string                  // UUID of the node's state directory
	Session  string                  // UUID of this run of the agent
	Pinned   uint32                  // exactly this one; 0: any
	Limit    func([]*kv.Pool) uint32 // the largest ID that fits the cluster's networks and pools
	Fresh    time.Duration           // how long a beat says that its agent is alive
}

// Held is a node ID and the generation of its record.
type Held struct {
	ID         uint32
	Generation uint64
}

var (
	// ErrNameInUse is returned where another instance has a record of this name
	// and was there not long ago.
	ErrNameInUse = errors.New("another instance has this node's name")
	// ErrInstanceInUse is returned where this node's state directory is in use
	// under another name: it was copied.
	ErrInstanceInUse = errors.New("another node has this node's state directory")
	// ErrIDTaken is returned for a pinned or a remembered ID that another node has.
	ErrIDTaken = errors.New("the node ID is taken")
	// ErrNoID is returned where every ID that fits is taken, or the own one does not fit.
	ErrNoID = errors.New("no node ID fits")
)

// attempts bounds how often a claim is tried against others who are faster.
const attempts = 100

// Claim finds the ID that this instance has, or claims one: the pinned one; the
// one that it remembers (want.ID), of which its leases are; else the smallest
// that was never used or cleanly released; else the one that was released
// longest ago. The record is in the store when Claim returns.
func Claim(ctx context.Context, store kvdb.Store, who Identity, want Held, now time.Time) (Held, error) {
	for range attempts {
		held, err := claimOnce(ctx, store, who, want, now)
		if !errors.Is(err, kvdb.ErrConditions) {
			if err != nil {
				return Held{}, fmt.Errorf("claim a node ID for %s: %w", who.Name, err)
			}
			return held, nil
		}
	}
	return Held{}, fmt.Errorf("claim a node ID for %s: others were faster %d times", who.Name, attempts)
}

// stored is a node record and the revision that it was written at.
type stored struct {
	*kv.NodeRecord
	revision int64
}

// register is the node records, and what limits their number.
type register struct {
	byID  map[uint32]stored
	limit uint32
}

func claimOnce(ctx context.Context, store kvdb.Store, who Identity, want Held, now time.Time) (Held, error) {
	reg, err := readRegister(ctx, store, who)
	if err != nil {
		return Held{}, err
	}
	own := reg.of(who.Instance, want.ID)
	rivals, err := reg.rivals(ctx, store, who, now)
	if err != nil {
		return Held{}, err
	}
	if own.NodeRecord != nil && own.Name != who.Name {
		if beat, err := readBeat(ctx, store, own.Id); err != nil || fresh(beat, who, now) {
			return Held{}, errors.Join(err, fmt.Errorf("%w: node ID %d is of node %s, which was there at %s: was its disk copied? Remove the state directory of this node, so that it gets an identity of its own",
				ErrInstanceInUse, own.Id, own.Name, at(beat)))
		}
	}
	id, err := reg.choose(who, want, own)
	if err != nil {
		return Held{}, err
	}
	return reg.write(ctx, store, who, claim{id: id, want: want, own: own, rivals: rivals, now: now})
}

func readRegister(ctx context.Context, store kvdb.Store, who Identity) (*register, error) {
	kvs, _, err := store.List(ctx, kv.NodeRecordPrefix, kv.PoolPrefix)
	if err != nil {
		return nil, err
	}
	reg := &register{byID: map[uint32]stored{}}
	var pools []*kv.Pool
	for _, x := range kvs {
		if r, _ := kv.ResourceOf(x.Key); r.Name == kv.PoolResource {
			if m := (&kv.Pool{}); proto.Unmarshal(x.Value, m) == nil { // one that is not readable limits nobody
				pools = append(pools, m)
			}
			continue
		}
		m := &kv.NodeRecord{}
		if err := proto.Unmarshal(x.Value, m); err != nil {
			return nil, fmt.Errorf("node record %s: %w", x.Key, err)
		}
		reg.byID[m.Id] = stored{m, x.ModRevision}
	}
	reg.limit = who.Limit(pools)
	return reg, nil
}

// of is the record that instance holds: that of the ID it remembers, else the
// one that was claimed last.
func (r *register) of(instance string, remembered uint32) (own stored) {
	for id, s := range r.byID {
		if s.Instance != instance || s.Released != 0 {
			continue
		}
		if id == remembered {
			return s
		}
		if own.NodeRecord == nil || s.revision > own.revision {
			own = s
		}
	}
	return own
}

// rivals are the records of other instances under this node's name. It fails
// while one of them is fresh.
func (r *register) rivals(ctx context.Context, store kvdb.Store, who Identity, now time.Time) (rivals []stored, err error) {
	for _, s := range r.byID {
		if s.Name != who.Name || s.Instance == who.Instance || s.Released != 0 || s.SupersededBy != 0 {
			continue
		}
		beat, err := readBeat(ctx, store, s.Id)
		if err != nil {
			return nil, err
		}
		if fresh(beat, who, now) {
			return nil, fmt.Errorf("%w: node ID %d is of instance %s, which was there at %s; this one is %s: do two nodes have one name? If its state directory was lost, it gets a new ID %s after that, or at once after \"cadastre node release --force %s\"",
				ErrNameInUse, s.Id, s.Instance, at(beat), who.Instance, who.Fresh, who.Name)
		}
		rivals = append(rivals, s)
	}
	return rivals, nil
}

// fresh is whether the agent that wrote beat must be taken for alive: a clock
// that is ahead of ours is no reason not to.
func fresh(beat *kv.NodeBeat, who Identity, now time.Time) bool {
	return beat != nil && !beat.Stopped && beat.Session != who.Session && now.Sub(time.Unix(0, beat.At)) < who.Fresh
}

func at(beat *kv.NodeBeat) string { return time.Unix(0, beat.GetAt()).UTC().Format(time.RFC3339) }

func readBeat(ctx context.Context, store kvdb.Store, id uint32) (*kv.NodeBeat, error) {
	x, found, err := store.Get(ctx, kv.BeatKey(id))
	if err != nil || !found {
		return nil, err
	}
	beat := &kv.NodeBeat{}
	if err := proto.Unmarshal(x.Value, beat); err != nil {
		return nil, fmt.Errorf("beat of node ID %d: %w", id, err)
	}
	return beat, nil
}

// choose is the ID to have.
func (r *register) choose(who Identity, want Held, own stored) (uint32, error) {
	wanted, why := want.ID, "this node has addresses of it in use"
	if who.Pinned != 0 {
		wanted, why = who.Pinned, "cadastre.nodeID asks for it"
	}
	if wanted == 0 && own.NodeRecord != nil {
		wanted = own.Id
	}
	if wanted != 0 {
		if s, ok := r.byID[wanted]; ok && s.Instance != who.Instance && s.Released == 0 {
			return 0, fmt.Errorf("%w: node ID %d is of node %s (instance %s); %s", ErrIDTaken, wanted, s.Name, s.Instance, why)
		}
		return wanted, r.fits(wanted)
	}
	var oldest stored
	for id := uint32(1); id <= r.limit && id != 0; id++ {
		s, ok := r.byID[id]
		if !ok || s.Released != 0 && s.Clean {
			return id, nil
		}
		if s.Released != 0 && (oldest.NodeRecord == nil || s.Released < oldest.Released) {
			oldest = s
		}
	}
	if oldest.NodeRecord != nil {
		return oldest.Id, nil
	}
	return 0, fmt.Errorf("%w: all %d that fit every subnet are taken: give the nodes larger networks, or release nodes that are gone (cadastre node release NAME)", ErrNoID, r.limit)
}

func (r *register) fits(id uint32) error {
	if id > r.limit {
		return fmt.Errorf("%w: node ID %d is above %d, the largest that fits every subnet: give the nodes larger networks", ErrNoID, id, r.limit)
	}
	return nil
}

// claim is one that is decided on.
type claim struct {
	id     uint32
	want   Held
	own    stored
	rivals []stored
	now    time.Time
}

// write makes the claim in one transaction, or fails with kvdb.ErrConditions.
// The record of the ID, if there is one, tells how often it changed hands.
func (r *register) write(ctx context.Context, store kvdb.Store, who Identity, c claim) (Held, error) {
	was := r.byID[c.id]
	record := &kv.NodeRecord{Id: c.id, Name: who.Name, Instance: who.Instance, Generation: max(was.GetGeneration(), c.want.Generation) + 1}
	var t txn
	if c.own.NodeRecord != nil {
		record.IpAddresses, record.NodeUid = c.own.IpAddresses, c.own.NodeUid
		switch {
		case c.own.Id != c.id: // a pinned ID: the old one may still have addresses in use
			gone := proto.Clone(c.own.NodeRecord).(*kv.NodeRecord)
			gone.Released = c.now.UnixNano()
			t.put(kv.NodeRecordKey(c.own.Id), c.own.revision, gone)
		case c.own.Name == who.Name && c.own.Generation >= c.want.Generation && c.own.SupersededBy == 0: // nothing to claim
			record = c.own.NodeRecord
		}
	}
	for _, s := range c.rivals {
		old := proto.Clone(s.NodeRecord).(*kv.NodeRecord)
		old.SupersededBy = c.id
		t.put(kv.NodeRecordKey(s.Id), s.revision, old)
	}
	if record == c.own.NodeRecord {
		t.conds = append(t.conds, kvdb.AtRevision(kv.NodeRecordKey(c.id), c.own.revision))
	} else {
		t.put(kv.NodeRecordKey(c.id), was.revision, record) // revision 0 where there was none
	}
	// Whoever beats under this ID now is an earlier run of this agent, or finds
	// by this beat that it has lost the ID.
	t.putAny(kv.BeatKey(c.id), &kv.NodeBeat{
		Id: c.id, Instance: who.Instance, Generation: record.Generation, Session: who.Session, At: c.now.UnixNano(),
	})
	_, err := t.commit(ctx, store)
	return Held{c.id, record.Generation}, err
}

// txn collects writes that are conditional on what was read.
type txn struct {
	conds []kvdb.Cond
	ops   []kvdb.Op
	err   error
}

// put writes m if key is as it was at revision.
func (t *txn) put(key string, revision int64, m proto.Message) {
	t.conds = append(t.conds, kvdb.Cond{Key: key, ModRevision: revision})
	t.putAny(key, m)
}

// putAny writes m whatever is there.
func (t *txn) putAny(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	t.err = errors.Join(t.err, err)
	t.ops = append(t.ops, kvdb.Put(key, value))
}

func (t *txn) commit(ctx context.Context, store kvdb.Store) (revision int64, err error) {
	if t.err != nil {
		return 0, t.err
	}
	return store.Txn(ctx, t.conds, t.ops)
}
