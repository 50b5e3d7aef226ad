// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// EndClaims deletes the claims that are over, and returns their names:
//
//   - those whose end has passed, as the release of their node has set it;
//   - those of a node that is gone for good: the cluster does not have the node
//     with the claim's UID, and the instance that has the claim has not beaten
//     for e.After, under any node ID.
//
// An agent stops allocating before e.After, so that other nodes may hold the prefixes at
// once. Before EndClaims deletes a held claim it writes the claim's end and reads the
// beats again. An agent that comes back beats first and looks at its claims afterwards.
// So either EndClaims sees the agent, or the agent sees the end and renews the claim,
// which then is not deleted. That needs no transactions. A claim that cannot be decided
// does not keep others from ending.
func EndClaims(ctx context.Context, store kvdb.Store, e Expired, now time.Time) (ended []string, err error) {
	kvs, _, err := store.List(ctx, kv.PrefixClaimPrefix, kv.BeatPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the claims and the last beats: %w", err)
	}
	s := claimSweep{Expired: e, store: store, now: now, seen: lastBeats(kvs)}
	var marked []storedClaim
	for _, x := range kvs {
		c, ok := claimOf(x)
		if !ok {
			continue
		}
		if c.Ends != 0 && !now.Before(time.Unix(0, c.Ends)) {
			s.delete(ctx, c)
			continue
		}
		gone, err := s.gone(c)
		switch {
		case err != nil:
			s.failed(c, err)
		case gone && !c.Held: // it allows nothing
			s.delete(ctx, c)
		case gone && s.mark(ctx, &c):
			marked = append(marked, c)
		}
	}
	s.finish(ctx, marked)
	return s.ended, errors.Join(s.errs...)
}

// storedClaim is a claim as it was read.
type storedClaim struct {
	*kv.PrefixClaim
	key      string
	revision int64
	endsByUs bool // this sweep has written the end
}

// claimOf decodes a claim. A value of another kind, or one that cannot be read,
// is none.
func claimOf(x kvdb.KeyValue) (storedClaim, bool) {
	c := &kv.PrefixClaim{}
	if !strings.HasPrefix(x.Key, kv.PrefixClaimPrefix) || proto.Unmarshal(x.Value, c) != nil {
		return storedClaim{}, false
	}
	return storedClaim{PrefixClaim: c, key: x.Key, revision: x.ModRevision}, true
}

// lastBeats returns when each instance has beaten last.
func lastBeats(kvs []kvdb.KeyValue) map[string]time.Time {
	seen := map[string]time.Time{}
	for _, x := range kvs {
		b := &kv.NodeBeat{}
		if !strings.HasPrefix(x.Key, kv.BeatPrefix) || proto.Unmarshal(x.Value, b) != nil {
			continue
		}
		if at := time.Unix(0, b.At); at.After(seen[b.Instance]) {
			seen[b.Instance] = at
		}
	}
	return seen
}

// claimSweep is one run of EndClaims.
type claimSweep struct {
	Expired
	store kvdb.Store
	now   time.Time
	seen  map[string]time.Time // the last beat of each instance
	ended []string
	errs  []error
}

// silent reports whether the agent of a claim has stopped allocating. The time of
// a claim without a beat begins when the claim was written.
func (s *claimSweep) silent(c storedClaim) bool {
	return s.now.Sub(s.seen[c.Instance]) >= s.After && s.now.Sub(time.Unix(0, c.Since)) >= s.After
}

// gone reports whether the node of a claim is gone for good. A claim without a
// UID is of every node of its name.
func (s *claimSweep) gone(c storedClaim) (bool, error) {
	if !s.silent(c) {
		return false, nil
	}
	uid, found, err := s.Node(c.Node)
	if err != nil {
		return false, err
	}
	return !found || uid != "" && c.NodeUid != "" && uid != c.NodeUid, nil
}

// mark writes the end of a held claim, unless it has one, and reports whether
// the claim was still as it was read. Should this process end before it deletes
// the claim, the end keeps the prefix from other nodes for as long again.
func (s *claimSweep) mark(ctx context.Context, c *storedClaim) bool {
	if c.Ends != 0 {
		return true
	}
	c.Ends, c.endsByUs = s.now.Add(s.After).UnixNano(), true
	return s.put(ctx, c)
}

// put writes a claim if it still is as it was read.
func (s *claimSweep) put(ctx context.Context, c *storedClaim) bool {
	var t txn
	t.put(c.key, c.revision, c.PrefixClaim)
	revision, err := t.commit(ctx, s.store)
	if err != nil {
		s.failed(*c, err)
		return false
	}
	c.revision = revision
	return true
}

// finish deletes the marked claims of agents that have not come back.
func (s *claimSweep) finish(ctx context.Context, marked []storedClaim) {
	if len(marked) == 0 {
		return
	}
	beats, _, err := s.store.List(ctx, kv.BeatPrefix)
	if err != nil {
		s.errs = append(s.errs, fmt.Errorf("list the last beats: %w", err))
		return
	}
	s.seen = lastBeats(beats)
	for _, c := range marked {
		switch {
		case s.silent(c):
			s.delete(ctx, c)
		case c.endsByUs:
			c.Ends = 0
			s.put(ctx, &c)
		}
	}
}

// delete deletes a claim if it still is as it was read.
func (s *claimSweep) delete(ctx context.Context, c storedClaim) {
	_, err := s.store.Txn(ctx, []kvdb.Cond{kvdb.AtRevision(c.key, c.revision)}, []kvdb.Op{kvdb.Delete(c.key)})
	if err != nil {
		s.failed(c, err)
		return
	}
	s.ended = append(s.ended, strings.TrimPrefix(c.key, kv.PrefixClaimPrefix))
}

// failed notes why a claim was not decided. If it has changed
// meanwhile, the next run looks at it again.
func (s *claimSweep) failed(c storedClaim, err error) {
	if !errors.Is(err, kvdb.ErrConditions) {
		s.errs = append(s.errs, fmt.Errorf("end the claim of node %s for %s: %w", c.Node, c.Prefix, err))
	}
}
