// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/cloud/budget"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ExampleBudget_Transport() {
	b := budget.New(budget.Config{Cloud: "openstack", QPS: 20, Burst: 30})
	client := http.Client{Transport: b.Transport(nil, func(r *http.Request) string {
		kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2.0/"), "/")
		return r.Method + " " + kind
	})}
	prometheus.NewRegistry().MustRegister(b)
	fmt.Println(client.Transport != nil, b.Rate())
	// Output: true 20
}

func TestRateAndBurstAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		b := budget.New(budget.Config{QPS: 10, Burst: 3})
		began := time.Now()
		for _, want := range []time.Duration{0, 0, 0, 100, 200, 300} {
			g.Expect(b.Take(t.Context(), "x")).To(Succeed())
			g.Expect(time.Since(began)).To(Equal(want * time.Millisecond))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		g.Expect(b.Take(ctx, "x")).To(MatchError(context.DeadlineExceeded))
		g.Expect(b.Take(t.Context(), "x")).To(Succeed())
		g.Expect(time.Since(began)).To(Equal(400*time.Millisecond), "a caller that gives up takes no token")
		time.Sleep(time.Hour)
		for range 3 {
			g.Expect(b.Take(t.Context(), "x")).To(Succeed())
		}
		g.Expect(time.Since(began)).To(Equal(time.Hour + 400*time.Millisecond))
		g.Expect(b.Take(t.Context(), "x")).To(Succeed())
		g.Expect(time.Since(began)).To(Equal(time.Hour+500*time.Millisecond), "no more than the burst is saved")
		none := budget.New(budget.Config{})
		for range 1000 {
			g.Expect(none.Take(t.Context(), "x")).To(Succeed())
		}
		ended, end := context.WithCancel(t.Context())
		end()
		for range 50 {
			g.Expect(none.Take(ended, "x")).To(MatchError(context.Canceled), "also if a token is there")
		}
		g.Expect(time.Since(began)).To(Equal(time.Hour + 500*time.Millisecond))
	})
}

// Waiting requests are sent in their order, and one that gives up holds up none behind it.
func TestOrderOfWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, b := NewWithT(t), budget.New(budget.Config{QPS: 1, Burst: 1})
		g.Expect(b.Take(t.Context(), "x")).To(Succeed())
		var mu sync.Mutex
		var order []string
		var all sync.WaitGroup
		began := time.Now()
		for i := range 6 {
			all.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%3 == 0 { // the first one in the queue among them
					time.AfterFunc(500*time.Millisecond, cancel)
				}
				if b.Take(ctx, "x") == nil {
					mu.Lock()
					order = append(order, fmt.Sprintf("%d at %s", i, time.Since(began)))
					mu.Unlock()
				}
			})
			synctest.Wait()
		}
		all.Wait()
		g.Expect(order).To(Equal([]string{"1 at 1s", "2 at 2s", "4 at 3s", "5 at 4s"}))
	})
}

// answers is a cloud that gives one answer after another, and then the last one.
type answers struct {
	mu   sync.Mutex
	all  []answer
	sent []time.Time
}

type answer struct {
	status     int
	body       string
	retryAfter string
	takes      time.Duration
}

func (c *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.sent = append(c.sent, time.Now())
	a := c.all[0]
	if len(c.all) > 1 {
		c.all = c.all[1:]
	}
	c.mu.Unlock()
	time.Sleep(a.takes)
	if a.status == 0 {
		return nil, errors.New("the connection was closed")
	}
	w := &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}
	if a.retryAfter != "" {
		w.Header.Set("Retry-After", a.retryAfter)
	}
	return w, nil
}

func get(t *testing.T, over http.RoundTripper) (string, error) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://cloud/ports/1", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	w, err := over.RoundTrip(r)
	if err != nil {
		return "", err
	}
	all, err := io.ReadAll(w.Body)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(all), w.Body.Close()
}

func ports(*http.Request) string { return "GET ports" }

func TestRateIsHalvedAndGrowsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		b := budget.New(budget.Config{QPS: 30, Burst: 10})
		cloud := &answers{all: []answer{{status: 429}, {status: 200}}}
		over := b.Transport(cloud, ports)
		_, err := get(t, over)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(b.Rate()).To(Equal(15.0))
		began := time.Now()
		_, _ = get(t, over)
		g.Expect(time.Since(began)).To(BeNumerically("~", time.Second/15, time.Millisecond), "the saved tokens are lost")
		time.Sleep(5 * time.Second)
		g.Expect(b.Rate()).To(BeNumerically("~", 20, .1))
		time.Sleep(11 * time.Second)
		g.Expect(b.Rate()).To(Equal(30.0))

		// Ten requests at once, all throttled: one slow-down.
		cloud.all = []answer{{status: 503, takes: time.Second}}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _, _ = get(t, over) })
		}
		all.Wait()
		g.Expect(b.Rate()).To(BeNumerically("~", 15, .5))
		for range 100 {
			b.Slow(time.Now(), 0)
		}
		g.Expect(b.Rate()).To(Equal(30.0/32), "requests go on")
	})
}

