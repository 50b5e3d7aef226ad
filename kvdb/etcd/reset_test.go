// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

// exchange is a way in which a store comes back as another one.
type exchange struct {
	do    func(*etcdtest.Server, etcdtest.Snapshot) error
	later int    // transactions of others before the client looks
	want  string // what is stored below "a" then
}

func exchanges() map[string]exchange {
	wipe := func(s *etcdtest.Server, _ etcdtest.Snapshot) error { return s.Wipe() }
	replace := func(s *etcdtest.Server, _ etcdtest.Snapshot) error { return s.Replace() }
	restore := func(s *etcdtest.Server, kept etcdtest.Snapshot) error { return s.Restore(kept) }
	return map[string]exchange{
		"empty":                          {wipe, 0, ""},
		"empty, and written past":        {wipe, 50, ""},
		"another one":                    {replace, 0, ""},
		"another one, and written past":  {replace, 50, ""},
		"older":                          {restore, 0, "old"},
		"older, and written past":        {restore, 50, "old"},
		"older, and written to the same": {restore, 10, "old"},
	}
}

// past makes a server with a past, and a snapshot of ten transactions ago.
func past(t *testing.T) (*etcdtest.Server, etcdtest.Snapshot, etcd.Config) {
	t.Helper()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	cfg := at(server.Endpoint())
	writer := open(t, cfg)
	put(t, writer, "a", "old")
	kept, err := server.Snapshot()
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { return writer.Probe(t.Context()) }, long).Should(Succeed())
	for range 10 {
		put(t, writer, "a", "new")
	}
	g.Expect(writer.Close()).To(Succeed())
	return server, kept, cfg
}

// happen lets it happen.
func (e exchange) happen(t *testing.T, server *etcdtest.Server, kept etcdtest.Snapshot) {
	t.Helper()
	NewWithT(t).Expect(e.do(server, kept)).To(Succeed())
	other := open(t, at(server.Endpoint()))
	for range e.later {
		put(t, other, "others", "1")
	}
}

// A watch that is open has ended; the list that follows is right.
func TestWatchDoesNotOutliveItsStore(t *testing.T) {
	t.Parallel()
	for name, e := range exchanges() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server, kept, cfg := past(t)
			s := open(t, cfg)
			_, rev, err := s.List(t.Context(), "a")
			g.Expect(err).NotTo(HaveOccurred())
			w := watch(t, s, "a", rev+1)
			e.happen(t, server, kept)
			g.Expect(end(t, w)).To(HaveOccurred())
			g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
			expectFresh(t, s, e.want)
		})
	}
}

// A client that has listed, and watches only when the store is another one, is
// told so: its revision means something else now. Other clients may have read before.
func TestWatchAfterTheStoreWasExchanged(t *testing.T) {
	t.Parallel()
	for name, e := range exchanges() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server, kept, cfg := past(t)
			s := open(t, cfg)
			_, rev, err := s.List(t.Context(), "a")
			g.Expect(err).NotTo(HaveOccurred())
			e.happen(t, server, kept)
			if e.later != 10 { // else the revision is the same again, and the store cannot tell
				g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
			}
			g.Eventually(func() error {
				w, err := s.Watch(t.Context(), "a", rev+1)
				if err == nil {
					defer w.Close()
				}
				return err
			}, long).Should(Or(MatchError(etcd.ErrReset), MatchError(ContainSubstring("connection to etcd was lost"))))
			expectFresh(t, s, e.want)
		})
	}
}

// A list of several pages is of one store.
func TestListWhileTheStoreIsExchanged(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	cfg := at(server.Endpoint())
	writer := open(t, cfg)
	fill(t, writer, 4, "old", "a/")
	kept, err := server.Snapshot()
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { return writer.Probe(t.Context()) }, long).Should(Succeed())
	fill(t, writer, 4, "new", "a/")

	pages := 0
	cfg.PageSize = 2
	cfg.Observe = func(op string, _ time.Duration, _ error) {
		if pages++; pages == 1 {
			exchange{do: exchanges()["older"].do, later: 50}.happen(t, server, kept)
		}
	}
	kvs, _, err := open(t, cfg).List(t.Context(), "a/")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(HaveLen(4))
	for _, kv := range kvs {
		g.Expect(string(kv.Value)).To(Equal("old"))
	}
}

// expectFresh expects that all is as if the store had been opened now.
func expectFresh(t *testing.T, s *etcd.Store, want string) {
	t.Helper()
	g := NewWithT(t)
	kvs, rev, err := s.List(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	if want == "" {
		g.Expect(kvs).To(BeEmpty())
	} else {
		g.Expect(kvs).To(HaveLen(1))
		g.Expect(string(kvs[0].Value)).To(Equal(want))
	}
	w := watch(t, s, "a", rev+1)
	g.Expect(s.Probe(t.Context())).To(Succeed())
	g.Expect(put(t, s, "a", "fresh")).To(Equal(rev + 1))
	g.Expect(next(t, w)[0].ModRevision).To(Equal(rev + 1))
	g.Expect(w.Err()).NotTo(HaveOccurred())
}

// Two stores that know nothing of each other answer in turns: each answer is
// from another past than the one before.
func TestProbeEndsWatches(t *testing.T) {
	g := NewWithT(t)
	var seen requests
	one, other := etcdtest.Start(t), etcdtest.Start(t)
	_, port, err := net.SplitHostPort(one.Address())
	g.Expect(err).NotTo(HaveOccurred())
	cfg := at(one.Address(), "localhost:"+port, other.Address()) // one of them twice in a row
	cfg.Observe = seen.observe
	s := open(t, cfg)
	var w kvdb.Watcher
	g.Eventually(func() error {
		_ = s.Probe(t.Context())
		w, err = s.Watch(t.Context(), "", 0)
		return err
	}, long).Should(Succeed())
	g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(MatchError(etcd.ErrReset))
	g.Expect(seen.err(etcd.OpProbe)).NotTo(HaveOccurred(), "the request itself was answered")
	g.Expect(end(t, w)).To(MatchError(etcd.ErrReset))
	g.Expect(end(t, w)).To(MatchError(ContainSubstring("cluster")))
}
