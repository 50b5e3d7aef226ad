// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// rounds are the witnesses: each round calls the next function, the last one again.
type rounds struct {
	worlds []func() *witness.World
	n      int
}

func (r *rounds) Round(context.Context) (*witness.World, error) {
	f := r.worlds[min(r.n, len(r.worlds)-1)]
	r.n++
	return f(), nil
}

func (r *rounds) Observe(ctx context.Context) (*witness.World, error) { return r.Round(ctx) }

// subnets are those of the harness: 10.1.5.0/24 and fd00:1:0:5::/64 of pool default.
type subnets struct{}

func (subnets) Pools() []poolplan.Pool {
	return []poolplan.Pool{{Name: "default", Network: "default", Ranges: []poolplan.Range{{CIDR: netip.MustParsePrefix("10.1.0.0/16"), OneNode: 24}}}}
}

func (subnets) OpenBlocks() map[string][]netip.Prefix {
	return map[string][]netip.Prefix{"default": {netip.MustParsePrefix("10.1.5.0/24"), netip.MustParsePrefix("fd00:1:0:5::/64")}}
}
func (subnets) ConfigDiffers() string { return "" }

// repairs notes what it is asked for, and does it in the ledger.
type repairs struct {
	a     *agent
	asked []string
}

func (r *repairs) Reclaim(_ context.Context, l ledger.Lease, reason string) (string, error) {
	r.asked = append(r.asked, "reclaim "+l.Addr.String()+" "+reason)
	return " (until noon)", nil
}

func (r *repairs) Quarantine(_ context.Context, pool string, f *findings.Finding) error {
	r.asked = append(r.asked, "quarantine "+pool+" "+f.Subject.Addr.String())
	return nil
}

func (r *repairs) Release(ctx context.Context, l ledger.Lease, reason string) error {
	r.asked = append(r.asked, "release "+l.Addr.String()+" "+reason)
	_, err := r.a.book.Release(ctx, ledger.Selector{Addr: l.Addr, Pool: l.Pool, Purpose: l.Purpose, Generation: l.Generation, Quarantined: true})
	return err
}

// world shows the pods of the harness as alive, and the quarantined address in use.
func world(change ...func(w *witness.World)) func() *witness.World {
	return func() *witness.World {
		w := &witness.World{
			Taken:   time.Now(),
			Kernel:  &witness.KernelView{Namespaces: []witness.Namespace{{Host: true, Counts: true, Paths: []string{"/proc/1/ns/net"}}}},
			Runtime: &witness.RuntimeView{Name: "containerd", Version: "2.1.4"},
		}
		for i, name := range []string{"c1", "c2", "c3"} {
			a := netip.AddrFrom4([4]byte{10, 1, 5, byte(2 + i)})
			w.Runtime.Sandboxes = append(w.Runtime.Sandboxes, witness.Sandbox{ID: name, Namespace: "ns", Name: name, Ready: true})
			w.Kernel.Namespaces = append(w.Kernel.Namespaces, witness.Namespace{
				ID: witness.NamespaceID{Inode: uint64(i + 2)}, Counts: true, Paths: []string{"/var/run/netns/" + name},
				Links: []witness.Link{{Index: 2, Name: "eth0", MAC: "02:00:00:00:00:02", Addrs: []netip.Prefix{netip.PrefixFrom(a, 24)}}},
			})
		}
		w.Reports = []witness.Report{
			{Name: witness.Kernel, Objects: len(w.Kernel.Namespaces)},
			{Name: witness.Runtime, Source: "containerd 2.1.4", Objects: 3},
			{Name: witness.Engine, State: witness.NotApplicable, Reason: "no Docker"},
			{Name: witness.Cluster, State: witness.NotApplicable, Reason: "no Kubernetes"},
		}
		for _, f := range change {
			f(w)
		}
		return w
	}
}

// gone removes a pod of the harness.
func gone(name string) func(w *witness.World) {
	return func(w *witness.World) {
		for i := range w.Runtime.Sandboxes {
			if w.Runtime.Sandboxes[i].ID == name {
				w.Runtime.Sandboxes[i].ID = "another"
				w.Kernel.Namespaces[i+1].Links = nil
			}
		}
	}
}

// using adds an address to the last pod.
func using(a string) func(w *witness.World) {
	return func(w *witness.World) {
		ns := &w.Kernel.Namespaces[3]
		ns.Links = append(ns.Links, witness.Link{Index: 9, Name: "x0", MAC: "02:00:00:00:00:09", Addrs: []netip.Prefix{netip.MustParsePrefix(a)}})
	}
}

