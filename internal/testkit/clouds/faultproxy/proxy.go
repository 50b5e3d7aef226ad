// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package faultproxy is an HTTP proxy before the API of a cloud, for tests. It makes a
// server in a test as unpleasant as the cloud that it stands for. It adds a token bucket,
// readings that are seconds old, and by a plan failures, lost answers and requests that
// hang.
//
// The proxy reads a request wholly, and forwards it wholly even if its client has given up
// meanwhile. A Dialect names operations, tells reads from writes, and writes answers in the
// form of the API: EC2 and OpenStack return two.
//
// # Stale readings
//
// After a write, each read that was answered before is answered with the same bytes until
// Config.Stale has passed. One answer in four is the new one all the same, so readings may
// go back and forth. A read that was never answered before is forwarded.
//
// # Repeatability
//
// The clock and the randomness are parameters. With the same seed and the same sequence of
// requests the faults are the same; requests that run in parallel have no such sequence.
//
// Any goroutine may call any method. Close ends the requests that hang.
package faultproxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"time"
)

// Outcome selects what happens to a request.
type Outcome string

// The outcomes of a request.
const (
	Pass     Outcome = "pass"     // it is forwarded, and its answer returned
	Fail     Outcome = "fail"     // it is answered with status 500, and not forwarded
	Throttle Outcome = "throttle" // it is refused for its rate, and not forwarded
	Lose     Outcome = "lose"     // it is forwarded, and the connection is closed without an answer
	Hang     Outcome = "hang"     // it is not forwarded, and not answered
	HangDone Outcome = "hangdone" // it is forwarded, and not answered
	Stale    Outcome = "stale"    // an old answer is returned; not for plans
)

// Request describes a request to the plan of faults.
type Request struct {
	Number    int // of all requests, from 1
	Operation string
	Read      bool
}

// Plan returns the outcome of a request.
type Plan func(Request) Outcome

// Config holds the properties of a proxy.
type Config struct {
	Target  string // the URL of the server
	Dialect Dialect
	Bucket  int              // requests that may come at once; 0: the rate is not limited
	Refill  float64          // of the bucket, requests in a second
	Stale   time.Duration    // how long reads show the state before a write
	Delay   time.Duration    // of each request: a random part of it
	Random  func() float64   // from 0 to below 1, called by one goroutine at a time; nil: that of seed 1
	Now     func() time.Time // nil: the clock
}

// Proxy is the proxy, an http.Handler. Use New or Start.
type Proxy struct {
	config Config
	target *url.URL
	client *http.Transport
	ended  chan struct{}
	end    func()
	server *httptest.Server // nil: the caller serves the handler

	mu       sync.Mutex
	plan     Plan
	number   int
	counts   map[Count]int
	at       time.Time // of tokens
	tokens   float64
	readings map[string]*reading
}

// Count is the key of a count.
type Count struct {
	Operation string
	Outcome   Outcome
}

// reading is the newest answer to a read.
type reading struct {
	answer   answer
	outdated time.Time // the end of the first write after it; zero: none
}

// answer is the answer of the server.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// New returns a proxy that the caller serves and closes.
func New(c Config) (*Proxy, error) {
	target, err := url.Parse(c.Target)
	if err != nil || target.Host == "" {
		return nil, fmt.Errorf(
			"make a proxy before %q: want the URL of a server, such as http://127.0.0.1:9696",
			c.Target,
		)
	}
	if c.Random == nil {
		c.Random = rand.New(rand.NewPCG(1, 1)).Float64
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	ended := make(chan struct{})
	return &Proxy{
		config:   c,
		target:   target,
		client:   &http.Transport{DisableCompression: true},
		ended:    ended,
		end:      sync.OnceFunc(func() { close(ended) }),
		counts:   map[Count]int{},
		at:       c.Now(),
		tokens:   float64(c.Bucket),
		readings: map[string]*reading{},
	}, nil
}

// Start returns a proxy that listens on a port of its own of 127.0.0.1, and its URL.
func Start(c Config) (*Proxy, string, error) {
	p, err := New(c)
	if err != nil {
		return nil, "", err
	}
	p.server = httptest.NewServer(p)
	return p, p.server.URL, nil
}

// Close ends all requests, and waits for them if Start has made the proxy. It may be called again.
func (p *Proxy) Close() {
	p.end()
	if p.server != nil {
		p.server.Close()
	}
	p.client.CloseIdleConnections()
}

// SetPlan replaces the plan of faults; nil ends all faults but those of Config.
func (p *Proxy) SetPlan(plan Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
}

// Counts returns the number of requests so far.
func (p *Proxy) Counts() map[Count]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil { // the client has gone before it had sent its request
		panic(http.ErrAbortHandler)
	}
	request := Request{
		Operation: p.config.Dialect.Operation(r, body),
		Read:      p.config.Dialect.Read(r, body),
	}
	key := r.Method + " " + r.URL.RequestURI() + "\n" + string(body)
	outcome, old, delay := p.decide(request, key)
	if !p.pause(r.Context(), delay) {
		panic(http.ErrAbortHandler)
	}
	switch outcome {
	case Stale:
		old.write(w)
	case Fail:
		p.config.Dialect.Fail(w)
	case Throttle:
		p.config.Dialect.Throttle(w, p.untilToken())
	case Hang:
		p.hang(r)
	default:
		a, err := p.forward(r, body, request.Read, key)
		switch {
		case outcome == HangDone:
			p.hang(r)
		case outcome == Lose || err != nil:
			panic(http.ErrAbortHandler)
		}
		a.write(w)
	}
}

