// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

// TestMain gives what members say to each other the time to end: etcd closes
// such connections some seconds after its own end.
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

const short, long = 300 * time.Millisecond, 2 * time.Minute

func dial(t *testing.T, config *tls.Config, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		TLS:       config,
		Logger:    zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond},
		})},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(d time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return do(ctx)
}

func put(c *clientv3.Client, key, value string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Put(ctx, key, value)
		return err
	}
}

// get answers the value of key, "" if there is none.
func get(g *WithT, c *clientv3.Client, key string) (value string) {
	g.Expect(within(long, func(ctx context.Context) error {
		resp, err := c.Get(ctx, key)
		if err == nil && len(resp.Kvs) == 1 {
			value = string(resp.Kvs[0].Value)
		}
		return err
	})).To(Succeed())
	return value
}

// identity answers the ID of the cluster and its revision.
func identity(g *WithT, c *clientv3.Client) (id uint64, rev int64) {
	g.Expect(within(long, func(ctx context.Context) error {
		resp, err := c.Get(ctx, "a")
		if err == nil {
			id, rev = resp.Header.ClusterId, resp.Header.Revision
		}
		return err
	})).To(Succeed())
	return id, rev
}

func TestServerKeepsItsDataAndEndpoint(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t)
	c := dial(t, s.ClientTLS(), s.Endpoint())
	g.Expect(within(long, put(c, "a", "1"))).To(Succeed())
	g.Expect(s.Stop()).To(Succeed())
	g.Expect(within(short, put(c, "a", "2"))).NotTo(Succeed())
	_, err := s.Revision()
	g.Expect(err).To(HaveOccurred())
	g.Expect(s.Restart()).To(Succeed())
	g.Expect(get(g, c, "a")).To(Equal("1"))
	g.Expect(s.Revision()).To(Equal(int64(2)))
	g.Expect(s.Close()).To(Succeed())
	g.Expect(s.Close()).To(Succeed())
}

func TestStopWaitsForNoWatch(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t)
	c := dial(t, nil, s.Endpoint())
	events := c.Watch(clientv3.WithRequireLeader(t.Context()), "a")
	g.Expect(within(long, put(c, "a", "1"))).To(Succeed())
	g.Eventually(events, long).Should(Receive())
	began := time.Now()
	g.Expect(s.Stop()).To(Succeed())
	g.Expect(time.Since(began)).To(BeNumerically("<", long))
}

func TestAnotherPast(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t)
	c := dial(t, nil, s.Endpoint())
	g.Expect(within(long, put(c, "a", "1"))).To(Succeed())
	kept, err := s.Snapshot()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(within(long, put(c, "a", "2"))).To(Succeed())
	g.Expect(within(long, put(c, "a", "3"))).To(Succeed())
	id, rev := identity(g, c)

	g.Expect(s.Restore(kept)).To(Succeed())
	g.Expect(get(g, c, "a")).To(Equal("1"))
	again, before := identity(g, c)
	g.Expect(again).To(Equal(id))
	g.Expect(before).To(Equal(rev - 2))

	g.Expect(s.Wipe()).To(Succeed())
	g.Expect(get(g, c, "a")).To(BeEmpty())
	again, before = identity(g, c)
	g.Expect(again).To(Equal(id), "it cannot be told from the old one by its ID")
	g.Expect(before).To(Equal(int64(1)))

	g.Expect(s.Replace()).To(Succeed())
	again, _ = identity(g, c)
	g.Expect(again).NotTo(Equal(id))
}

func TestCompact(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t)
	c := dial(t, nil, s.Endpoint())
	for range 3 {
		g.Expect(within(long, put(c, "a", "1"))).To(Succeed())
	}
	g.Expect(s.Compact(t.Context(), 3)).To(Succeed())
	_, err := c.Get(t.Context(), "a", clientv3.WithRev(2))
	g.Expect(err).To(MatchError(ContainSubstring("compacted")))
}