// checked returns an agent whose witnesses show one world after the other. No lease is
// too young.
func checked(t testing.TB, worlds ...func() *witness.World) (*agent, *repairs, *rounds) {
	a := newAgent(t)
	r, w := &repairs{a: a}, &rounds{worlds: worlds}
	fired := make(chan time.Time)
	close(fired)
	a.deps.Checker = restapi.NewChecks(restapi.Checks{
		Node:      "node-a",
		Ledger:    a.book,
		Witnesses: w,
		Subnets:   subnets{},
		Repairs:   r,
		After:     func(time.Duration) <-chan time.Time { return fired },
	})
	a.handler = restapi.NewPlugin(a.deps).Handler()
	return a, r, w
}

func (a *agent) check() (report localapi.CheckReport) {
	code, body := ask(a.handler, "GET", localapi.PathCheck, "")
	a.g.Expect(code).To(Equal(200), body)
	a.g.Expect(json.Unmarshal([]byte(body), &report)).To(Succeed())
	return report
}

func (a *agent) repair(f localapi.Finding, dryRun bool) (reply localapi.RepairReply) {
	body, err := json.Marshal(localapi.RepairRequest{Finding: f, DryRun: dryRun})
	a.g.Expect(err).NotTo(HaveOccurred())
	code, answer := ask(a.handler, "POST", localapi.PathRepair, string(body))
	a.g.Expect(code).To(Equal(200), answer)
	a.g.Expect(json.Unmarshal([]byte(answer), &reply)).To(Succeed())
	return reply
}

func numbers(r localapi.CheckReport) (all []string) {
	for _, f := range r.Findings {
		all = append(all, f.Number+" "+f.Subject.Addr.String())
	}
	return all
}

func TestCheckIsCleanWithTheWitnessesThatAgree(t *testing.T) {
	g := NewWithT(t)
	a, _, w := checked(t, world(using("10.1.5.77/24")))
	r := a.check()
	g.Expect(numbers(r)).To(Equal([]string{"C202 10.1.5.77"}), "the quarantined address of the harness is in use")
	_, err := a.book.Release(ctx(), ledger.Selector{Addr: netip.MustParseAddr("10.1.5.77"), Pool: "default", Quarantined: true})
	g.Expect(err).NotTo(HaveOccurred())
	w.worlds, w.n = []func() *witness.World{world()}, 0
	r = a.check()
	g.Expect(r.Findings).To(BeEmpty())
	g.Expect(r.CannotTell()).To(BeFalse())
	g.Expect(r.Node).To(Equal("node-a"))
	g.Expect(r.Leases).To(Equal(len(a.book.Leases())))
	g.Expect(w.n).To(Equal(1), "a clean round needs no second one")
	g.Expect(r.Witnesses).To(HaveLen(4))
	g.Expect(r.Witnesses[1]).To(Equal(localapi.Witness{Name: "runtime", State: "present", Source: "containerd 2.1.4", Objects: 3}))
	g.Expect(r.Witnesses[2]).To(Equal(localapi.Witness{Name: "engine", State: "not applicable", Reason: "no Docker"}))
}

func TestCheckReportsWhatTwoRoundsShow(t *testing.T) {
	g := NewWithT(t)
	inUse := using("10.1.5.77/24")
	a, _, w := checked(t, world(inUse, gone("c1"), using("10.1.5.99/24")), world(inUse, gone("c1"), gone("c2")))
	g.Expect(numbers(a.check())).To(Equal([]string{"C201 10.1.5.2", "C202 10.1.5.77"}))
	g.Expect(w.n).To(Equal(2))
}

// A lease that is claimed or released while the witnesses are read is not compared.
func TestALeaseThatChangesDuringARoundIsNotAFinding(t *testing.T) {
	g := NewWithT(t)
	a, _, w := checked(t)
	claim := func(name string) func() *witness.World {
		return func() *witness.World {
			a.lease(name, name)
			return world(using("10.1.5.77/24"))()
		}
	}
	w.worlds = []func() *witness.World{claim("n1"), claim("n2")}
	g.Expect(numbers(a.check())).To(Equal([]string{"C202 10.1.5.77"}))
	w.worlds = []func() *witness.World{world(using("10.1.5.77/24"))}
	g.Expect(numbers(a.check())).To(Equal([]string{"C201 10.1.5.6", "C201 10.1.5.7", "C202 10.1.5.77"}), "they are compared later")
}