func TestRetryAfterIsHonoured(t *testing.T) {
	for _, c := range []struct {
		header string
		want   time.Duration
	}{
		{"7", 7 * time.Second},
		{"2.5", 2500 * time.Millisecond},
		{"86400", 5 * time.Minute},
		{"Sat, 01 Jan 2000 00:00:09 GMT", 9 * time.Second}, // the bubble's clock begins at 00:00:00
		{"Sat, 01 Jan 2000 09:00:00 GMT", 5 * time.Minute},
		{"Fri, 31 Dec 1999 00:00:09 GMT", 0},
		{"soon", 0},
		{"-3", 0},
		{"NaN", 0},
	} {
		t.Run(c.header, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				// without a limit of its own the budget waits as well
				over := budget.New(budget.Config{}).Transport(&answers{all: []answer{{status: 429, retryAfter: c.header}, {status: 200}}}, ports)
				_, _ = get(t, over)
				began := time.Now()
				_, err := get(t, over)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(time.Since(began)).To(Equal(c.want))
			})
		})
	}
}

func TestThrottledAnswers(t *testing.T) {
	for _, c := range []struct {
		answer answer
		want   bool
	}{
		{answer{status: 429}, true},
		{answer{status: 503, body: "<Response><Errors><Error><Code>RequestLimitExceeded</Code>"}, true},
		{answer{status: 413, retryAfter: "1"}, true},
		{answer{status: 413}, false},
		{answer{status: 400, body: "<Response><Errors><Error><Code>Throttling</Code>" + strings.Repeat("x", 9000)}, true},
		{answer{status: 400, body: `{"__type":"ThrottlingException"}`}, true},
		{answer{status: 400, body: "<Code>InvalidParameterValue</Code><Message>Throttling is a bad name</Message>"}, false},
		{answer{status: 500}, false},
		{answer{status: 409, body: `"Throttling"`}, false},
		{answer{status: 200}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, b := NewWithT(t), budget.New(budget.Config{QPS: 8})
			body, err := get(t, b.Transport(&answers{all: []answer{c.answer}}, ports))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(body).To(Equal(c.answer.body), "the body is whole")
			g.Expect(b.Rate() < 8).To(Equal(c.want), "%+v", c.answer)
		})
	}
}

func TestMetricsCountOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		b := budget.New(budget.Config{Cloud: "mem", QPS: 1, Burst: 10})
		cloud := &answers{all: []answer{{status: 200}, {status: 404}, {status: 500}, {}, {status: 429, retryAfter: "60"}}}
		over := b.Transport(cloud, ports)
		for range 5 {
			_, _ = get(t, over)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		body := &closed{Reader: strings.NewReader("x")}
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://cloud", body)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = over.RoundTrip(r)
		g.Expect(err).To(MatchError(context.DeadlineExceeded))
		g.Expect(err).To(MatchError(ContainSubstring("GET ports")))
		g.Expect(body.closed).To(BeTrue(), "as each RoundTripper does")
		g.Expect(cloud.sent).To(HaveLen(5), "it was not sent")
		registry := prometheus.NewPedanticRegistry()
		g.Expect(registry.Register(b)).To(Succeed())
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		var names []string
		counts := map[string]float64{}
		for _, f := range families {
			names = append(names, f.GetName())
			for _, m := range f.GetMetric() {
				g.Expect(m.GetLabel()[0].GetValue()).To(Equal("mem"))
				if f.GetName() == "cadastre_cloud_requests_total" {
					counts[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[2].GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
		g.Expect(counts).To(Equal(map[string]float64{
			"GET ports done": 1, "GET ports refused": 1, "GET ports server_error": 1, "GET ports no_answer": 1, "GET ports throttled": 1, "GET ports not_sent": 1,
		}))
		g.Expect(names).To(ConsistOf("cadastre_cloud_requests_total", "cadastre_cloud_wait_seconds", "cadastre_cloud_request_seconds", "cadastre_cloud_rate"))
	})
}

type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error {
	c.closed = true
	return nil
}
