// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// read decodes the answer to a GET request.
func read[T any](g Gomega, h http.Handler, path string) (v T) {
	code, body := ask(h, http.MethodGet, path, "")
	g.Expect(code).To(Equal(http.StatusOK), body)
	g.Expect(json.Unmarshal([]byte(body), &v)).To(Succeed())
	return v
}

func TestMapOfTheLedger(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	m := read[localapi.Map](g, a.handler, "/v1/map")
	g.Expect(m.Node).To(Equal("node-a"))
	g.Expect(m.Pools[0].Roots).To(HaveLen(2), "one of each family")
	c := m.Pools[0].Roots[0].Counts
	g.Expect([]uint64{c.Held, c.Infra, c.Cooling, c.Quarantined, c.Reserved, c.Free}).To(Equal([]uint64{3, 1, 1, 1, 2, 248}))

	part := read[localapi.MapPart](g, a.handler, "/v1/map?pool=default&prefix=10.1.5.0/24")
	g.Expect(part.Cells[2].Lease.Pod).To(Equal("ns/web-0"))
	g.Expect(part.Cells[5].Lease.State).To(Equal("cooling"))
	g.Expect(part.Blocks[0].Counts.Free).To(BeEquivalentTo(248))

	hits := read[localapi.MapHits](g, a.handler, "/v1/map/search?q=web-1")
	g.Expect(hits.Hits).To(HaveLen(1))
	g.Expect(hits.Hits[0].Text).To(Equal("ns/web-1 10.1.5.4"))
	for path, why := range map[string]string{
		"/v1/map?pool=default&prefix=10.1.5.0":    "want address/length",
		"/v1/map?pool=other&prefix=10.1.5.0/24":   `pool "other" is unknown`,
		"/v1/map?pool=default&prefix=10.1.5.1/24": "want 10.1.5.0/24",
	} {
		code, body := ask(a.handler, http.MethodGet, path, "")
		g.Expect(code).To(Equal(http.StatusBadRequest), path)
		g.Expect(reason(g, body)).To(ContainSubstring(why), path)
	}
}

func TestMapHasTheBlocksOfOtherNodes(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.deps.Cluster = cluster{
		pools: func(context.Context) ([]localapi.Pool, error) {
			return []localapi.Pool{{Network: "default", Ranges: []localapi.PoolRange{{CIDR: "10.1.0.0/16", OneNodePrefixLen: 24}}}}, nil
		},
		nodes: func(context.Context) ([]localapi.Node, error) {
			return []localapi.Node{
				{Name: "node-a", Self: true, PodCIDRs: []string{"10.1.5.0/24"}},
				{Name: "node-b", PodCIDRs: []string{"10.1.6.0/24"}, Pools: []localapi.PoolUse{{Pool: "default", Leases: 7}}},
				{Name: "gone", Released: true, PodCIDRs: []string{"10.1.7.0/24"}},
			}, nil
		},
	}
	h := restapi.NewPlugin(a.deps).Handler()
	part := read[localapi.MapPart](g, h, "/v1/map?pool=default&prefix=10.1.0.0/16")
	g.Expect(part.Cells).To(HaveLen(2))
	g.Expect(part.Cells[1].Node).To(Equal("node-b"))
	g.Expect(part.Cells[1].OtherHeld).To(BeEquivalentTo(7))
}

// Callers that ask at the same time share one view, and after some time there is a new one.
func TestCallersShareAView(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	var looks atomic.Int64
	var mu sync.Mutex
	clock := time.Unix(1e9, 0)
	a.deps.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return clock }
	pass := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); clock = clock.Add(d) }
	a.deps.Cluster = cluster{
		pools: func(context.Context) ([]localapi.Pool, error) { pass(time.Second); looks.Add(1); return nil, nil },
		nodes: func(context.Context) ([]localapi.Node, error) { return nil, nil },
	}
	h := restapi.NewPlugin(a.deps).Handler()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { ask(h, http.MethodGet, "/v1/map", "") })
	}
	wg.Wait()
	g.Expect(looks.Load()).To(BeEquivalentTo(1), "a view that took a second serves four")
	pass(4 * time.Second)
	ask(h, http.MethodGet, "/v1/map", "")
	g.Expect(looks.Load()).To(BeEquivalentTo(2))
}

// checker counts comparisons.
type checker struct {
	restapi.Checker
	n *atomic.Int64
}

func (c checker) Check(context.Context) (localapi.CheckReport, error) {
	c.n.Add(1)
	return localapi.CheckReport{Leases: 3}, nil
}

func TestCallersShareAComparison(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	var n atomic.Int64
	clock := time.Unix(1e9, 0)
	a.deps.Checker, a.deps.Now = checker{n: &n}, func() time.Time { return clock }
	h := restapi.NewPlugin(a.deps).Handler()
	for range 3 {
		g.Expect(read[localapi.MapFindings](g, h, "/v1/map/findings").Report.Leases).To(Equal(3))
	}
	g.Expect(n.Load()).To(BeEquivalentTo(1))
	clock = clock.Add(31 * time.Second)
	ask(h, http.MethodGet, "/v1/map/findings", "")
	g.Expect(n.Load()).To(BeEquivalentTo(2))
}

// slow is a comparison that takes fifteen seconds.
type slow struct {
	restapi.Checker
	n *atomic.Int64
}

func (c slow) Check(ctx context.Context) (localapi.CheckReport, error) {
	n := c.n.Add(1)
	select {
	case <-time.After(15 * time.Second):
		return localapi.CheckReport{Leases: int(n)}, nil
	case <-ctx.Done():
		return localapi.CheckReport{}, ctx.Err()
	}
}