func TestYoungLeasesAreCountedAndNotCompared(t *testing.T) {
	g := NewWithT(t)
	a, _, w := checked(t)
	fired := make(chan time.Time)
	close(fired)
	after := func(time.Duration) <-chan time.Time { return fired }
	c := restapi.NewChecks(restapi.Checks{Ledger: a.book, Witnesses: w, Subnets: subnets{}, Grace: time.Hour, After: after})
	w.worlds = []func() *witness.World{world(gone("c1"), gone("c2"), using("10.1.5.77/24"))}
	r, err := c.Check(ctx())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(numbers(r)).To(Equal([]string{"C202 10.1.5.77"}))
	g.Expect(r.Young).To(Equal(3))
}

func TestWithoutWitnessesCheckCannotTell(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	r := a.check()
	g.Expect(r.CannotTell()).To(BeTrue())
	g.Expect(r.Differences()).To(BeZero())
	g.Expect(r.Findings[0].Name).To(Equal(localapi.FindingWitnessMissing))
	for _, k := range findings.Kinds() {
		if k.Number == "C210" {
			g.Expect(k.Name).To(Equal(localapi.FindingWitnessMissing))
		}
	}
	g.Expect((&localapi.CheckReport{}).CannotTell()).To(BeTrue(), "an older agent names no witness")
}

func TestTheLedgerAloneIsCompared(t *testing.T) {
	g := NewWithT(t)
	a, _, w := checked(t, world(gone("c1")))
	code, body := ask(a.handler, "GET", localapi.PathCheckLedger, "")
	g.Expect(code).To(Equal(200))
	var r localapi.CheckReport
	g.Expect(json.Unmarshal([]byte(body), &r)).To(Succeed())
	g.Expect(r.Findings).To(BeEmpty())
	g.Expect(r.LedgerOnly).To(BeTrue())
	g.Expect(r.CannotTell()).To(BeFalse())
	g.Expect(r.Leases).To(Equal(len(a.book.Leases())))
	g.Expect(w.n).To(BeZero(), "no witness is read")
}

func TestRepairMakesTheChangeOfAFinding(t *testing.T) {
	inUse := using("10.1.5.77/24")
	for _, c := range []struct {
		name, number, change, asked string
		world                       func() *witness.World
	}{
		{"reclaim", "C201", `reclaim 10.1.5.2 of pool "default" from pods/c1/eth0: it becomes pending, and is released if it is not undone`,
			"reclaim 10.1.5.2 repair of C201: 10.1.5.2 is leased to pod ns/web-0, which is gone", world(inUse, gone("c1"))},
		{"quarantine", "C202", `quarantine 10.1.5.99 of pool "default": it is not allocated`, "quarantine default 10.1.5.99", world(inUse, using("10.1.5.99/24"))},
		{"end of a quarantine", "C208", `end the quarantine of 10.1.5.77 of pool "default": it may be allocated again`,
			`release 10.1.5.77 repair of C208: 10.1.5.77 of pool "default" is quarantined (a host uses it), and no witness shows a use of it`, world()},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a, r, _ := checked(t, c.world)
			var f localapi.Finding
			for _, x := range a.check().Findings {
				if x.Number == c.number && x.Repair != "" {
					f = x
				}
			}
			would := a.repair(f, true)
			g.Expect(would.Change).To(Equal(c.change))
			g.Expect(would.Done).To(BeFalse())
			g.Expect(r.asked).To(BeEmpty(), "a dry run changes nothing")
			done := a.repair(f, false)
			g.Expect(done.Done).To(BeTrue())
			g.Expect(done.Change).To(HavePrefix(c.change))
			g.Expect(r.asked).To(Equal([]string{c.asked}))
		})
	}
}

// A repair ends nothing while a witness of this node cannot be read, which may not show a use.
func TestRepairWithoutAWitness(t *testing.T) {
	missing := func(w *witness.World) {
		w.Reports[2] = witness.Report{Name: witness.Engine, State: witness.Missing, Reason: "dial: refused"}
	}
	for _, c := range []struct {
		number string
		world  func() *witness.World
		asked  int
	}{
		{"C201", world(using("10.1.5.77/24"), gone("c1"), missing), 0},
		{"C208", world(missing), 0},
		{"C202", world(using("10.1.5.77/24"), using("10.1.5.99/24"), missing), 1}, // a quarantine ends nothing
	} {
		t.Run(c.number, func(t *testing.T) {
			g := NewWithT(t)
			a, r, _ := checked(t, c.world)
			i := slices.IndexFunc(a.check().Findings, func(f localapi.Finding) bool { return f.Number == c.number && f.Repair != "" })
			f := a.check().Findings[i]
			reply := a.repair(f, false)
			g.Expect(r.asked).To(HaveLen(c.asked))
			if c.asked > 0 {
				return
			}
			g.Expect(reply.Refused).To(And(ContainSubstring("engine: dial: refused"), ContainSubstring("nothing was changed")))
			body, err := json.Marshal(localapi.RepairRequest{Finding: f, Force: true})
			g.Expect(err).NotTo(HaveOccurred())
			code, answer := ask(a.handler, "POST", localapi.PathRepair, string(body))
			g.Expect(code).To(Equal(http.StatusOK), answer)
			g.Expect(r.asked).To(HaveLen(1))
		})
	}
}

