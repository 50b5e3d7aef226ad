// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// reclaims shows one lease of two addresses.
type reclaims struct {
	leases []ledger.Lease
	undone string
}

func newReclaims() *reclaims {
	l := ledger.Lease{
		Addr: netip.MustParseAddr("10.1.5.7"), Pool: "default", Generation: 7, Reason: "gone twice", Pod: ledger.Pod{Namespace: "shop", Name: "web"},
		Key: ledger.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"},
	}
	six := l
	six.Addr = netip.MustParseAddr("fd00::7")
	return &reclaims{leases: []ledger.Lease{l, six}}
}

func (r *reclaims) world() *witness.World {
	return &witness.World{Reports: []witness.Report{{Name: witness.Kernel, Source: "netlink", Objects: 3}}}
}
func (r *reclaims) Round(context.Context) (*witness.World, error) { return r.world(), nil }
func (r *reclaims) Reports() []witness.Report                     { return r.world().Reports }
func (r *reclaims) Enabled() bool                                 { return true }
func (r *reclaims) Pending() (all []reclaim.Pending) {
	for _, l := range r.leases {
		all = append(all, reclaim.Pending{Lease: l, Until: time.Unix(600, 0).UTC()})
	}
	return all
}

func (r *reclaims) Ended() []reclaim.Ended {
	return []reclaim.Ended{{Leases: r.leases, Outcome: reclaim.OutcomeUndone, Reason: "by hand", At: time.Unix(1, 0)}}
}

func (r *reclaims) Preview(context.Context) ([]reclaim.Assessment, *witness.World, error) {
	v := witness.Verdict{Conclusion: witness.Gone, Evidence: []witness.Evidence{{Witness: witness.Kernel, Text: "it is not there"}}}
	return []reclaim.Assessment{{Leases: r.leases, Verdict: v, Waits: "a second observation"}}, r.world(), nil
}

func (r *reclaims) Undo(_ context.Context, a netip.Addr, pool string) ([]ledger.Lease, error) {
	if a != r.leases[0].Addr {
		return nil, fmt.Errorf("undo the reclaim of %s: %w", a, reclaim.ErrNotReclaiming)
	}
	r.undone = a.String() + " " + pool
	return r.leases, nil
}

func TestReclaims(t *testing.T) {
	g := NewWithT(t)
	a, r := newAgent(t), newReclaims()
	a.deps.Reclaims = r
	h := restapi.NewPlugin(a.deps).Handler()
	var all localapi.Reclaims
	code, body := ask(h, "GET", localapi.PathReclaims, "")
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
	g.Expect(all.Pending).To(HaveLen(1), "the addresses of one claim are one reclaim")
	p := all.Pending[0]
	g.Expect(p.IP).To(HaveLen(2))
	g.Expect([]any{p.State, p.Pod, p.Reason, p.Until}).To(Equal([]any{"pending", "shop/web", "gone twice", time.Unix(600, 0).UTC()}))
	g.Expect(all.Ended[0].State).To(Equal("undone"))

	var run localapi.ReclaimRun
	code, body = ask(h, "POST", localapi.PathReclaimRun, "")
	g.Expect(code).To(Equal(http.StatusOK), body)
	g.Expect(json.Unmarshal([]byte(body), &run)).To(Succeed())
	g.Expect(run.Witnesses).To(HaveLen(4))
	g.Expect(run.Witnesses[0].State).To(Equal("present"))
	g.Expect(run.Witnesses[1].State).To(Equal("missing"))
	g.Expect(run.Steps[0].Evidence).To(Equal([]string{"kernel: it is not there"}))
	g.Expect(run.Steps[0].Waits).To(Equal("a second observation"))

	code, body = ask(h, "POST", localapi.PathReclaimUndo, `{"ip": "::ffff:10.1.5.7", "pool": "default"}`)
	g.Expect(code).To(Equal(http.StatusOK), body)
	g.Expect(r.undone).To(Equal("10.1.5.7 default"))
	for request, want := range map[string]int{
		`{"ip": "10.1.5.8"}`: http.StatusNotFound, `{"ip": "10.1.5"}`: http.StatusBadRequest, `{"address": "10.1.5.7"}`: http.StatusBadRequest,
	} {
		code, _ = ask(h, "POST", localapi.PathReclaimUndo, request)
		g.Expect(code).To(Equal(want), request)
	}
	code, _ = ask(a.handler, "GET", localapi.PathReclaims, "")
	g.Expect(code).To(Equal(http.StatusNotImplemented), "an agent without the plugin")
	code, _ = ask(restapi.NewPlugin(a.deps).ReadOnlyHandler(), "POST", localapi.PathReclaimUndo, "{}")
	g.Expect(code).To(Equal(http.StatusNotFound), "a network may only look")
}

func TestMetricsOfReclaims(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	now := time.Unix(100, 0)
	a.metrics.WatchReclaims(
		func() reclaim.Counts {
			return reclaim.Counts{Rounds: 9, Pending: 2, Reclaimed: 3, Undone: 4, Quarantined: 5}
		},
		func() []witness.Report {
			return []witness.Report{
				{Name: witness.Kernel, Read: now.Add(-7 * time.Second)},
				{Name: witness.Runtime, State: witness.Missing},
				{Name: witness.Engine, State: witness.NotApplicable},
			}
		},
		func() time.Time { return now })
	_, body := ask(a.handler, "GET", localapi.PathMetrics, "")
	for _, line := range []string{
		`cadastre_reclaims_total{outcome="reclaimed"} 3`, `cadastre_reclaims_total{outcome="undone"} 4`, "cadastre_reclaims_pending 2",
		"cadastre_quarantines_total 5", "cadastre_witness_rounds_total 9", `cadastre_witness_present{witness="kernel"} 1`,
		`cadastre_witness_present{witness="runtime"} 0`, `cadastre_witness_age_seconds{witness="kernel"} 7`,
	} {
		g.Expect(body).To(ContainSubstring(line + "\n"))
	}
	g.Expect(body).NotTo(ContainSubstring("engine"))
}