// An explanation answers without a comparison that takes too long. That one goes on for the
// callers that come later, also if a caller has hung up. While the next one is under way
// they are shown the last one.
func TestAnExplanationGivesUpASlowComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		a := newAgent(t)
		var n atomic.Int64
		a.deps.Checker, a.deps.Now = slow{n: &n}, time.Now
		h := restapi.NewPlugin(a.deps).Handler()
		begin := time.Now()
		explained := func() string {
			tree := read[explain.Tree](g, h, "/v1/explain?pool=default")
			return tree.Text()
		}
		const without = "not compared with the kernel, the runtime and the cluster: "
		g.Expect(explained()).To(ContainSubstring(without))
		g.Expect(time.Since(begin)).To(Equal(10 * time.Second))
		g.Expect(explained()).NotTo(ContainSubstring(without), "the same comparison has ended")
		g.Expect(time.Since(begin)).To(Equal(15 * time.Second))
		g.Expect(n.Load()).To(BeEquivalentTo(1))

		time.Sleep(31 * time.Second)
		g.Expect(read[localapi.MapFindings](g, h, "/v1/map/findings").Report).To(HaveField("Leases", 1), "the last one")
		g.Expect(time.Since(begin)).To(Equal(49 * time.Second))
		time.Sleep(13 * time.Second)
		g.Expect(read[localapi.MapFindings](g, h, "/v1/map/findings").Report).To(HaveField("Leases", 2))
		g.Expect(n.Load()).To(BeEquivalentTo(2))
	})
}

// An explanation does not wait for a cluster store that is away.
func TestAnAddressOfAnotherNode(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	asked, away := 0, false
	a.deps.Cluster = cluster{nodes: func(ctx context.Context) ([]localapi.Node, error) {
		if asked++; away {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return []localapi.Node{
			{Name: "node-a", Self: true, PodCIDRs: []string{"10.1.5.0/24"}},
			{Name: "node-b", ID: 6, Addresses: []string{"10.200.2.6/24"}, PodCIDRs: []string{"10.1.6.0/24"}},
			{Name: "gone", Released: true, PodCIDRs: []string{"10.1.7.0/24"}},
		}, nil
	}}
	h := restapi.NewPlugin(a.deps).Handler()
	of := func(address string) explain.Tree { return read[explain.Tree](g, h, "/v1/explain?address="+address) }
	g.Expect(of("10.1.5.2").Ask).To(BeEmpty())
	g.Expect(asked).To(Equal(0), "the address is of this node")
	tree := of("10.1.6.9")
	g.Expect(tree.Answer).To(Equal("10.1.6.0/24 is node-b's (ID 6, 10.200.2.6, never seen): its agent knows the owner"))
	g.Expect([]any{tree.Ask, tree.Unknown}).To(Equal([]any{"node-b", false}))
	g.Expect(of("10.1.7.9").Unknown).To(BeTrue(), "the node has left")
	away = true
	g.Expect(of("10.1.6.9")).To(And(HaveField("Unknown", true), HaveField("Answer", ContainSubstring("no block of node"))))
}

func TestEventsAsServerSentEvents(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.status.Started = time.Unix(1e9, 0)
	for _, name := range []string{"one", "two", "three"} {
		a.happens(name)
	}
	stream := func(query, last string) string {
		r := httptest.NewRequest(http.MethodGet, "/v1/events"+query, nil)
		r.Header.Set("Accept", "text/event-stream")
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		w := httptest.NewRecorder()
		a.handler.ServeHTTP(w, r)
		g.Expect(w.Header().Get("Content-Type")).To(Equal("text/event-stream"))
		return w.Body.String()
	}
	all := stream("", "")
	g.Expect(strings.Count(all, "\n\n")).To(Equal(3))
	g.Expect(all).To(MatchRegexp(`(?s)^id: \S+-0\ndata: \{.*"one".*\}\n\nid: `))
	id := strings.TrimPrefix(strings.SplitN(all, "\n", 2)[0], "id: ")
	after := stream("", id)
	g.Expect(after).NotTo(ContainSubstring(`"one"`))
	g.Expect(after).To(ContainSubstring(`"two"`))
	g.Expect(stream("", "17-1")).To(Equal(all), "an ID of another run of the agent")
	g.Expect(stream("?last=1", "")).To(And(ContainSubstring(`"three"`), Not(ContainSubstring(`"two"`))))
	code, _ := ask(a.handler, http.MethodGet, "/v1/events?last=0", "")
	g.Expect(code).To(Equal(http.StatusBadRequest))
}

func TestThePageIsServedWithoutOtherHosts(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/page/", nil))
	g.Expect(w.Code).To(Equal(http.StatusOK))
	g.Expect(w.Header().Get("Content-Security-Policy")).To(ContainSubstring("default-src 'none'"))
	g.Expect(w.Body.String()).To(And(ContainSubstring("page.js"), Not(MatchRegexp(`https?://`))))
	for _, path := range []string{"/page/page.js", "/page/index.css", "/page/licences.txt"} {
		code, body := ask(a.handler, http.MethodGet, path, "")
		g.Expect(code).To(Equal(http.StatusOK), path)
		g.Expect(body).NotTo(BeEmpty())
	}
	code, _ := ask(a.handler, http.MethodGet, "/page/web.go", "")
	g.Expect(code).To(Equal(http.StatusNotFound))
	r := httptest.NewRequest(http.MethodGet, "/page/page.js", nil)
	first := httptest.NewRecorder()
	a.handler.ServeHTTP(first, r)
	r.Header.Set("If-None-Match", first.Header().Get("ETag"))
	second := httptest.NewRecorder()
	a.handler.ServeHTTP(second, r)
	g.Expect(second.Code).To(Equal(http.StatusNotModified))
}
