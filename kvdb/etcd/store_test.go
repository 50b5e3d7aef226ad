// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
)

// long bounds the wait for an event that must happen.
const long = 2 * time.Minute

// TestMain gives what members of a cluster say to each other the time to end:
// etcd closes such connections some seconds after its own end.
func TestMain(m *testing.M) {
	code := m.Run()
	for end := time.Now().Add(long); code == 0 && goleak.Find() != nil; {
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, goleak.Find())
			code = 1
		}
	}
	os.Exit(code)
}

// open opens a store that ends with the test.
func open(t *testing.T, cfg etcd.Config) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(cfg)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// at is the configuration of a store at endpoints that loses patience soon.
func at(endpoints ...string) etcd.Config {
	return etcd.Config{
		Endpoints:        endpoints,
		Prefix:           "/cadastre/",
		RequestTimeout:   2 * time.Second,
		KeepAlive:        200 * time.Millisecond,
		KeepAliveTimeout: long, // a slow machine is not a dead one
	}
}

// hurried is a configuration that soon takes a silent server for a dead one.
func hurried(endpoints ...string) etcd.Config {
	cfg := at(endpoints...)
	cfg.KeepAliveTimeout = 300 * time.Millisecond
	return cfg
}

func put(t *testing.T, s kvdb.Store, key, value string) int64 {
	t.Helper()
	rev, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, []byte(value))})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return rev
}

func get(t *testing.T, s kvdb.Store, key string) string {
	t.Helper()
	kv, _, err := s.Get(t.Context(), key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(kv.Value)
}

func watch(t *testing.T, s kvdb.Store, prefix string, from int64) kvdb.Watcher {
	t.Helper()
	w, err := s.Watch(t.Context(), prefix, from)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(w.Close)
	return w
}

// next answers the next batch.
func next(t *testing.T, w kvdb.Watcher) []kvdb.Event {
	t.Helper()
	select {
	case batch, ok := <-w.Events():
		NewWithT(t).Expect(ok).To(BeTrue(), "the watch ended: %v", w.Err())
		return batch
	case <-time.After(long):
		t.Fatal("the watch delivers nothing")
		return nil
	}
}

// end reads a watch to its end and answers why it ended.
func end(t *testing.T, w kvdb.Watcher) error {
	t.Helper()
	for limit := time.After(long); ; {
		select {
		case _, ok := <-w.Events():
			if !ok {
				return w.Err()
			}
		case <-limit:
			t.Fatal("the watch does not end")
		}
	}
}

func TestContract(t *testing.T) {
	one := func(t *testing.T) etcd.Config { return at(etcdtest.Start(t).Endpoint()) }
	for name, config := range map[string]func(t *testing.T) etcd.Config{
		"one server": one,
		"one key a page": func(t *testing.T) etcd.Config {
			cfg := one(t)
			cfg.PageSize = 1
			return cfg
		},
		"with certificates and a password": func(t *testing.T) etcd.Config {
			server := etcdtest.Start(t, etcdtest.TLS())
			NewWithT(t).Expect(server.EnableAuth(t.Context(), "agent", "secret", "/cadastre/")).To(Succeed())
			cfg := at(server.Endpoint())
			cfg.TLS, cfg.Username, cfg.Password = server.ClientTLS(), "agent", "secret"
			return cfg
		},
		"three members": func(t *testing.T) etcd.Config { return at(etcdtest.StartCluster(t, 3).Endpoints()...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, n := config(t), 0
			kvdbtest.Run(t, func(t *testing.T) kvdb.Store {
				n++
				mine := cfg
				mine.Prefix = fmt.Sprintf("%s%d/", cfg.Prefix, n)
				return open(t, mine)
			})
		})
	}
}

func TestPrefixesKeepStoresApart(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	cfg := at(server.Endpoint())
	mine := open(t, cfg)
	cfg.Prefix = "/cadastre0"
	neighbour := open(t, cfg)
	cfg.Prefix = ""
	all := open(t, cfg)

	here, everywhere := watch(t, mine, "", 0), watch(t, all, "", 0)
	theirs := put(t, neighbour, "a", "theirs")
	rev := put(t, mine, "a", "mine")
	g.Expect(rev).To(Equal(theirs+1), "revisions are the whole etcd's")
	g.Expect(get(t, mine, "a")).To(Equal("mine"))
	g.Expect(get(t, all, "/cadastre/a")).To(Equal("mine"))
	kvs, _, err := mine.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(Equal([]kvdb.KeyValue{{Key: "a", Value: []byte("mine"), ModRevision: rev}}))
	kvs, _, err = all.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(HaveLen(2))
	g.Expect(next(t, here)[0].Key).To(Equal("a"))
	g.Expect(next(t, everywhere)[0].Key).To(Equal("/cadastre0a"))
	g.Expect(next(t, everywhere)[0].Key).To(Equal("/cadastre/a"))
	g.Expect(all.Probe(t.Context())).To(Succeed())
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	for name, spoil := range map[string]func(*etcd.Config){
		"no endpoints":          func(c *etcd.Config) { c.Endpoints = nil },
		"an empty endpoint":     func(c *etcd.Config) { c.Endpoints = []string{"a:1", ""} },
		"an unknown scheme":     func(c *etcd.Config) { c.Endpoints = []string{"ftp://a:1"} },
		"TLS without TLS":       func(c *etcd.Config) { c.TLS = etcdtest.Start(t, etcdtest.TLS()).ClientTLS() },
		"some with TLS":         func(c *etcd.Config) { c.Endpoints = []string{"http://a:1", "https://a:2"} },
		"a user only":           func(c *etcd.Config) { c.Username = "agent" },
		"a password only":       func(c *etcd.Config) { c.Password = "secret" },
		"a negative timeout":    func(c *etcd.Config) { c.RequestTimeout = -1 },
		"a negative keep-alive": func(c *etcd.Config) { c.KeepAlive = -1 },
		"a negative page":       func(c *etcd.Config) { c.PageSize = -1 },
	} {
		cfg := at("http://127.0.0.1:1")
		spoil(&cfg)
		_, err := etcd.Open(cfg)
		NewWithT(t).Expect(err).To(MatchError(HavePrefix("open store in etcd")), name)
	}
}

// away is a server that does not run yet, and what a store needs to know of it.
func away(t *testing.T, cfg func(*etcdtest.Server) etcd.Config) (*etcdtest.Server, *etcd.Store) {
	t.Helper()
	server := etcdtest.Start(t)
	c := cfg(server)
	NewWithT(t).Expect(server.Stop()).To(Succeed())
	return server, open(t, c)
}

func TestOpenWithoutServer(t *testing.T) {
	t.Parallel()
	for name, user := range map[string]string{"anonymous": "", "with a password": "agent"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server, s := away(t, func(server *etcdtest.Server) etcd.Config {
				cfg := at(server.Endpoint())
				cfg.RequestTimeout = 300 * time.Millisecond
				if user != "" {
					g.Expect(server.EnableAuth(t.Context(), user, "secret", cfg.Prefix)).To(Succeed())
					cfg.Username, cfg.Password = user, "secret"
				}
				return cfg
			})
			for what, call := range calls(t.Context(), s) {
				err := call()
				g.Expect(err).To(MatchError(context.DeadlineExceeded), what)
				g.Expect(err).To(MatchError(ContainSubstring(server.Endpoint())), what)
				g.Expect(err).To(MatchError(ContainSubstring("no answer within 300ms")), what)
				g.Expect(err).To(MatchError(ContainSubstring("connection refused")), what)
			}

			g.Expect(server.Restart()).To(Succeed())
			g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
			for what, err := range everything(t.Context(), s) {
				g.Expect(err).NotTo(HaveOccurred(), what)
			}
		})
	}
}

