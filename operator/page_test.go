// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// pageOf returns an operator whose store has one pool and 1000 nodes.
func pageOf(t *testing.T, g Gomega) *operator {
	t.Helper()
	pod := podOn("worker-0005", "web", "10.0.5.9")
	return pageWith(t, g, fake.NewSimpleClientset(pod)) //nolint:staticcheck // see client
}

// pageWith returns the same with an API server.
func pageWith(t *testing.T, g Gomega, kube kubernetes.Interface) *operator {
	t.Helper()
	store := mem.New()
	t.Cleanup(func() { g.Expect(store.Close()).To(Succeed()) })
	put := func(key string, m proto.Message) {
		value, err := proto.Marshal(m)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, value)})
		g.Expect(err).NotTo(HaveOccurred())
	}
	put(kv.PoolKey("default"), &kv.Pool{
		Name: "default", Network: "default", Generation: 1, Origin: "contiv.conf",
		Ranges: []*kv.PoolRange{{Cidr: "10.0.0.0/14", OneNodePrefixLen: 24}},
	})
	for id := uint32(1); id <= 1000; id++ {
		name, instance := fmt.Sprintf("worker-%04d", id), fmt.Sprint(id)
		put(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: instance, Generation: 1})
		put(kv.BeatKey(id), &kv.NodeBeat{
			Id: id, Instance: instance, At: 1, Pools: []*kv.PoolUse{{Pool: "default", Generation: 1, Open: true, Leases: 250}},
		})
	}
	p := &operator{store: store, decisions: newDecisions(time.Now), clients: clients{kube: kube}}
	p.page = p.newPage()
	p.page.status = func() localapi.OperatorStatus { return localapi.OperatorStatus{Leading: true, Ready: true} }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.page.objects.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return p
}

// podOn returns a Pod of namespace shop with one container, whose ID is c0ffee and its name.
func podOn(node, name, address string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}},
			ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "containerd://c0ffee" + name}},
		},
	}
}

func askPage(p *operator, url string) *httptest.ResponseRecorder {
	mux, w := http.NewServeMux(), httptest.NewRecorder()
	p.routePage(mux, nil)
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

func TestMapOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	const base = "http://127.0.0.1:10261"
	w := askPage(p, base+"/v1/map?pool=default&prefix=10.0.0.0/14")
	g.Expect(w.Code).To(Equal(http.StatusOK), w.Body.String())
	g.Expect(w.Body.Len()).To(BeNumerically("<", 160<<10))
	var part localapi.MapPart
	g.Expect(json.Unmarshal(w.Body.Bytes(), &part)).To(Succeed())
	g.Expect(part.Cells).To(HaveLen(1000))
	g.Expect(part.Counts).To(Equal(localapi.AddressCounts{Other: 256_000, OtherHeld: 250_000}))
	g.Expect(part.Cells[4].Cell).To(Equal(5))
	g.Expect(part.Cells[4].Node).To(Equal("worker-0005"))
	t.Logf("1000 nodes: %d bytes", w.Body.Len())

	var m localapi.Map
	g.Expect(json.Unmarshal(askPage(p, base+"/v1/map").Body.Bytes(), &m)).To(Succeed())
	g.Expect(m.Scope).To(Equal("cluster"))
	var hits localapi.MapHits
	g.Expect(json.Unmarshal(askPage(p, base+"/v1/map/search?q=worker-0777").Body.Bytes(), &hits)).To(Succeed())
	g.Expect(hits.Hits).To(HaveLen(1))
	g.Expect(hits.Hits[0].Prefix.String()).To(Equal("10.3.9.0/24"))
	g.Expect(askPage(p, base+"/page/").Body.String()).To(ContainSubstring("Cadastre"))
	g.Expect(askPage(p, base+"/v1/map?pool=x&prefix=10.0.0.0/14").Code).To(Equal(http.StatusBadRequest))
}

