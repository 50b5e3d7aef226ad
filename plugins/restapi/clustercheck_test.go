// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// ClusterCheck implements restapi.Cluster.
func (cluster) ClusterCheck(context.Context) (localapi.ClusterCheck, error) {
	return localapi.ClusterCheck{}, errInjected
}

func TestClusterCheck(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	report := func(age time.Duration) *kv.ClusterCheck {
		return &kv.ClusterCheck{
			Instance: "operator-1", At: now.Add(-age).UnixNano(), Every: int64(30 * time.Second), Total: 3,
			Findings: []*kv.ClusterFinding{{
				Number: "K101", Name: "block-on-two-nodes", Text: "text", Fix: "fix", Signature: "s", Node: "n", Pool: "p", Prefix: "10.1.1.0/24",
				Address: "10.1.1.1", Network: "default", Object: "o", Since: now.Add(-time.Hour).UnixNano(), Evidence: []string{"e"},
			}},
			Compared: []string{"2 Nodes"}, LeftOut: []string{"services"},
		}
	}
	for name, c := range map[string]struct {
		store   contivconf.KVDBType
		report  *kv.ClusterCheck
		raw     string
		state   string
		problem string
		code    int
	}{
		"an embedded store":         {store: contivconf.KVDBBolt, report: report(0), state: localapi.ClusterCheckNotApplicable, problem: "embedded"},
		"no operator":               {state: localapi.ClusterCheckNone, problem: "start cadastre-operator with its controller audit"},
		"a report of this moment":   {report: report(0), state: localapi.ClusterCheckCurrent},
		"a report of a fast clock":  {report: report(-time.Minute), state: localapi.ClusterCheckCurrent},
		"a clock an hour ahead":     {report: report(-time.Hour), state: localapi.ClusterCheckOutdated, problem: "1h0m0s ahead of this node's clock"},
		"an interval of years":      {report: every(report(2*time.Hour), 10*365*24*time.Hour), state: localapi.ClusterCheckOutdated, problem: "the last comparison is from"},
		"an interval that wraps":    {report: every(report(2*time.Hour), 1<<62), state: localapi.ClusterCheckOutdated, problem: "the last comparison is from"},
		"a total that is too low":   {report: total(report(0), 0), state: localapi.ClusterCheckCurrent},
		"the last report in time":   {report: report(90 * time.Second), state: localapi.ClusterCheckCurrent},
		"the operator is silent":    {report: report(91 * time.Second), state: localapi.ClusterCheckOutdated, problem: "2026-03-04T11:58:29Z, by operator operator-1"},
		"a report that is not ours": {raw: "\xff", code: 500},
		"the store does not answer": {raw: "down", code: 503},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			value := []byte(c.raw)
			if c.report != nil {
				var err error
				value, err = proto.Marshal(c.report)
				g.Expect(err).NotTo(HaveOccurred())
			}
			if len(value) > 0 {
				_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.ClusterCheckKey, value)})
				g.Expect(err).NotTo(HaveOccurred())
			}
			views := &restapi.ClusterViews{Store: store, Now: func() time.Time { return now }, Config: contivconf.Cadastre{KVDB: contivconf.KVDB{Type: c.store}}}
			if c.raw == "down" {
				views.Store = deaf{store}
			}
			h := newAgent(t).with(func(d *restapi.Deps) { d.Cluster = views })
			code, body := ask(h, "GET", localapi.PathClusterCheck, "")
			if c.code != 0 {
				g.Expect(code).To(Equal(c.code), body)
				return
			}
			g.Expect(code).To(Equal(200), body)
			var got localapi.ClusterCheck
			g.Expect(json.Unmarshal([]byte(body), &got)).To(Succeed())
			g.Expect(got.State).To(Equal(c.state))
			g.Expect(got.Problem).To(ContainSubstring(c.problem))
			g.Expect(got.Findings).NotTo(BeNil())
			if c.state != localapi.ClusterCheckCurrent {
				g.Expect(got.Problem).NotTo(BeEmpty())
				return
			}
			g.Expect(got.Total).To(Equal(max(c.report.Total, 1)), "findings are not a clean cluster")
			g.Expect(got.Findings).To(Equal([]localapi.ClusterFinding{{Since: now.Add(-time.Hour), Finding: localapi.Finding{
				Number: "K101", Name: "block-on-two-nodes", Text: "text", Fix: "fix", Signature: "s",
				Evidence: []localapi.Evidence{{Witness: "cluster", Text: "e"}}, Facts: []string{},
				Subject: localapi.Subject{
					Node: "n", Pool: "p", Prefix: netip.MustParsePrefix("10.1.1.0/24"), Addr: netip.MustParseAddr("10.1.1.1"), Network: "default", Object: "o",
				},
			}}}))
		})
	}
}

func every(m *kv.ClusterCheck, d time.Duration) *kv.ClusterCheck { m.Every = int64(d); return m }

func total(m *kv.ClusterCheck, n uint64) *kv.ClusterCheck { m.Total = n; return m }

// deaf does not answer.
type deaf struct{ kvdb.Store }

func (deaf) Get(context.Context, string) (kvdb.KeyValue, bool, error) {
	return kvdb.KeyValue{}, false, errInjected
}
