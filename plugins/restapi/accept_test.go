// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// doubt is a database in doubt until a commit of its journal accepts it.
type doubt struct {
	*journal.Memory
	accepted bool
	fail     error
	commits  int
}

func (d *doubt) Last() bolt.Commit { return bolt.Commit{Lineage: "here", Sequence: 12} }

func (d *doubt) Doubt() *bolt.Doubt {
	if d.accepted {
		return nil
	}
	return &bolt.Doubt{
		Reason: "older",
		Known:  bolt.Commit{Lineage: "here", Sequence: 9},
		Opened: bolt.Commit{Lineage: "here", Sequence: 7},
	}
}

func (d *doubt) Commit(ctx context.Context, ops []kvdb.Op) error {
	accepts := func(op kvdb.Op) bool { return op.Key == ledger.AcceptKey }
	if !slices.ContainsFunc(ops, accepts) {
		return d.Memory.Commit(ctx, ops)
	}
	if d.fail != nil {
		return d.fail
	}
	d.accepted, d.commits = true, d.commits+1
	return d.Memory.Commit(ctx, slices.DeleteFunc(slices.Clone(ops), accepts))
}

// doubtful returns an agent with a database in doubt, after its first resync.
func doubtful(t *testing.T, worlds ...func() *witness.World) (*agent, *doubt, http.Handler) {
	d := &doubt{Memory: journal.NewMemory()}
	a := newAgentOn(t, d)
	a.status.Loop.Resynced = true
	a.book.Suspend("database", "older")
	h := a.with(func(deps *restapi.Deps) {
		deps.Doubt = d
		deps.Checker = restapi.NewChecks(restapi.Checks{Ledger: a.book, Subnets: subnets{}, Witnesses: &rounds{worlds: worlds}})
	})
	return a, d, h
}

// accepting asks a handler to accept, and returns the answer of a status that has a report.
func accepting(g Gomega, h http.Handler, method, body string) (code int, r localapi.AcceptReport) {
	code, answer := ask(h, method, localapi.PathAccept, body)
	if code == http.StatusOK || code == http.StatusConflict {
		g.Expect(json.Unmarshal([]byte(answer), &r)).To(Succeed())
	}
	return code, r
}

func TestAcceptIsADryRunUnlessItIsPosted(t *testing.T) {
	g := NewWithT(t)
	code, _ := ask(newAgent(t).handler, http.MethodPost, localapi.PathAccept, "")
	g.Expect(code).To(Equal(http.StatusNotImplemented), "this agent has no database of its own")

	a, database, h := doubtful(t, world(func(w *witness.World) { // the harness shows the quarantined address in use
		w.Kernel.Namespaces = w.Kernel.Namespaces[:1]
		w.Runtime.Sandboxes = nil
	}))
	database.fail = errors.New("no space left on device")
	code, report := accepting(g, h, http.MethodGet, "")
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(report.Reason).To(Equal("older"))
	g.Expect([]uint64{report.Noted.Sequence, report.Opened.Sequence, report.Database.Sequence}).To(Equal([]uint64{9, 7, 12}))
	g.Expect(report.Leases).To(HaveLen(4), "infra and quarantined addresses are not among them")
	g.Expect(report.Uses).To(BeEmpty())
	g.Expect(report.Accepted || database.accepted).To(BeFalse(), "a dry run")

	code, _ = accepting(g, h, http.MethodPost, "")
	g.Expect(code).To(Equal(http.StatusInternalServerError))
	g.Expect(a.book.Suspended()).NotTo(BeEmpty())

	database.fail = nil
	code, report = accepting(g, h, http.MethodPost, "")
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(report.Accepted && database.accepted).To(BeTrue())
	g.Expect(a.book.Suspended()).To(BeEmpty())

	_, report = accepting(g, h, http.MethodPost, "{}")
	g.Expect(report).To(And(HaveField("Reason", ""), HaveField("Accepted", false)), "it is not in doubt any more")
	g.Expect(database.commits).To(Equal(1))
}

