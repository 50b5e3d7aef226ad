// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package budget limits the rate of the requests that a process sends to its cloud.
//
// A Budget is a token bucket. Transport returns an http.RoundTripper that takes a token
// for each request before it sends it, so retries that a client library makes above it
// take tokens too. A provider has one Budget and gives it to all of its clients. A client
// library whose own retries cannot be limited must not be used with it: its retries would
// wait in the queue of the requests that matter.
//
// When the cloud throttles, the rate is halved and the saved tokens are lost; then the
// rate grows by a thirtieth of QPS in a second. Answers to requests that were sent before
// a slow-down do not slow down again. A Retry-After of the answer is honoured: no request
// is sent before it is over.
//
// A Budget is a prometheus.Collector: requests, waits and durations by operation, and the
// present rate.
//
// Any goroutine may call any method. Waiting requests are sent in the order in which they
// came. A request whose context ends while it waits is not sent, and its error says so.
package budget

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	recovery  = 30              // seconds in which the rate grows by QPS
	slowest   = 32              // the rate is never below this part of QPS
	longest   = 5 * time.Minute // of a Retry-After
	roundings = 1e-9            // of a token, which sums of fractions may lack
)

// Config holds the settings of a Budget.
type Config struct {
	Cloud string           // the label "cloud" of the metrics
	QPS   float64          // tokens in a second; not above 0: no limit
	Burst int              // tokens that are saved at most; at least 1
	Now   func() time.Time // nil: the clock
	// Throttled reports whether the cloud has refused a request for its rate. It may read
	// the body only through Peek. nil: Throttled of this package.
	Throttled func(*http.Response) bool
}

// Budget is the token bucket of all requests to a cloud. Use New.
type Budget struct {
	config  Config
	metrics *metrics
	turn    chan struct{} // held by the request that is sent next

	mu      sync.Mutex
	at      time.Time // of tokens and rate
	tokens  float64
	rate    float64   // tokens in a second
	resumes time.Time // no request is sent before
	slowed  time.Time // the last time that the rate was halved
}

var _ prometheus.Collector = (*Budget)(nil)

// New returns a Budget whose bucket is full.
func New(c Config) *Budget {
	c.Burst = max(c.Burst, 1)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Throttled == nil {
		c.Throttled = Throttled
	}
	b := &Budget{
		config: c,
		turn:   make(chan struct{}, 1),
		at:     c.Now(),
		tokens: float64(c.Burst),
		rate:   max(c.QPS, 0),
	}
	b.metrics = newMetrics(c.Cloud, b.Rate)
	return b
}

// Take waits for a token. The error wraps that of ctx.
func (b *Budget) Take(ctx context.Context, operation string) error {
	began := b.config.Now()
	b.metrics.begin(operation)
	err := b.take(ctx)
	b.metrics.wait.WithLabelValues(operation).Observe(b.config.Now().Sub(began).Seconds())
	if err != nil {
		b.metrics.requests.WithLabelValues(operation, outcomeNotSent).Inc()
		return fmt.Errorf("wait for a turn to call %s: %w", cmp.Or(operation, "the cloud"), err)
	}
	return nil
}

func (b *Budget) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		wait := b.next()
		if wait <= 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// next takes a token, or returns how long it takes until there may be one.
func (b *Budget) next() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.advance()
	if wait := b.resumes.Sub(now); wait > 0 {
		return wait
	}
	if b.config.QPS <= 0 {
		return 0
	}
	if lacks := 1 - b.tokens; lacks > roundings {
		return time.Duration(math.Ceil(lacks / b.rate * float64(time.Second)))
	}
	b.tokens--
	return 0
}

// advance brings tokens and rate to the present time, which it returns.
func (b *Budget) advance() time.Time {
	now := b.config.Now()
	passed := max(now.Sub(b.at).Seconds(), 0)
	b.at = now
	qps := max(b.config.QPS, 0)
	before := b.rate
	b.rate = min(qps, b.rate+passed*qps/recovery)
	b.tokens = min(float64(b.config.Burst), b.tokens+passed*(before+b.rate)/2)
	return now
}

// Slow halves the rate and sends nothing for the time that the cloud asks for. An answer
// to a request that was sent before the last slow-down does not halve the rate again.
func (b *Budget) Slow(sent time.Time, retryAfter time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.advance()
	if until := now.Add(min(retryAfter, longest)); until.After(b.resumes) {
		b.resumes = until
	}
	if sent.Before(b.slowed) {
		return
	}
	b.slowed = now
	b.rate = max(b.rate/2, max(b.config.QPS, 0)/slowest)
	b.tokens = min(b.tokens, 0)
}

// Rate returns the present number of tokens in a second; 0: there is no limit.
func (b *Budget) Rate() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance()
	return b.rate
}

// Describe implements prometheus.Collector.
func (b *Budget) Describe(to chan<- *prometheus.Desc) { b.metrics.Describe(to) }

// Collect implements prometheus.Collector.
func (b *Budget) Collect(to chan<- prometheus.Metric) { b.metrics.Collect(to) }