func TestTLS(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t, etcdtest.TLS())
	g.Expect(within(long, put(dial(t, s.ClientTLS(), s.Endpoint()), "a", "1"))).To(Succeed())
	nobody := s.ClientTLS()
	nobody.Certificates = nil
	g.Expect(within(short, put(dial(t, nobody, s.Endpoint()), "a", "2"))).NotTo(Succeed())
	began := time.Now()
	g.Expect(s.Stop()).To(Succeed())
	g.Expect(time.Since(began)).To(BeNumerically("<", long))
}

func TestAuthentication(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t)
	g.Expect(s.EnableAuth(t.Context(), "agent", "secret", "mine/")).To(Succeed())
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Username: "agent", Password: "secret", Logger: zap.NewNop()})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = c.Close() }()
	g.Expect(within(long, put(c, "mine/a", "1"))).To(Succeed())
	g.Expect(within(long, put(c, "yours/a", "1"))).NotTo(Succeed())
	g.Expect(within(long, put(dial(t, nil, s.Endpoint()), "mine/a", "2"))).NotTo(Succeed())
}

func TestClusterLosesMembers(t *testing.T) {
	g := NewWithT(t)
	cluster := etcdtest.StartCluster(t, 3)
	c := dial(t, nil, cluster.Endpoints()...)
	g.Expect(within(long, put(c, "a", "1"))).To(Succeed())
	leader, ok := cluster.Leader()
	g.Expect(ok).To(BeTrue())
	g.Expect(cluster.Members[leader].Stop()).To(Succeed())
	g.Eventually(func() error { return within(short, put(c, "a", "2")) }, long).Should(Succeed())
	g.Expect(cluster.Members[(leader+1)%3].Stop()).To(Succeed())
	g.Eventually(func() bool { _, ok := cluster.Leader(); return ok }, long).Should(BeFalse())
	g.Expect(within(short, put(c, "a", "3"))).NotTo(Succeed())
	g.Expect(cluster.Members[leader].Restart()).To(Succeed())
	g.Expect(within(long, put(c, "a", "4"))).To(Succeed())
	g.Expect(cluster.Close()).To(Succeed())
}

func TestProxy(t *testing.T) {
	g := NewWithT(t)
	s := etcdtest.Start(t)
	p := etcdtest.StartProxy(t, s.Address())
	direct, c := dial(t, nil, s.Endpoint()), dial(t, nil, p.Address())
	g.Expect(within(long, put(c, "a", "passed"))).To(Succeed())

	p.Delay(50 * time.Millisecond)
	began := time.Now()
	g.Expect(within(long, put(c, "a", "delayed"))).To(Succeed())
	g.Expect(time.Since(began)).To(BeNumerically(">=", 100*time.Millisecond))
	p.Pass()

	p.Throttle(10_000)
	began = time.Now()
	g.Expect(within(long, put(c, "a", string(make([]byte, 5_000))))).To(Succeed())
	g.Expect(time.Since(began)).To(BeNumerically(">=", 400*time.Millisecond))
	p.Pass()

	p.Mute()
	g.Expect(within(short, put(c, "a", "muted"))).NotTo(Succeed())
	g.Expect(get(g, direct, "a")).To(Equal("muted"))
	p.Pass()
	g.Expect(get(g, c, "a")).To(Equal("muted"), "the connection goes on")

	p.Blackhole()
	g.Expect(within(short, put(c, "a", "swallowed"))).NotTo(Succeed())
	g.Expect(get(g, direct, "a")).To(Equal("muted"))
	g.Expect(p.Links()).To(Equal(1))

	p.Cut()
	g.Eventually(p.Links, long).Should(BeZero())
	g.Expect(within(short, put(c, "a", "cut"))).NotTo(Succeed())
	p.Pass()
	g.Expect(get(g, c, "a")).To(Equal("muted"))
	g.Expect(p.Close()).To(Succeed())
}