// decide counts a request and returns its outcome, the old answer if that is Stale, and
// how long the request is delayed.
func (p *Proxy) decide(request Request, key string) (outcome Outcome, old answer, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	request.Number = p.number
	outcome = Pass
	switch {
	case !p.token():
		outcome = Throttle
	case p.plan != nil:
		outcome = p.plan(request)
	}
	if reading := p.readings[key]; outcome == Pass && request.Read && p.isStale(reading) {
		outcome, old = Stale, reading.answer
	}
	p.counts[Count{request.Operation, outcome}]++
	return outcome, old, time.Duration(p.config.Random() * float64(p.config.Delay))
}

// freshShare is the part of the reads that show a new state although an old one could be
// shown.
const freshShare = .25

func (p *Proxy) isStale(old *reading) bool {
	return old != nil && p.within(old) && p.config.Random() >= freshShare
}

// within reports whether a reading that a write has made old may still be shown.
func (p *Proxy) within(old *reading) bool {
	return !old.outdated.IsZero() && p.config.Now().Before(old.outdated.Add(p.config.Stale))
}

// token takes a token of the bucket.
func (p *Proxy) token() bool {
	if p.config.Bucket == 0 {
		return true
	}
	p.fill()
	if p.tokens < 1 {
		return false
	}
	p.tokens--
	return true
}

func (p *Proxy) fill() {
	now := p.config.Now()
	p.tokens = min(float64(p.config.Bucket), p.tokens+now.Sub(p.at).Seconds()*p.config.Refill)
	p.at = now
}

// untilToken returns how long it takes until there is a token.
func (p *Proxy) untilToken() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fill()
	if p.config.Refill <= 0 || p.tokens >= 1 {
		return time.Second
	}
	return time.Duration((1 - p.tokens) / p.config.Refill * float64(time.Second))
}

// pause waits, and reports whether the client and the proxy are still there.
func (p *Proxy) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-p.ended:
	}
	return false
}

// hang waits until the client or the proxy has gone.
func (p *Proxy) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-p.ended:
	}
	panic(http.ErrAbortHandler)
}

// forward sends a request to the server, whatever its client does meanwhile.
func (p *Proxy) forward(r *http.Request, body []byte, read bool, key string) (answer, error) {
	to := *r.URL
	to.Scheme, to.Host = p.target.Scheme, p.target.Host
	to.Path = p.target.JoinPath(r.URL.Path).Path
	out, err := http.NewRequestWithContext(
		context.WithoutCancel(r.Context()),
		r.Method,
		to.String(),
		bytes.NewReader(body),
	)
	if err != nil {
		return answer{}, fmt.Errorf("forward %s %s: %w", r.Method, to.String(), err)
	}
	out.Header, out.Host = r.Header.Clone(), r.Host
	out.Header.Del("Connection")
	got, err := p.client.RoundTrip(out)
	if err != nil {
		return answer{}, fmt.Errorf("forward %s %s: %w", r.Method, to.String(), err)
	}
	defer func() { _ = got.Body.Close() }()
	a := answer{status: got.StatusCode, header: got.Header}
	a.body, err = io.ReadAll(got.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch old := p.readings[key]; {
	case !read:
		p.written()
	case err == nil && (old == nil || !p.within(old)):
		p.readings[key] = &reading{answer: a}
	}
	if err != nil {
		return answer{}, fmt.Errorf("forward %s %s: read the answer: %w", r.Method, to.String(), err)
	}
	return a, nil
}

// written makes all readings old.
func (p *Proxy) written() {
	now := p.config.Now()
	for _, reading := range p.readings {
		if reading.outdated.IsZero() {
			reading.outdated = now
		}
	}
}

func (a answer) write(w http.ResponseWriter) {
	for name, values := range a.header {
		switch name {
		case "Connection", "Transfer-Encoding", "Content-Length":
		default:
			w.Header()[name] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}