// calls are all that a store can do.
func calls(ctx context.Context, s *etcd.Store) map[string]func() error {
	return map[string]func() error{
		"get":   func() error { _, _, err := s.Get(ctx, "a"); return err },
		"list":  func() error { _, _, err := s.List(ctx, "a", "b"); return err },
		"txn":   func() error { _, err := s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("b", nil)}); return err },
		"probe": func() error { return s.Probe(ctx) },
		"watch": func() error {
			w, err := s.Watch(ctx, "", 0)
			if err == nil {
				w.Close()
			}
			return err
		},
	}
}

// everything does all that a store can do, at the same time.
func everything(ctx context.Context, s *etcd.Store) map[string]error {
	var mu sync.Mutex
	var running sync.WaitGroup
	errs := map[string]error{}
	for what, call := range calls(ctx, s) {
		running.Go(func() {
			err := call()
			mu.Lock()
			defer mu.Unlock()
			errs[what] = err
		})
	}
	running.Wait()
	return errs
}

func TestContextsAndCloseEndWhatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		user string
		end  func(s *etcd.Store, cancel context.CancelFunc)
		want error
	}{
		"context":                      {"", func(_ *etcd.Store, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"context while authenticating": {"agent", func(_ *etcd.Store, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"close":                        {"", func(s *etcd.Store, _ context.CancelFunc) { _ = s.Close() }, kvdb.ErrClosed},
		"close while authenticating":   {"agent", func(s *etcd.Store, _ context.CancelFunc) { _ = s.Close() }, kvdb.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			proxy := etcdtest.StartProxy(t, etcdtest.Start(t).Address())
			proxy.Blackhole()
			cfg := at(proxy.Address())
			cfg.RequestTimeout = long
			if c.user != "" {
				cfg.Username, cfg.Password = c.user, "secret"
			}
			s := open(t, cfg)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			results := make(chan error)
			all := calls(ctx, s)
			for _, call := range all {
				go func() { results <- call() }()
			}
			g.Eventually(proxy.Links, long).ShouldNot(BeZero())
			c.end(s, cancel)
			for range all {
				g.Expect(<-results).To(MatchError(c.want), "not the end of the request's time")
			}
		})
	}
}
