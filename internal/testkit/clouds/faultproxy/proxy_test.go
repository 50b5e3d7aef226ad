// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faultproxy_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter is a server whose number is read by GET and set by PUT.
type counter struct {
	mu    sync.Mutex
	value string
	puts  int
	began chan struct{} // receives each PUT before it is done; nil: nothing
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Method == http.MethodPut && c.began != nil {
		c.began <- struct{}{}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(200 * time.Millisecond): // the client has given up long ago
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Header().Set("X-Host", r.Host)
	if r.Method == http.MethodPut {
		c.value, c.puts = string(body), c.puts+1
	}
	if r.URL.Path == "/base/v2.0/absent" {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = fmt.Fprint(w, c.value)
}

func (c *counter) state() (string, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.puts
}

// scene is a server behind a proxy, and a client that keeps no connections, so that it
// repeats nothing by itself.
type scene struct {
	g      *WithT
	server *counter
	proxy  *faultproxy.Proxy
	url    string
	client *http.Client

	mu  sync.Mutex
	now time.Time
}

func start(t *testing.T, c faultproxy.Config) *scene {
	s := &scene{g: NewWithT(t), server: &counter{value: "old"}, now: time.Unix(1e9, 0)}
	behind := httptest.NewServer(s.server)
	c.Target = behind.URL + "/base"
	c.Now = func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	}
	if c.Dialect.Read == nil {
		c.Dialect = faultproxy.OpenStack()
	}
	var err error
	s.proxy, s.url, err = faultproxy.Start(c)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(behind.Close)
	t.Cleanup(s.proxy.Close)
	return s
}

func (s *scene) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

func (s *scene) do(ctx context.Context, method, path, body string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	s.g.Expect(err).NotTo(HaveOccurred())
	w, err := s.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(w.Body)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(w.Body.Close()).To(Succeed())
	if w.StatusCode == http.StatusOK {
		s.g.Expect("http://"+w.Header.Get("X-Host")).To(Equal(s.url), "links of the server lead to the proxy")
	}
	return w.StatusCode, string(text), nil
}

func (s *scene) get(t *testing.T, path string) string {
	_, text, err := s.do(t.Context(), http.MethodGet, path, "")
	s.g.Expect(err).NotTo(HaveOccurred())
	return text
}

func (s *scene) put(t *testing.T, text string) {
	status, _, err := s.do(t.Context(), http.MethodPut, "/v2.0/ports/1", text)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(status).To(Equal(http.StatusOK))
}

func TestWithoutFaultsAllIsPassedOn(t *testing.T) {
	s := start(t, faultproxy.Config{})
	s.g.Expect(s.get(t, "/v2.0/ports?a=1&b=%2F")).To(Equal("old"))
	s.put(t, "new")
	s.g.Expect(s.get(t, "/v2.0/ports?a=1&b=%2F")).To(Equal("new"))
	status, _, err := s.do(t.Context(), http.MethodGet, "/v2.0/absent", "")
	s.g.Expect([]any{status, err}).To(Equal([]any{http.StatusNotFound, nil}))
	s.g.Expect(s.proxy.Counts()).To(Equal(map[faultproxy.Count]int{
		{Operation: "GET ports", Outcome: faultproxy.Pass}:  2,
		{Operation: "PUT ports", Outcome: faultproxy.Pass}:  1,
		{Operation: "GET absent", Outcome: faultproxy.Pass}: 1,
	}))
	for _, target := range []string{"", "127.0.0.1:80", "http://"} {
		_, err := faultproxy.New(faultproxy.Config{Target: target})
		s.g.Expect(err).To(MatchError(ContainSubstring("want the URL of a server")))
	}
}

func TestReadingsAreOldAfterAWrite(t *testing.T) {
	fresh := false
	s := start(t, faultproxy.Config{Stale: 3 * time.Second, Random: func() float64 {
		if fresh {
			return 0
		}
		return .9
	}})
	s.get(t, "/v2.0/ports")
	s.put(t, "one")
	s.g.Expect(s.get(t, "/v2.0/ports")).To(Equal("old"))
	s.g.Expect(s.get(t, "/v2.0/ports/1")).To(Equal("one"), "it was not read before")
	s.pass(2 * time.Second)
	s.put(t, "two")
	s.g.Expect(s.get(t, "/v2.0/ports/1")).To(Equal("one"))
	fresh = true
	s.g.Expect(s.get(t, "/v2.0/ports")).To(Equal("two"), "one in four")
	fresh = false
	s.g.Expect(s.get(t, "/v2.0/ports")).To(Equal("old"), "and back")
	s.pass(time.Second)
	s.g.Expect(s.get(t, "/v2.0/ports")).To(Equal("two"), "three seconds after the first write behind the reading")
	s.g.Expect(s.get(t, "/v2.0/ports/1")).To(Equal("one"))
	s.pass(2 * time.Second)
	s.g.Expect(s.get(t, "/v2.0/ports/1")).To(Equal("two"))
	s.g.Expect(s.proxy.Counts()[faultproxy.Count{Operation: "GET ports", Outcome: faultproxy.Stale}]).To(Equal(4))
}

func TestRateIsLimited(t *testing.T) {
	s := start(t, faultproxy.Config{Bucket: 4, Refill: 2})
	for range 4 {
		s.put(t, "x")
	}
	refused := func() bool {
		_, puts := s.server.state()
		status, _, err := s.do(t.Context(), http.MethodPut, "/v2.0/ports/1", "y")
		s.g.Expect(err).NotTo(HaveOccurred())
		_, after := s.server.state()
		s.g.Expect(after > puts).To(Equal(status == http.StatusOK), "what is refused is not done")
		return status == http.StatusTooManyRequests
	}
	s.g.Expect(refused()).To(BeTrue())
	s.pass(400 * time.Millisecond)
	s.g.Expect(refused()).To(BeTrue())
	s.pass(100 * time.Millisecond)
	s.g.Expect(refused()).To(BeFalse())
	s.g.Expect(refused()).To(BeTrue())
	s.pass(time.Hour)
	for range 4 {
		s.g.Expect(refused()).To(BeFalse())
	}
	s.g.Expect(refused()).To(BeTrue(), "no more than the bucket is saved")
}

func TestPlannedFaults(t *testing.T) {
	s := start(t, faultproxy.Config{})
	for _, c := range []struct {
		outcome     faultproxy.Outcome
		status      int
		fails, done bool
	}{
		{faultproxy.Pass, 200, false, true},
		{faultproxy.Fail, 500, false, false},
		{faultproxy.Throttle, 429, false, false},
		{faultproxy.Lose, 0, true, true},
		{faultproxy.Hang, 0, true, false},
		{faultproxy.HangDone, 0, true, true},
	} {
		var seen atomic.Pointer[faultproxy.Request]
		s.proxy.SetPlan(func(r faultproxy.Request) faultproxy.Outcome {
			seen.Store(&r)
			return c.outcome
		})
		_, before := s.server.state()
		ctx, cancel := context.WithCancel(t.Context())
		if c.outcome == faultproxy.Hang || c.outcome == faultproxy.HangDone {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		status, _, err := s.do(ctx, http.MethodPut, "/v2.0/ports/1", "x")
		cancel()
		s.g.Expect([]any{status, err != nil}).To(Equal([]any{c.status, c.fails}), string(c.outcome))
		_, after := s.server.state()
		s.g.Expect(after > before).To(Equal(c.done), string(c.outcome))
		s.g.Expect([]any{seen.Load().Operation, seen.Load().Read}).To(Equal([]any{"PUT ports", false}))
	}
	s.proxy.SetPlan(nil)
	s.put(t, "x")
}

// A request whose client has gone is done all the same, as by a real cloud.
func TestRequestIsDoneWithoutItsClient(t *testing.T) {
	s := start(t, faultproxy.Config{})
	s.server.began = make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.server.began
		cancel()
	}()
	_, _, err := s.do(ctx, http.MethodPut, "/v2.0/ports/1", "new")
	s.g.Expect(err).To(MatchError(context.Canceled))
	s.g.Eventually(func() string {
		value, _ := s.server.state()
		return value
	}).Should(Equal("new"))
}

func TestCloseEndsHangingRequests(t *testing.T) {
	s := start(t, faultproxy.Config{Delay: time.Hour, Random: func() float64 { return .5 }})
	other := start(t, faultproxy.Config{})
	other.proxy.SetPlan(func(faultproxy.Request) faultproxy.Outcome { return faultproxy.Hang })
	var all sync.WaitGroup
	for _, x := range []*scene{s, other} {
		all.Go(func() {
			_, _, err := x.do(context.WithoutCancel(t.Context()), http.MethodGet, "/", "")
			x.g.Expect(err).To(HaveOccurred())
		})
	}
	s.g.Eventually(func() int { return len(s.proxy.Counts()) + len(other.proxy.Counts()) }).Should(Equal(2))
	s.proxy.Close()
	other.proxy.Close()
	all.Wait()
}

func TestDialects(t *testing.T) {
	g := NewWithT(t)
	ec2, openstack := faultproxy.EC2(), faultproxy.OpenStack()
	for _, c := range []struct {
		dialect           faultproxy.Dialect
		method, url, body string
		operation         string
		read              bool
	}{
		{ec2, "POST", "/", url.Values{"Action": {"DescribeSubnets"}, "Version": {"2016-11-15"}}.Encode(), "DescribeSubnets", true},
		{ec2, "POST", "/", "Action=AssignPrivateIpAddresses&Count=3", "AssignPrivateIpAddresses", false},
		{ec2, "GET", "/?Action=DescribeVpcs", "", "DescribeVpcs", true},
		{openstack, "GET", "/v2.0/ports?device_id=x", "", "GET ports", true},
		{openstack, "PUT", "/v2.0/ports/2f8b", "{}", "PUT ports", false},
		{openstack, "DELETE", "/networking/v2.0/ports/2f8b", "", "DELETE ports", false},
		{openstack, "GET", "/", "", "GET version", true},
		{openstack, "GET", "/v2.0/networks.json", "", "GET networks", true},
	} {
		r := httptest.NewRequest(c.method, c.url, nil)
		g.Expect(c.dialect.Operation(r, []byte(c.body))).To(Equal(c.operation))
		g.Expect(c.dialect.Read(r, []byte(c.body))).To(Equal(c.read), c.operation)
	}
	for _, c := range []struct {
		write  func(http.ResponseWriter)
		status int
		want   string
	}{
		{func(w http.ResponseWriter) { ec2.Throttle(w, time.Second) }, 503, "<Response><Errors><Error><Code>RequestLimitExceeded</Code>"},
		{ec2.Fail, 500, "<Code>InternalError</Code>"},
		{func(w http.ResponseWriter) { openstack.Throttle(w, 1200*time.Millisecond) }, 429, "rate-limited"},
		{openstack.Fail, 500, "NeutronError"},
	} {
		w := httptest.NewRecorder()
		c.write(w)
		g.Expect([]any{w.Code, w.Body.String()}).To(ConsistOf(c.status, ContainSubstring(c.want)))
		if c.status == 429 {
			g.Expect(w.Header().Get("Retry-After")).To(Equal("2"), "whole seconds, not too few")
		}
	}
}

func TestStormHasItsRates(t *testing.T) {
	g := NewWithT(t)
	rates := faultproxy.Rates{Lost: .05, Hung: .02, Throttled: .03, Burst: .01, BurstLength: 10}
	run := func(seed uint64) (counts map[faultproxy.Outcome]int, all []faultproxy.Outcome) {
		counts = map[faultproxy.Outcome]int{}
		plan := faultproxy.Storm(rates, rand.New(rand.NewPCG(seed, 0)).Float64)
		for range 10000 {
			o := plan(faultproxy.Request{})
			counts[o]++
			all = append(all, o)
		}
		return counts, all
	}
	counts, first := run(1)
	_, again := run(1)
	_, other := run(2)
	g.Expect(again).To(Equal(first), "the seed alone decides")
	g.Expect(other).NotTo(Equal(first))
	pass := 10000 / 1.1 // one request in 110 begins a burst of ten
	g.Expect(float64(counts[faultproxy.Fail])).To(BeNumerically("~", 10000-pass, 300))
	g.Expect(float64(counts[faultproxy.Lose])).To(BeNumerically("~", .05*pass, 100))
	g.Expect(float64(counts[faultproxy.Throttle])).To(BeNumerically("~", .03*pass, 80))
	g.Expect(counts[faultproxy.Hang]).To(BeNumerically(">", 0))
	g.Expect(counts[faultproxy.HangDone]).To(BeNumerically(">", 0))
}