func TestMapOfTheClusterIsForCallersWithACertificate(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	paths := []string{
		"/page/", "/v1/map", "/v1/map/search?q=worker", "/v1/map/findings", "/v1/explain?pool=default", "/v1/events", "/v1/status",
	}
	for _, path := range paths {
		g.Expect(askPage(p, "http://rebound.example.org"+path).Code).To(Equal(http.StatusMisdirectedRequest), path)
		g.Expect(askPage(p, "http://localhost:10261"+path).Code).To(Equal(http.StatusOK), path)
	}
	p.options.tls = httpserver.Files{ClientCA: "ca.pem"}
	for _, path := range paths {
		g.Expect(askPage(p, "http://localhost:10261"+path).Code).To(Equal(http.StatusForbidden), path)
	}
}

func put(t *testing.T, g Gomega, p *operator, key string, m proto.Message) {
	t.Helper()
	value, err := proto.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = p.store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, value)})
	g.Expect(err).NotTo(HaveOccurred())
}

func TestFindingsOfTheClusterAreThoseOfTheLastComparison(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	const url = "http://127.0.0.1:10261/v1/map/findings"
	g.Expect(askPage(p, url).Body.String()).To(ContainSubstring("no operator has compared"))
	put(t, g, p, kv.ClusterCheckKey, &kv.ClusterCheck{
		Instance: "op", At: time.Now().UnixNano(), Every: int64(time.Minute), Compared: []string{"12 Nodes"},
		Findings: []*kv.ClusterFinding{{Number: "CAD201", Name: "block-on-two-nodes", Text: "two nodes", Prefix: "10.0.5.0/24", Node: "worker-0005"}},
	})
	var got localapi.MapFindings
	g.Expect(json.Unmarshal(askPage(p, url).Body.Bytes(), &got)).To(Succeed())
	g.Expect(got.Cluster.State).To(Equal(localapi.ClusterCheckCurrent))
	g.Expect(got.Cluster.Findings[0].Subject.Prefix.String()).To(Equal("10.0.5.0/24"))
	tree := explainPage(g, p, "block=10.0.5.0/24&of=default")
	g.Expect(textOf(tree)).To(ContainSubstring("finding CAD201 block-on-two-nodes: two nodes"))
}

func explainPage(g Gomega, p *operator, args string) (tree explain.Tree) {
	w := askPage(p, "http://127.0.0.1:10261/v1/explain?"+args)
	g.Expect(w.Code).To(Equal(http.StatusOK), w.Body.String())
	g.Expect(json.Unmarshal(w.Body.Bytes(), &tree)).To(Succeed())
	return tree
}

func textOf(t explain.Tree) string { return t.Text() }

func TestExplanationsOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	slog.New(p.decisions.wrap(slog.DiscardHandler)).Info("node has its CIDRs", "node", "worker-0005", "cidrs", []netip.Prefix{netip.MustParsePrefix("10.0.5.0/24")})
	for args, want := range map[string][]string{
		"pool=default":                 {"1000 nodes have 1000 blocks, with 250000 of 256000 addresses in use", "10.0.0.0/14 cut in /24"},
		"block=10.0.5.0/24&of=default": {"node worker-0005 has block 10.0.5.0/24: 250 of 256", "node ID 5", "node has its CIDRs"},
		"node=worker-0005":             {"1 nodes have 1 blocks", "block 10.0.5.0/24 of pool default", "node has its CIDRs"},
		"node=absent":                  {"has no node of this name"},
		"address=10.0.5.9":             {"it is the address of pod shop/web", "block 10.0.5.0/24 of pool default belongs to node worker-0005"},
		"address=10.0.5.10":            {"it is in a block of node worker-0005; no pod reports it"},
		"address=192.0.2.1":            {"no node has a block"},
		"pod=shop/web":                 {"it has 10.0.5.9", "10.0.5.9 is in block 10.0.5.0/24 of its node"},
		"pod=shop/absent":              {"no Pod of this name"},
	} {
		text := textOf(explainPage(g, p, args))
		for _, part := range want {
			g.Expect(text).To(ContainSubstring(part), args)
		}
	}
	for _, args := range []string{"", "pod=web", "address=x", "block=10", "pool=a&node=b"} {
		g.Expect(askPage(p, "http://127.0.0.1/v1/explain?"+args).Code).To(Equal(http.StatusBadRequest), args)
	}
}

