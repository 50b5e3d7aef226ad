// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Identity identifies the node that claims an ID, and limits the IDs.
type Identity struct {
	Name     string
	Instance string                  // UUID of the node's state directory
	Session  string                  // UUID of this run of the agent
	Machine  Machine                 // that the agent runs on
	Pinned   uint32                  // exactly this one; 0: any
	Limit    func([]*kv.Pool) uint32 // the largest ID that fits the cluster's networks and pools
	Fresh    time.Duration           // how long a beat says that its agent is alive
	Expire   time.Duration           // how long after its last beat an agent may allocate; 0: Fresh
	Random   func() float64          // in [0,1); nil: IDs are tried in order only
	// Quarantine delays allocation from an ID that was claimed in a new or
	// wiped store; 0: not at all.
	Quarantine time.Duration
	Claims     *claims.Register // of prefixes, which an ID may imply; nil: there are none
	Explicit   bool             // the pod blocks of this node have claims of their own

	twins *twins // nil: not looked for
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

// attempts bounds the attempts of a claim against nodes that write faster.
const attempts = 100

// Claim finds the ID that this instance has, or claims one. It claims the pinned one, or
// the one that it remembers (want.ID), of which its leases are. Else it claims the
// smallest that was never used or cleanly released, else the one that was released
// longest ago. The record is in the store when Claim returns.
func Claim(ctx context.Context, store kvdb.Store, who Identity, want Held, now time.Time) (Held, error) {
	for range attempts {
		held, err := claimOnce(ctx, store, who, want, now)
		if err == nil {
			err = checkImplied(ctx, store, who, claimed{held, held.ID == want.ID}, now)
		}
		if !errors.Is(err, kvdb.ErrConditions) {
			if err != nil {
				return Held{}, fmt.Errorf("claim a node ID for %s: %w", who.Name, err)
			}
			return held, nil
		}
	}
	return Held{}, fmt.Errorf("claim a node ID for %s: gave up after %d conflicting writes", who.Name, attempts)
}

// stored is a node record and the revision that it was written at.
type stored struct {
	*kv.NodeRecord
	revision   int64
	unreadable error // why it says nothing but its ID, which its key tells; nil: it can be read
}

// register is the node records, and what limits their number.
type register struct {
	byID  map[uint32]stored
	limit uint32
	beats map[uint32]lastBeat // that were looked at: none may have changed
}

func claimOnce(ctx context.Context, store kvdb.Store, who Identity, want Held, now time.Time) (Held, error) {
	c := claim{want: want, now: now}
	var err error
	if c.name, c.nameAt, err = lastClaim(ctx, store, who.Name); err != nil {
		return Held{}, err
	}
	reg, err := readRegister(ctx, store, who)
	if err != nil {
		return Held{}, err
	}
	own := reg.of(who.Instance, want.ID)
	c.own = own
	if c.rivals, err = reg.rivals(ctx, store, who, now); err != nil {
		return Held{}, err
	}
	if own.NodeRecord != nil && own.Name != who.Name {
		if beat, err := reg.beat(ctx, store, own.Id); err != nil || fresh(beat, who, now) {
			return Held{}, errors.Join(
				err,
				fmt.Errorf(
					"%w: node ID %d is of node %s, which was there at %s: was its disk copied? Remove the state directory of this node, so that it gets an identity of its own",
					ErrInstanceInUse,
					own.Id,
					own.Name,
					at(beat),
				),
			)
		}
	}
	if own.NodeRecord != nil {
		if err := reg.lookForTwin(ctx, store, who, own.Id, now); err != nil {
			return Held{}, err
		}
	}
	if c.id, err = reg.given(who, c); err != nil {
		return Held{}, err
	}
	if c.id != 0 {
		if err := reg.leaving(ctx, store, who, c); err != nil {
			return Held{}, err
		}
		return reg.write(ctx, store, who, c)
	}
	return reg.claimNew(ctx, store, who, c)
}

// tries bounds the IDs that are tried before the records are read again.
const tries = 16

// claimNew claims a free ID: the first in order, then the next ones if other nodes are
// faster. After lost races it picks at random among the next 4, 16, 64 ... free IDs, so
// that many nodes can claim at once.
func (r *register) claimNew(ctx context.Context, store kvdb.Store, who Identity, c claim) (Held, error) {
	free, err := r.free()
	if err == nil {
		free, err = withoutClaimed(ctx, who, free)
	}
	if err != nil {
		return Held{}, err
	}
	raced := false
	var releasing error // why the last ID is not free yet
	for try := 0; try < tries && len(free) > 0; try++ {
		width := min(1<<(2*max(0, try-2)), len(free))
		k := 0
		if who.Random != nil {
			k = int(who.Random() * float64(width))
		}
		c.id = free[k]
		free = slices.Delete(free, k, k+1)
		if releasing = r.leaving(ctx, store, who, c); errors.Is(releasing, ErrIDTaken) {
			continue
		} else if releasing != nil {
			return Held{}, releasing
		}
		held, err := r.write(ctx, store, who, c)
		if !errors.Is(err, kvdb.ErrConditions) {
			return held, err
		}
		if raced = true; try%4 != 3 {
			continue
		}
		if _, at, err := lastClaim(ctx, store, who.Name); err != nil || at != c.nameAt {
			return Held{}, cmp.Or(
				err,
				kvdb.ErrConditions,
			) // a node of our name was faster, or the store has no transactions
		}
	}
	if releasing != nil && !raced {
		// releasing is not wrapped: ErrIDTaken is for an ID that this node has or is to have.
		return Held{}, fmt.Errorf("%w now: %s", ErrNoID, releasing.Error())
	}
	return Held{}, kvdb.ErrConditions
}

// leaving fails if the ID was released while its agent may still allocate. An agent that
// cannot reach the store does not know of the release, and allocates until Expire after
// its last beat.
func (r *register) leaving(ctx context.Context, store kvdb.Store, who Identity, c claim) error {
	s := r.byID[c.id]
	if s.NodeRecord == nil || s.Released == 0 || s.Clean || s.Instance == who.Instance && s.Name == who.Name {
		return nil
	}
	beat, err := r.beat(ctx, store, c.id)
	wait := max(who.Fresh, who.Expire)
	if s.Instance == who.Instance {
		wait = who.Fresh
	}
	if err != nil || beat.GetInstance() != s.Instance || !mayAllocate(beat, wait, c.now) {
		return err
	}
	return fmt.Errorf(
		"%w: node ID %d was released while node %s (instance %s) may still allocate from it: it was last seen at %s, and stops by itself within %s",
		ErrIDTaken,
		c.id,
		s.Name,
		s.Instance,
		at(beat),
		wait,
	)
}

// lastClaim returns the last claim under a name and its revision, 0 if there is none. A
// claim that cannot be read is empty.
func lastClaim(ctx context.Context, store kvdb.Store, name string) (*kv.NodeName, int64, error) {
	x, _, err := store.Get(ctx, kv.NodeNameKey(name)) // the zero KeyValue where there is none
	m := &kv.NodeName{}
	if proto.Unmarshal(x.Value, m) != nil {
		m = &kv.NodeName{}
	}
	return m, x.ModRevision, err
}

func readRegister(ctx context.Context, store kvdb.Store, who Identity) (*register, error) {
	kvs, _, err := store.List(ctx, kv.NodeRecordPrefix, kv.PoolPrefix)
	if err != nil {
		return nil, err
	}
	reg := &register{byID: map[uint32]stored{}, beats: map[uint32]lastBeat{}}
	var pools []*kv.Pool
	for _, x := range kvs {
		if r, _ := kv.ResourceOf(x.Key); r.Name == kv.PoolResource {
			if m := (&kv.Pool{}); proto.Unmarshal(x.Value, m) == nil { // a pool that cannot be read limits no ID
				pools = append(pools, m)
			}
			continue
		}
		if m, err := readRecord(x); m != nil {
			reg.byID[m.Id] = stored{m, x.ModRevision, err}
		}
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
func (r *register) rivals(
	ctx context.Context,
	store kvdb.Store,
	who Identity,
	now time.Time,
) (rivals []stored, err error) {
	for _, s := range r.byID {
		if s.Name != who.Name || s.Instance == who.Instance || s.Released != 0 || s.SupersededBy != 0 {
			continue
		}
		beat, err := r.beat(ctx, store, s.Id)
		if err != nil {
			return nil, err
		}
		if fresh(signed(beat, s.Name), who, now) {
			return nil, fmt.Errorf(
				"%w: node ID %d is of instance %s, which was there at %s; this one is %s: do two nodes have one name? If its state directory was lost, it gets a new ID %s after that, or at once after \"cadastre node release --force %s\"",
				ErrNameInUse,
				s.Id,
				s.Instance,
				at(beat),
				who.Instance,
				who.Fresh,
				who.Name,
			)
		}
		rivals = append(rivals, s)
	}
	return rivals, nil
}

// fresh reports whether the agent that wrote beat must be taken for alive: a clock
// that is ahead of ours does not make it stale.
func fresh(beat *kv.NodeBeat, who Identity, now time.Time) bool {
	return beat != nil && !beat.Stopped && beat.Session != who.Session && now.Sub(time.Unix(0, beat.At)) < who.Fresh
}

// mayAllocate reports whether the agent that wrote a beat may still allocate
// although it cannot reach the store.
func mayAllocate(beat *kv.NodeBeat, expire time.Duration, now time.Time) bool {
	return expire > 0 && beat != nil && !beat.Stopped &&
		now.Sub(time.Unix(0, beat.At)) < max(expire, time.Duration(beat.Expire))
}

// signed returns beat unless another node than name wrote it, which a policy of the
// API server cannot prevent: it says nothing of an agent of name.
func signed(beat *kv.NodeBeat, name string) *kv.NodeBeat {
	if by := beat.GetNodeName(); by != "" && by != name {
		return nil
	}
	return beat
}

func at(beat *kv.NodeBeat) string { return time.Unix(0, beat.GetAt()).UTC().Format(time.RFC3339) }

// given is the ID to have where there is no choice, 0 where there is.
func (r *register) given(who Identity, c claim) (uint32, error) {
	wanted, why := c.want.ID, "this node has addresses of it in use"
	if who.Pinned != 0 {
		wanted, why = who.Pinned, "cadastre.nodeID asks for it"
	}
	if wanted == 0 && c.own.NodeRecord != nil {
		wanted = c.own.Id
	}
	if wanted == 0 {
		return 0, nil
	}
	s, ok := r.byID[wanted]
	if ok && s.unreadable != nil {
		if c.isOwn(who, wanted) {
			return wanted, r.fits(wanted)
		}
		return 0, fmt.Errorf("%w: %w, so node ID %d counts as taken; %s", ErrIDTaken, s.unreadable, wanted, why)
	}
	if ok && s.Instance != who.Instance && s.Released == 0 && !takesBack(s, c) {
		return 0, fmt.Errorf(
			"%w: node ID %d is of node %s (instance %s); %s",
			ErrIDTaken,
			wanted,
			s.Name,
			s.Instance,
			why,
		)
	}
	return wanted, r.fits(wanted)
}

// choice bounds the free IDs that a claim chooses from.
const choice = 4096

// free are the IDs that may be claimed, in order: those that were never used or
// cleanly released by number, then the others by the time of their release.
func (r *register) free() (ids []uint32, err error) {
	var released []stored
	for id := uint32(1); id <= r.limit && id != 0 && len(ids) < choice; id++ {
		s, ok := r.byID[id]
		switch {
		case !ok || s.Released != 0 && s.Clean:
			ids = append(ids, id)
		case s.Released != 0:
			released = append(released, s)
		}
	}
	slices.SortFunc(
		released,
		func(a, b stored) int { return cmp.Or(cmp.Compare(a.Released, b.Released), cmp.Compare(a.Id, b.Id)) },
	)
	for _, s := range released {
		ids = append(ids, s.Id)
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf(
			"%w: all %d that fit every subnet are taken: give the nodes larger networks, or release nodes that are gone (cadastre node release NAME)",
			ErrNoID,
			r.limit,
		)
	}
	return ids, nil
}

func (r *register) fits(id uint32) error {
	if id > r.limit {
		return fmt.Errorf(
			"%w: node ID %d is above %d, the largest that fits every subnet: give the nodes larger networks",
			ErrNoID,
			id,
			r.limit,
		)
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
	name   *kv.NodeName // who had the name
	nameAt int64        // revision of its key
}

// write makes the claim in one transaction, or fails with kvdb.ErrConditions.
// The record of the ID, if there is one, tells how often it changed hands.
//
// A store without transactions does the writes in their order, and may stop
// anywhere. First the old records of this name say that they count no more, then
// the name is taken, which only one instance can, and then the ID. What this
// node had before goes last: until then it has that, too, and not neither.
func (r *register) write(ctx context.Context, store kvdb.Store, who Identity, c claim) (Held, error) {
	was := r.byID[c.id]
	record := &kv.NodeRecord{
		Id:         c.id,
		Name:       who.Name,
		Instance:   who.Instance,
		Generation: max(was.GetGeneration(), c.want.Generation) + 1,
	}
	var t txn
	record.ExplicitBlocks = who.Explicit
	if c.want.ID != c.id {
		record.QuarantinedUntil = r.quarantine(who, c.now)
	}
	if c.own.NodeRecord != nil {
		// Until the blocks that are in use have claims, see IDClaimer.ClaimsBlocks.
		record.ExplicitBlocks = who.Explicit && c.own.ExplicitBlocks
		record.QuarantinedUntil = max(record.QuarantinedUntil, c.own.QuarantinedUntil)
		record.IpAddresses, record.NodeUid, record.PodCidrs = c.own.IpAddresses, c.own.NodeUid, c.own.PodCidrs
		record.Underlay, record.PublicKey = c.own.Underlay, c.own.PublicKey
		if c.own.Id == c.id && c.own.Name == who.Name && c.own.Generation >= c.want.Generation &&
			c.own.SupersededBy == 0 {
			record = c.own.NodeRecord // nothing to claim
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
		t.put(kv.NodeNameKey(who.Name), c.nameAt, &kv.NodeName{Id: c.id, Instance: who.Instance})
		t.put(kv.NodeRecordKey(c.id), was.revision, record) // revision 0 where there was none
	}
	// An agent that beat under this ID before is an earlier run of this one, or
	// finds by this beat that it has lost the ID. The beat may be the only trace of
	// a twin, if the ID was released or the record was lost.
	if err := r.lookForTwin(ctx, store, who, c.id, c.now); err != nil {
		return Held{}, err
	}
	beat := who.beat(Held{c.id, record.Generation}, c.now)
	t.put(kv.BeatKey(c.id), r.beats[c.id].revision, beat)
	others, err := r.others(ctx, store, who, c)
	if err != nil {
		return Held{}, err
	}
	for _, s := range others { // not cleanly: they may still have addresses in use
		gone := proto.Clone(s.NodeRecord).(*kv.NodeRecord)
		gone.Released = c.now.UnixNano()
		t.put(kv.NodeRecordKey(s.Id), s.revision, gone)
	}
	for id, b := range r.beats {
		if id != c.id {
			t.conds = append(t.conds, kvdb.Cond{Key: kv.BeatKey(id), ModRevision: b.revision})
		}
	}
	if err := who.twins.try(beat); err != nil {
		return Held{}, err
	}
	_, err = t.commit(ctx, store)
	return Held{c.id, record.Generation}, err
}

// others are the IDs that this instance has beside the one that it claims. They are the
// one before, where another one is pinned, and what a claim that stopped halfway has
// left. The latter counts where the name says that the claimed ID came after it.
func (r *register) others(ctx context.Context, store kvdb.Store, who Identity, c claim) (all []stored, err error) {
	if c.own.NodeRecord != nil && c.own.Id != c.id {
		all = append(all, c.own)
	}
	for id, s := range r.byID {
		if c.name.Id != c.id || c.name.Instance != who.Instance || id == c.id || id == c.own.GetId() ||
			s.Instance != who.Instance ||
			s.Name != who.Name ||
			s.Released != 0 {
			continue
		}
		beat, err := r.beat(ctx, store, id)
		if err != nil {
			return nil, err
		}
		if !fresh(beat, who, c.now) {
			all = append(all, s)
		}
	}
	return all, nil
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
