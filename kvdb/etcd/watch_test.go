// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

func TestWatchOfACompactedRevision(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	s := open(t, at(server.Endpoint()))
	first := put(t, s, "a", "1")
	put(t, s, "a", "2")
	last := put(t, s, "a", "3")
	g.Expect(server.Compact(t.Context(), last)).To(Succeed())
	for _, from := range []int64{-1, 1, first, last - 1} {
		w, err := s.Watch(t.Context(), "", from)
		if err == nil {
			err = end(t, w)
		}
		g.Expect(err).To(MatchError(kvdb.ErrCompacted), "revision %d", from)
	}
	g.Expect(next(t, watch(t, s, "", last))[0].ModRevision).To(Equal(last))
}

// A watch without a reader holds up neither writers nor other watches, and
// learns that it was overtaken.
func TestSlowWatchIsOvertaken(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	s := open(t, at(server.Endpoint()))
	slow, fast := watch(t, s, "", 0), watch(t, s, "", 0)
	const writes = 600
	value, last := string(make([]byte, 4000)), int64(0)
	for range writes {
		last = put(t, s, "a", value)
		g.Expect(next(t, fast)[0].ModRevision).To(Equal(last))
	}
	g.Expect(server.Compact(t.Context(), last)).To(Succeed())
	delivered := 0
	g.Eventually(func() bool {
		select {
		case _, ok := <-slow.Events():
			delivered++
			return ok
		case <-time.After(long):
			return true
		}
	}, long, time.Nanosecond).Should(BeFalse())
	g.Expect(slow.Err()).To(MatchError(kvdb.ErrCompacted))
	g.Expect(delivered).To(BeNumerically("<", writes))
	g.Expect(fast.Err()).NotTo(HaveOccurred())
}

// A transaction may be larger than what etcd sends at once, so that it comes
// in fragments; and what a watch catches up with comes many at a time.
func TestBatchesAreTransactions(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t, etcdtest.MaxRequestBytes(64_000))
	s := open(t, at(server.Endpoint()))
	start := put(t, s, "a", "start")
	live := watch(t, s, "big/", start+1)
	value := make([]byte, 25_000)
	var revs []int64
	for range 30 {
		rev, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put("big/2", value), kvdb.Put("small", nil), kvdb.Put("big/1", value)})
		g.Expect(err).NotTo(HaveOccurred())
		revs = append(revs, rev)
	}
	for name, w := range map[string]kvdb.Watcher{"live": live, "later": watch(t, s, "big/", start+1)} {
		for _, rev := range revs {
			batch := next(t, w)
			g.Expect(batch).To(HaveLen(2), name)
			for i, e := range batch {
				g.Expect(e.Key).To(Equal(fmt.Sprint("big/", i+1)), name)
				g.Expect(e.ModRevision).To(Equal(rev), name)
				g.Expect(e.Value).To(HaveLen(len(value)), name)
			}
		}
	}
}

func TestQuietWatchStaysOpen(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	s := open(t, hurried(server.Endpoint())) // which is silent long enough to be asked for signs of life
	_, rev, err := s.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	quiet := map[string]kvdb.Watcher{
		"from now": watch(t, s, "", 0), "from the next": watch(t, s, "", rev+1), "from later": watch(t, s, "", rev+2),
	}
	g.Consistently(func() error {
		for name, w := range quiet {
			select {
			case batch := <-w.Events():
				return fmt.Errorf("%s: delivered %v, %w", name, batch, w.Err())
			default:
			}
		}
		return nil
	}, 4*(200+300)*time.Millisecond).Should(Succeed())
	put(t, s, "a", "1")
	put(t, s, "a", "2")
	for name, w := range quiet {
		g.Expect(next(t, w)).To(HaveLen(1), name)
	}
}

func TestWatchEndsWithItsConnection(t *testing.T) {
	for name, c := range map[string]struct {
		fail func(server *etcdtest.Server, proxy *etcdtest.Proxy)
		heal func(server *etcdtest.Server, proxy *etcdtest.Proxy)
		says string
	}{
		"cut": {
			func(_ *etcdtest.Server, p *etcdtest.Proxy) { p.Cut() },
			func(_ *etcdtest.Server, p *etcdtest.Proxy) { p.Pass() }, "reading from server",
		},
		"half-open": {
			func(_ *etcdtest.Server, p *etcdtest.Proxy) { p.Blackhole() },
			func(_ *etcdtest.Server, p *etcdtest.Proxy) { p.Pass() }, "no sign of life",
		},
		"half-open one way": {
			func(_ *etcdtest.Server, p *etcdtest.Proxy) { p.Mute() },
			func(_ *etcdtest.Server, p *etcdtest.Proxy) { p.Pass() }, "no sign of life",
		},
		"server dies": {
			func(s *etcdtest.Server, _ *etcdtest.Proxy) { _ = s.Stop() },
			func(s *etcdtest.Server, _ *etcdtest.Proxy) { _ = s.Restart() }, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := etcdtest.Start(t)
			proxy := etcdtest.StartProxy(t, server.Address())
			cfg := at(proxy.Address())
			if c.says == "no sign of life" {
				cfg = hurried(proxy.Address())
			}
			cfg.RequestTimeout = 500 * time.Millisecond
			s := open(t, cfg)
			rev := put(t, s, "a", "1")
			w := watch(t, s, "", rev)
			next(t, w)
			c.fail(server, proxy)
			g.Expect(end(t, w)).To(MatchError(And(ContainSubstring(proxy.Address()), ContainSubstring(c.says))))

			for what, err := range everything(t.Context(), s) {
				g.Expect(err).To(HaveOccurred(), what)
			}

			c.heal(server, proxy)
			g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
			for what, err := range everything(t.Context(), s) {
				g.Expect(err).NotTo(HaveOccurred(), what)
			}
		})
	}
}