func TestPodsAndContainersOfTheClusterAreFound(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	for text, kind := range map[string]string{"shop/we": "pod", "C0FFEEweb": "container", "c0ff": "container", "10.0.5.9": "pod"} {
		var hits localapi.MapHits
		g.Expect(json.Unmarshal(askPage(p, "http://127.0.0.1/v1/map/search?q="+text).Body.Bytes(), &hits)).To(Succeed())
		last := hits.Hits[len(hits.Hits)-1]
		g.Expect([]string{last.Kind, last.Pod, last.Pool, last.Prefix.String()}).To(Equal([]string{kind, "shop/web", "default", "10.0.5.9/32"}), text)
		g.Expect(hits.Problem).To(BeEmpty())
	}
}

// TestAnAPIServerThatRefusesPodsIsNamed has no Pods: the page says why.
func TestAnAPIServerThatRefusesPodsIsNamed(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	refused, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	g.Expect(err).NotTo(HaveOccurred())
	p := pageWith(t, g, refused)
	g.Eventually(func() string {
		return askPage(p, "http://127.0.0.1/v1/map/search?q=web").Body.String()
	}, time.Minute).Should(ContainSubstring("Pods are not searched: the API server does not list them"))
	g.Expect(textOf(explainPage(g, p, "pod=shop/web"))).To(ContainSubstring("the Pod is not known here"))
}

// shownDecision has what the page reads.
type shownDecision struct {
	Name, Description, Error string
	Handlers                 []controller.HandlerRecord
	Subject                  controller.Subject
}

func TestEveryDecisionIsStreamedOnceWithItsOutcome(t *testing.T) {
	g := NewWithT(t)
	p := pageOf(t, g)
	log := slog.New(p.decisions.wrap(slog.DiscardHandler)).With("node", "worker-0001")
	mux, stop := http.NewServeMux(), make(chan struct{})
	p.routePage(mux, stop)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	follow := func(last string) (next func() shownDecision, id func() string, end func()) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/events?follow=true&last=50", nil)
		g.Expect(err).NotTo(HaveOccurred())
		if last != "" {
			r.Header.Set("Last-Event-ID", last)
		}
		answer, err := http.DefaultClient.Do(r)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Header.Get("Content-Type")).To(Equal("text/event-stream"))
		lines, seen := bufio.NewScanner(answer.Body), ""
		next = func() (rec shownDecision) {
			for lines.Scan() {
				if text, found := strings.CutPrefix(lines.Text(), "id: "); found {
					seen = text
				}
				if text, found := strings.CutPrefix(lines.Text(), "data: "); found {
					g.Expect(json.Unmarshal([]byte(text), &rec)).To(Succeed())
					return rec
				}
			}
			return rec
		}
		return next, func() string { return seen }, func() { _ = answer.Body.Close() }
	}
	four, six := netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")
	log.Info("node has its CIDRs", "cidrs", []netip.Prefix{four, six})
	log.Debug("nothing to see")
	next, id, end := follow("")
	given := next()
	g.Expect([]string{given.Name, given.Handlers[0].Handler, given.Handlers[0].Change}).To(Equal([]string{"node has its CIDRs", "operator", "done"}))
	g.Expect(given.Subject.Addresses).To(Equal([]string{"10.1.0.0/24", "fd00::/64"}))
	log.Warn("keep the addresses of the node at its watermarks", "error", errors.New("the cloud is full"))
	failed := next()
	g.Expect([]string{failed.Error, failed.Handlers[0].Error, failed.Description}).To(Equal([]string{"the cloud is full", "the cloud is full", "node=worker-0001"}))
	last := id()
	end()
	log.Info("node is gone; its CIDRs are released", "cidrs", four)
	again, _, endAgain := follow(last)
	g.Expect(again().Name).To(Equal("node is gone; its CIDRs are released"), "the stream goes on after the last event")
	close(stop)
	g.Expect(again().Name).To(BeEmpty(), "the stream ends with the listener")
	endAgain()
	about := p.decisions.about("", netip.MustParsePrefix("10.1.0.7/32"), 5)
	g.Expect(about).To(HaveLen(2))
	log.Info("nodes are gone for good; their IDs are released", "nodes", []string{"worker-1", "worker-2"})
	log.Info("an address", "address", netip.MustParseAddr("10.1.0.7"), "none", netip.Addr{}, "prefix", netip.Prefix{})
	g.Expect(p.decisions.about("", netip.MustParsePrefix("10.1.0.7/32"), 5)).To(HaveLen(3))
	g.Expect(p.decisions.about("worker-2", netip.Prefix{}, 9)).To(HaveLen(1))
	g.Expect(p.decisions.about("worker", netip.Prefix{}, 9)).To(BeEmpty(), "a part of a name is another node")
	g.Expect(p.decisions.about("", netip.Prefix{}, 9)).To(BeEmpty())
}

