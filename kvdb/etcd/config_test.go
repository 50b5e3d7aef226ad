// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"log/slog"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
)

func TestPassword(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	cfg := hurried(server.Endpoint())
	cfg.Username, cfg.Password = "agent", "secret"
	s := open(t, cfg)
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).NotTo(HaveOccurred(), "%s while no password is required", what)
	}
	g.Expect(server.EnableAuth(t.Context(), "agent", "secret", cfg.Prefix)).To(Succeed())
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).NotTo(HaveOccurred(), "%s since one is required", what)
	}

	w := watch(t, s, "", 0)
	g.Consistently(w.Events(), 2*(cfg.KeepAlive+cfg.KeepAliveTimeout)).ShouldNot(BeClosed())
	put(t, s, "a", "1")
	g.Expect(next(t, w)[0].Key).To(Equal("a"))

	g.Expect(server.Restart()).To(Succeed()) // which forgets all tokens
	g.Expect(end(t, w)).To(HaveOccurred())
	g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(Succeed())
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).NotTo(HaveOccurred(), "%s with a token of before", what)
	}

	for _, spoil := range []struct {
		change func(*etcd.Config)
		says   string
	}{
		{func(c *etcd.Config) { c.Password = "wrong" }, "authentication failed"},
		{func(c *etcd.Config) { c.Username, c.Password = "", "" }, "user name is empty"},
		{func(c *etcd.Config) { c.Prefix = "/elsewhere/" }, "permission denied"},
		{func(c *etcd.Config) { c.Prefix = "" }, "permission denied"},
	} {
		wrong := cfg
		spoil.change(&wrong)
		for what, err := range everything(t.Context(), open(t, wrong)) {
			g.Expect(err).To(MatchError(And(ContainSubstring(spoil.says), ContainSubstring(server.Endpoint()))), what)
		}
	}
}

func TestCertificates(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t, etcdtest.TLS())
	for name, endpoint := range map[string]string{"URL": server.Endpoint(), "address": server.Address()} {
		cfg := at(endpoint)
		cfg.TLS = server.ClientTLS()
		for what, err := range everything(t.Context(), open(t, cfg)) {
			g.Expect(err).NotTo(HaveOccurred(), "%s: %s", name, what)
		}
		cfg.TLS.RootCAs = nil
		cfg.RequestTimeout = 3 * time.Second
		g.Expect(open(t, cfg).Probe(t.Context())).To(MatchError(ContainSubstring("certificate")), name)
	}
}

func TestObserveSeesEachRequest(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	var seen requests
	cfg := at(server.Endpoint())
	cfg.Observe = seen.observe
	s := open(t, cfg)
	for what, err := range everything(t.Context(), s) {
		g.Expect(err).NotTo(HaveOccurred(), what)
	}
	for _, op := range []string{etcd.OpGet, etcd.OpList, etcd.OpTxn, etcd.OpWatch, etcd.OpProbe} {
		g.Expect(seen.count(op)).To(Equal(1), op)
		g.Expect(seen.err(op)).NotTo(HaveOccurred(), op)
	}
	_, err := s.Txn(t.Context(), []kvdb.Cond{kvdb.AtRevision("none", 1)}, nil)
	g.Expect(err).To(MatchError(kvdb.ErrConditions))
	g.Expect(seen.err(etcd.OpTxn)).To(MatchError(kvdb.ErrConditions))

	// The store refuses these before they are requests.
	_, err = s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put("", nil)})
	g.Expect(err).To(MatchError(kvdb.ErrKey))
	g.Expect(s.Close()).To(Succeed())
	g.Expect(s.Probe(t.Context())).To(MatchError(kvdb.ErrClosed))
	g.Expect(seen.count(etcd.OpTxn)).To(Equal(2))
	g.Expect(seen.count(etcd.OpProbe)).To(Equal(1))
}

func TestLogOfTheClientIsForDebugging(t *testing.T) {
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: false} {
		g := NewWithT(t)
		server := etcdtest.Start(t)
		var out logbuffer.Buffer
		cfg := at(server.Endpoint())
		cfg.RequestTimeout = 300 * time.Millisecond
		cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
		s := open(t, cfg)
		g.Expect(server.Stop()).To(Succeed())
		g.Expect(s.Probe(t.Context())).NotTo(Succeed())
		if want {
			g.Expect(out.String()).To(And(ContainSubstring("etcd client: retrying"), ContainSubstring("method=/etcdserverpb.KV/Range")))
		} else {
			g.Expect(out.String()).To(BeEmpty())
		}
	}
}

func TestLogTellsOfAnotherPast(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	var out logbuffer.Buffer
	cfg := at(server.Endpoint())
	cfg.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s := open(t, cfg)
	put(t, s, "a", "1")
	g.Expect(server.Wipe()).To(Succeed())
	g.Eventually(func() error { return s.Probe(t.Context()) }, long).Should(MatchError(etcd.ErrReset))
	g.Expect(s.Probe(t.Context())).To(Succeed())
	g.Expect(out.String()).To(And(ContainSubstring("level=WARN"), ContainSubstring("another past"), ContainSubstring(server.Endpoint())))
}