// A slow network ends no call and no watch.
func TestSlowNetwork(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	proxy := etcdtest.StartProxy(t, server.Address())
	s := open(t, at(proxy.Address()))
	_, rev, err := s.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	proxy.Delay(80 * time.Millisecond)
	proxy.Throttle(100_000)
	w := watch(t, s, "", rev+1)
	for i := range 5 {
		put(t, s, fmt.Sprint(i), string(make([]byte, 5_000)))
		g.Expect(next(t, w)[0].Key).To(Equal(fmt.Sprint(i)))
	}
	kvs, _, err := s.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(HaveLen(5))
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).NotTo(HaveOccurred(), what)
	}
	g.Expect(w.Err()).NotTo(HaveOccurred())
}

// The network breaks when the request has arrived, and the answer has not: the
// caller must not take it for refused.
func TestUnknownOutcome(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	direct := open(t, at(server.Endpoint()))
	proxy := etcdtest.StartProxy(t, server.Address())
	s := open(t, at(proxy.Address()))
	g.Expect(s.Probe(t.Context())).To(Succeed())
	proxy.Mute()
	result := make(chan error)
	go func() {
		_, err := s.Txn(t.Context(), []kvdb.Cond{kvdb.Absent("a")}, []kvdb.Op{kvdb.Put("a", []byte("mine"))})
		result <- err
	}()
	g.Eventually(func() string { return get(t, direct, "a") }, long).Should(Equal("mine"))
	proxy.Cut()
	err := <-result
	g.Expect(err).To(HaveOccurred())
	g.Expect(err).NotTo(MatchError(kvdb.ErrConditions))
	proxy.Pass()
	g.Expect(get(t, s, "a")).To(Equal("mine"))
	_, rev, err := s.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	kv, _, err := s.Get(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kv.ModRevision).To(Equal(rev), "it was sent once")
}

// One of three members dies, and all goes on; a second one dies, and all fails
// in time; one comes back, and all is well.
func TestClusterLosesMembers(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cluster := etcdtest.StartCluster(t, 3)
	s := open(t, at(cluster.Endpoints()...))
	before := put(t, s, "a", "1")
	var watches []kvdb.Watcher // one at each member
	for _, m := range cluster.Members {
		watches = append(watches, watch(t, open(t, at(m.Endpoint())), "", before+1)) // a member may lag: its now is earlier
	}
	first, _ := cluster.Leader()
	second, last := (first+1)%3, (first+2)%3
	g.Expect(cluster.Members[first].Stop()).To(Succeed())
	g.Expect(end(t, watches[first])).To(HaveOccurred())
	g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
	rev := put(t, s, "a", "2")
	for _, w := range []kvdb.Watcher{watches[second], watches[last]} {
		g.Expect(next(t, w)[0].ModRevision).To(Equal(rev))
	}

	g.Expect(cluster.Members[second].Stop()).To(Succeed())
	g.Expect(end(t, watches[second])).To(HaveOccurred())
	g.Expect(end(t, watches[last])).To(HaveOccurred(), "there is no leader")
	g.Eventually(func() bool { _, ok := cluster.Leader(); return ok }, long).Should(BeFalse(), "the last one may have led, and has noticed")
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).To(HaveOccurred(), what)
	}

	g.Expect(cluster.Members[first].Restart()).To(Succeed())
	g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
	g.Expect(get(t, s, "a")).To(Equal("2"))
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).NotTo(HaveOccurred(), what)
	}
}

func TestCloseEndsWatchesThatAreRead(t *testing.T) {
	g := NewWithT(t)
	s := open(t, at(etcdtest.Start(t).Endpoint()))
	w := watch(t, s, "", 0)
	ended := make(chan error)
	go func() {
		for range w.Events() {
		}
		ended <- w.Err()
	}()
	put(t, s, "a", "1")
	g.Expect(s.Close()).To(Succeed())
	g.Expect(<-ended).To(MatchError(kvdb.ErrClosed))
	w.Close()
	g.Expect(s.Probe(context.Background())).To(MatchError(kvdb.ErrClosed))
}