func TestDecisionsAreBounded(t *testing.T) {
	g := NewWithT(t)
	d := newDecisions(time.Now)
	for range 5 * decisionsMost / 2 {
		d.add(decision{})
	}
	all, _ := d.since(0)
	g.Expect(len(all)).To(BeNumerically("<=", decisionsMost))
	g.Expect(all[len(all)-1].SeqNum).To(Equal(uint64(5 * decisionsMost / 2)))
	rest, _ := d.since(all[len(all)-1].SeqNum)
	g.Expect(rest).To(HaveLen(1))
}

func TestDecisionsOfTheLastHourAreCounted(t *testing.T) {
	g := NewWithT(t)
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	p := pageOf(t, g)
	p.decisions = newDecisions(func() time.Time { return now })
	p.page.decisions = p.decisions
	decide := func(ago time.Duration, name, failure string) {
		p.decisions.add(decision{Record: controller.Record{
			Name: name, Error: failure, ProcessingStart: now.Add(-ago),
			Handlers: []controller.HandlerRecord{{Handler: "netresource", Error: failure}},
		}})
	}
	decide(61*time.Minute, "given", "")
	decide(59*time.Minute, "given", "")
	decide(time.Minute, "given", "the cloud is full")
	decide(0, "released", "")
	decide(-time.Second, "given", "") // the clock went back
	mux := http.NewServeMux()
	p.routePage(mux, nil)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/v1/map/changes", nil))
	var got localapi.MapChanges
	g.Expect(json.Unmarshal(w.Body.Bytes(), &got)).To(Succeed())
	g.Expect(got.Decisions).To(Equal([]localapi.MapDecision{
		{By: "netresource", Name: "given", Count: 3, Failed: 1, Last: now.Add(time.Second)},
		{By: "netresource", Name: "released", Count: 1, Last: now},
	}))
	counts := make([]int, 0, len(got.Minutes))
	for _, m := range got.Minutes {
		counts = append(counts, m.Other)
	}
	want := make([]int, 60)
	want[0], want[58], want[59] = 1, 1, 2
	g.Expect(counts).To(Equal(want))
	g.Expect(got.Cut).To(BeFalse())
	for range decisionsMost {
		decide(0, "released", "")
	}
	g.Expect(p.decisions.lastHour().Cut).To(BeTrue(), "there were more than are kept")
}

func TestEventStreamsLeaveConnectionsForProbes(t *testing.T) {
	g := NewWithT(t)
	s := &eventStreams{decisions: newDecisions(time.Now)}
	s.open.Store(streamsMost)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/events", nil))
	g.Expect(w.Code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(s.open.Load()).To(Equal(int64(streamsMost)))
}

func TestUseOfANetResourceSet(t *testing.T) {
	g := NewWithT(t)
	set := &v1alpha1.NetResourceSet{}
	set.Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.9.0.0/28": {}, "10.9.0.64/28": {}, "10.9.1.7": {}}
	set.Status.IPAM.Used = v1alpha1.AllocationMap{"10.9.0.1": {}, "10.9.0.2": {}, "10.9.1.7": {}, "192.0.2.1": {}}
	set.Status.IPAM.ReleaseIPs = map[string]handshake.State{"10.9.0.64/28": handshake.Marked}
	uses := map[string]addrmap.Use{}
	for _, u := range usesOf(set) {
		uses[u.Prefix.String()] = u
	}
	g.Expect(uses).To(HaveLen(3))
	g.Expect(uses["10.9.0.0/28"].Leases).To(Equal(uint64(2)))
	g.Expect(uses["10.9.0.64/28"].Draining).To(BeTrue())
	g.Expect(uses["10.9.1.7/32"].Leases).To(Equal(uint64(1)))
}