func TestRepairRefusesAFindingThatHasChanged(t *testing.T) {
	inUse := using("10.1.5.77/24")
	for _, c := range []struct {
		name    string
		before  func() *witness.World
		between func(a *agent)
		after   func() *witness.World
		want    string
	}{
		{"it is alive again", world(inUse, gone("c1")), nil, world(inUse),
			"the witnesses do not show it any more: 10.1.5.2 is held by pods/c1/eth0"},
		{"it was released", world(inUse, gone("c1")), func(a *agent) {
			_, err := a.book.Release(ctx(), ledger.Selector{Key: key("c1")})
			a.g.Expect(err).NotTo(HaveOccurred())
		}, world(inUse, gone("c1")), "the witnesses do not show it any more: 10.1.5.2 is cooling by pods/c1/eth0"},
		{"another lease has the address", world(inUse, gone("c1")), func(a *agent) {
			st := a.book.Begin()
			a.g.Expect(st.SetPool(ledger.Pool{Name: "default", ReserveEdges: true})).To(Succeed())
			a.g.Expect(st.Commit(ctx())).To(Succeed())
			_, err := a.book.Release(ctx(), ledger.Selector{Key: key("c1")})
			a.g.Expect(err).NotTo(HaveOccurred())
			_, _, err = a.book.Claim(ctx(), ledger.Request{Pool: "default", Key: key("c9"), Pod: ledger.Pod{Namespace: "ns", Name: "new"}, Wanted: []netip.Addr{netip.MustParseAddr("10.1.5.2")}})
			a.g.Expect(err).NotTo(HaveOccurred())
		}, world(inUse, gone("c1")), "it has changed: now it is C201 leaked-lease: 10.1.5.2 is leased to pod ns/new, which is gone"},
		{"another link has the address", world(inUse, using("10.1.5.99/24")), nil, world(inUse, func(w *witness.World) {
			ns := &w.Kernel.Namespaces[2]
			ns.Links = append(ns.Links, witness.Link{Index: 9, Name: "y0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.5.99/24")}})
		}), "it has changed: no longer link x0 of network namespace /var/run/netns/c3; now link y0 of network namespace /var/run/netns/c2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a, r, w := checked(t, c.before)
			var f localapi.Finding
			for _, x := range a.check().Findings {
				if x.Repair != "" && x.Subject.Addr.Is4() {
					f = x
				}
			}
			if c.between != nil {
				c.between(a)
			}
			w.worlds, w.n = []func() *witness.World{c.after}, 0
			for _, dryRun := range []bool{true, false} {
				reply := a.repair(f, dryRun)
				g.Expect(reply.Refused).To(Equal(c.want))
				g.Expect(reply.Done).To(BeFalse())
			}
			g.Expect(r.asked).To(BeEmpty())
		})
	}
}

func TestRepairByHandAndBadRequests(t *testing.T) {
	g := NewWithT(t)
	a, r, w := checked(t, world(using("10.1.5.77/24")))
	byHand := a.check().Findings[0]
	reply := a.repair(byHand, false)
	g.Expect([]any{reply.Done, reply.Change, reply.Refused}).To(Equal([]any{false, "", ""}))
	g.Expect(r.asked).To(BeEmpty())
	for _, body := range []string{"", "{}", `{"finding": {}}`, `{"finding": {"number": "C201"}}`, `{"finding": {"number": "C201", "signature": "x"}, "colour": 1}`} {
		code, _ := ask(a.handler, "POST", localapi.PathRepair, body)
		g.Expect(code).To(Equal(http.StatusBadRequest), body)
	}
	w.worlds = []func() *witness.World{world(using("10.1.5.99/24"))}
	found := a.check().Findings
	a.deps.Checker = restapi.NewChecks(restapi.Checks{Node: "node-a", Ledger: a.book, Witnesses: w, Subnets: subnets{}})
	body, err := json.Marshal(localapi.RepairRequest{Finding: found[0]})
	g.Expect(err).NotTo(HaveOccurred())
	code, answer := ask(restapi.NewPlugin(a.deps).Handler(), "POST", localapi.PathRepair, string(body))
	g.Expect(code).To(Equal(http.StatusNotImplemented), answer)
}