// A database is accepted while addresses are in use that it does not know only by force, and
// the commit that accepts it quarantines them.
func TestAcceptWithAddressesInUse(t *testing.T) {
	unknown := func(w *witness.World) {
		w.Runtime.Sandboxes = append(w.Runtime.Sandboxes, witness.Sandbox{
			ID: "lost", Namespace: "shop", Name: "web-5", Ready: true, NetNS: "/run/netns/web-5",
			Addrs: []netip.Addr{netip.MustParseAddr("10.1.5.9")},
		})
		w.Kernel.Namespaces = append(w.Kernel.Namespaces, witness.Namespace{
			ID:     witness.NamespaceID{Dev: 4, Inode: 99},
			Counts: true,
			Paths:  []string{"/run/netns/web-5"},
			Links:  []witness.Link{{Index: 2, Name: "eth0", Kind: "veth", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.5.9/32")}}},
		})
	}
	g := NewWithT(t)
	a, database, h := doubtful(t, world(unknown))
	_, report := accepting(g, h, http.MethodGet, "")
	named := ContainElement(And(
		HaveField("IP", netip.MustParseAddr("10.1.5.9")),
		HaveField("Pod", "shop/web-5"),
		HaveField("Text", "10.1.5.9 is on eth0 of pod shop/web-5 (/run/netns/web-5)")))
	g.Expect(report.Uses).To(named)

	for _, body := range []string{"", "{}", `{"force": false}`} {
		code, refused := accepting(g, h, http.MethodPost, body)
		g.Expect(code).To(Equal(http.StatusConflict))
		g.Expect(refused.Uses).To(named)
		g.Expect(refused.Refused).To(And(ContainSubstring("10.1.5.9 is on eth0 of pod shop/web-5"), ContainSubstring("not accepted")))
	}
	g.Expect(database.accepted).To(BeFalse())
	g.Expect(a.book.Suspended()).NotTo(BeEmpty())
	_, leased := a.book.Lookup("default", netip.MustParseAddr("10.1.5.9"))
	g.Expect(leased).To(BeFalse(), "a refusal changes nothing")

	code, report := accepting(g, h, http.MethodPost, `{"force": true}`)
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(report.Accepted).To(BeTrue())
	g.Expect(report.Quarantined).To(Equal(1))
	g.Expect(database.commits).To(Equal(1))
	l, _ := a.book.Lookup("default", netip.MustParseAddr("10.1.5.9"))
	g.Expect(l.State).To(Equal(ledger.Quarantined))
	reopened, err := ledger.Open(ctx(), database.Memory, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	l, _ = reopened.Lookup("default", netip.MustParseAddr("10.1.5.9"))
	g.Expect(l.State).To(Equal(ledger.Quarantined), "it is durable")
}

// A witness that exists and cannot be read proves nothing. One that this node does not have
// is not needed.
func TestAcceptWithoutAWitness(t *testing.T) {
	empty := func(w *witness.World) {
		w.Kernel.Namespaces, w.Runtime.Sandboxes = w.Kernel.Namespaces[:1], nil
	}
	report := func(name witness.Name, err error) func(*witness.World) {
		return func(w *witness.World) { w.Reports = append(w.Reports, witness.ReportOf(name, err)) }
	}
	for name, c := range map[string]struct {
		change func(*witness.World)
		code   int
	}{
		"the runtime does not answer": {report(witness.Runtime, errors.New("dial: refused")), http.StatusConflict},
		"there is no runtime":         {report(witness.Runtime, absent{}), http.StatusOK},
		"the engine is not used":      {report(witness.Engine, witness.ErrNotApplicable), http.StatusOK},
		"namespaces are hidden":       {func(w *witness.World) { w.Kernel.Hidden = "net:[4]" }, http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, database, h := doubtful(t, world(empty, c.change))
			code, _ := accepting(g, h, http.MethodPost, "")
			g.Expect(code).To(Equal(c.code))
			g.Expect(database.accepted).To(Equal(c.code == http.StatusOK))
			code, _ = accepting(g, h, http.MethodPost, `{"force": true}`)
			g.Expect(code).To(Equal(http.StatusOK))
		})
	}
}

// absent is the error of a source that this node does not have.
type absent struct{}

func (absent) Error() string { return "no container runtime offers the CRI" }
func (absent) Absent() bool  { return true }

// Before the first resync the agent does not know its blocks: no address could be
// quarantined, so not even force accepts the database.
func TestAcceptBeforeTheFirstResync(t *testing.T) {
	g := NewWithT(t)
	a, database, h := doubtful(t, world())
	a.status.Loop.Resynced = false
	code, body := ask(h, http.MethodPost, localapi.PathAccept, `{"force": true}`)
	g.Expect(code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(reason(g, body)).To(ContainSubstring("does not know the address blocks"))
	g.Expect(database.accepted).To(BeFalse())
}
