// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// only has the cluster know these nodes, each with a UID of "uid-" and its name.
func only(names ...string) func(string) (string, bool, error) {
	return func(name string) (string, bool, error) {
		if slices.Contains(names, name) {
			return "uid-" + name, true, nil
		}
		return "", false, nil
	}
}

func TestIDsOfNodesThatAreGoneExpire(t *testing.T) {
	for name, c := range map[string]struct {
		after   time.Duration // since the last beat
		exists  []string
		stopped bool
		want    []string
	}{
		"gone for long enough":         {expire, nil, false, []string{"a"}},
		"a moment too early":           {expire - 1, nil, false, nil},
		"ended in good order, early":   {expire - 1, nil, true, nil},
		"ended in good order":          {expire, nil, true, []string{"a"}},
		"the cluster has the node":     {2 * expire, []string{"a"}, false, nil},
		"by a clock that is ahead":     {-expire, nil, false, nil},
		"the cluster has another node": {expire, []string{"b"}, false, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			id := claim(t, store, who("a")).ID
			if c.stopped {
				beat := beatOf(g, store, id)
				beat.Stopped = true
				put(g, store, kv.BeatKey(id), beat)
			}
			now := began().Add(c.after)
			released, err := nodesync.ReleaseExpired(t.Context(), store, nodesync.Expired{After: expire, Node: only(c.exists...)}, now)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(released).To(Equal(c.want))
			if len(c.want) > 0 {
				g.Expect(records(g, store)[id]).To(And(HaveField("Released", now.UnixNano()), HaveField("Clean", true)))
			} else {
				g.Expect(records(g, store)[id].Released).To(BeZero())
			}
		})
	}
}

func TestOneRecordOfANameThatIsAliveKeepsAll(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	old := claim(t, store, who("a")).ID
	next, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, began().Add(2*expire))
	g.Expect(err).NotTo(HaveOccurred())

	e := nodesync.Expired{After: expire, Node: only()}
	g.Expect(nodesync.ReleaseExpired(t.Context(), store, e, began().Add(2*expire+time.Hour))).To(BeEmpty())
	g.Expect(nodesync.ReleaseExpired(t.Context(), store, e, began().Add(4*expire))).To(Equal([]string{"a"}))
	g.Expect(records(g, store)[old].Released).NotTo(BeZero())
	g.Expect(records(g, store)[next.ID].Released).NotTo(BeZero())

	before := revision(g, store)
	g.Expect(nodesync.ReleaseExpired(t.Context(), store, e, began().Add(8*expire))).To(BeEmpty(), "they are released already")
	g.Expect(revision(g, store)).To(Equal(before))
}

func TestTheTimeOfARecordWithoutABeatBegins(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	id := claim(t, store, who("a")).ID
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.BeatKey(id))})
	g.Expect(err).NotTo(HaveOccurred())

	e := nodesync.Expired{After: expire, Node: only()}
	first := began().Add(100 * expire)
	g.Expect(nodesync.ReleaseExpired(t.Context(), store, e, first)).To(BeEmpty())
	g.Expect(nodesync.ReleaseExpired(t.Context(), store, e, first.Add(expire-1))).To(BeEmpty())
	g.Expect(nodesync.ReleaseExpired(t.Context(), store, e, first.Add(expire))).To(Equal([]string{"a"}))
}

// listed is a store in which something happens right after it was listed.
type listed struct {
	kvdb.Store
	then func()
}

func (s listed) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	kvs, rev, err := s.Store.List(ctx, prefixes...)
	s.then()
	return kvs, rev, err
}

func TestARecordThatGoesGetsNoBeat(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	id := claim(t, store, who("a")).ID
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.BeatKey(id))})
	g.Expect(err).NotTo(HaveOccurred())

	goes := listed{store, func() {
		_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.NodeRecordKey(id))})
		g.Expect(err).NotTo(HaveOccurred())
	}}
	g.Expect(nodesync.ReleaseExpired(t.Context(), goes, nodesync.Expired{After: expire, Node: only()}, began())).To(BeEmpty())
	g.Expect(beatOf(g, store, id)).To(BeNil())
}

func TestAnAgentThatComesBackWhileItsIDExpires(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	id := claim(t, store, who("a")).ID
	now := began().Add(expire)
	released, err := nodesync.ReleaseExpired(t.Context(), store, nodesync.Expired{After: expire, Node: func(string) (string, bool, error) {
		beat := proto.Clone(beatOf(g, store, id)).(*kv.NodeBeat) // it beats after it was looked at
		beat.At = now.UnixNano()
		put(g, store, kv.BeatKey(id), beat)
		return "", false, nil
	}}, now)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(released).To(BeEmpty())
	g.Expect(records(g, store)[id].Released).To(BeZero())
}

func TestWhatCannotBeAskedOfOneNodeHarmsNoOther(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	claim(t, store, who("b"))
	away := errors.New("the API server is away")
	released, err := nodesync.ReleaseExpired(t.Context(), store, nodesync.Expired{After: expire, Node: func(name string) (string, bool, error) {
		if name == "a" {
			return "", false, away
		}
		return "", false, nil
	}}, began().Add(expire))
	g.Expect(err).To(MatchError(away))
	g.Expect(err).To(MatchError(ContainSubstring("node a")))
	g.Expect(released).To(Equal([]string{"b"}))
}
