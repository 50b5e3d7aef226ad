// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// conditions holds the faults of a network.
type conditions struct {
	requests, answers bool // whether they get through
	delay             time.Duration
	rate              int // bytes a second each way, 0 is any
}

// Proxy is the network between clients and one server. Bytes are held, never
// lost, while they do not get through: when all is well again a connection that
// neither end has given up goes on. About a megabyte each way fits in between.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	now     conditions
	changed chan struct{} // closed by the next change
	cut     bool
	closed  bool
	links   map[*link]struct{}
}

// StartProxy runs a proxy in front of host:port target until the test ends.
func StartProxy(tb TB, target string) *Proxy {
	tb.Helper()
	p, err := NewProxy(target)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() { _ = p.Close() })
	return p
}

// NewProxy runs a proxy in front of host:port target. Its caller closes it.
func NewProxy(target string) (*Proxy, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, fmt.Errorf("start proxy of %s: %w", target, err)
	}
	l, err := net.Listen("tcp", ports[0])
	if err != nil {
		return nil, fmt.Errorf("start proxy of %s: %w", target, err)
	}
	p := &Proxy{
		target:   target,
		listener: l,
		now:      conditions{requests: true, answers: true},
		changed:  make(chan struct{}),
		links:    map[*link]struct{}{},
	}
	p.running.Go(p.accept)
	return p, nil
}

// Address is host:port for clients.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Pass lets everything through as fast as it can.
func (p *Proxy) Pass() {
	p.change(func() {
		p.now = conditions{requests: true, answers: true}
		p.cut = false
	})
}

// Cut resets all connections, and new ones as soon as they are made, until
// Pass.
func (p *Proxy) Cut() {
	p.change(func() {
		p.cut = true
		for l := range p.links {
			l.close()
		}
	})
}

// Blackhole lets nothing through in either direction and sends no error:
// connections stay open, new ones are accepted.
func (p *Proxy) Blackhole() { p.change(func() { p.now.requests, p.now.answers = false, false }) }

// Mute lets requests through, but no answers.
func (p *Proxy) Mute() { p.change(func() { p.now.requests, p.now.answers = true, false }) }

// Delay lets everything arrive that much later, each way.
func (p *Proxy) Delay(d time.Duration) { p.change(func() { p.now.delay = d }) }

// Throttle lets so many bytes a second through each connection, each way.
func (p *Proxy) Throttle(rate int) { p.change(func() { p.now.rate = rate }) }

// Links is the number of connections that are open.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close ends all connections and the proxy.
func (p *Proxy) Close() error {
	p.Cut()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	return err
}

func (p *Proxy) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// look answers what the network is like, and a channel that is closed when
// that changes.
func (p *Proxy) look() (conditions, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now, p.changed
}

func (p *Proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			p.mu.Lock()
			closed := p.closed
			p.mu.Unlock()
			if closed {
				return
			}
			continue // the client has gone already
		}
		p.running.Go(func() { p.serve(conn) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		reset(client)
		return
	}
	l := &link{proxy: p, client: client, server: server, done: make(chan struct{})}
	p.mu.Lock()
	if p.cut {
		l.close()
	} else {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}
