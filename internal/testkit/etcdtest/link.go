// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcdtest

import (
	"net"
	"sync"
	"time"
)

// A link holds up to so many pieces of so many bytes each way.
const (
	pieces    = 64
	pieceSize = 16 << 10
)

// piece is some bytes on their way.
type piece struct {
	bytes []byte
	due   time.Time
}

// link is one connection of a client and that to the server behind it.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	once           sync.Once
	done           chan struct{}
}

// run carries bytes both ways until one end closes.
func (l *link) run() {
	var ways sync.WaitGroup
	requests, answers := make(chan piece, pieces), make(chan piece, pieces)
	ways.Go(func() { l.take(l.client, requests) })
	ways.Go(func() { l.take(l.server, answers) })
	ways.Go(func() { l.deliver(l.server, requests, func(c conditions) bool { return c.requests }) })
	ways.Go(func() { l.deliver(l.client, answers, func(c conditions) bool { return c.answers }) })
	ways.Wait()
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		reset(l.client)
		reset(l.server)
	})
}

// take reads what an end sends.
func (l *link) take(from net.Conn, way chan<- piece) {
	defer l.close()
	for {
		p := piece{bytes: make([]byte, pieceSize)}
		n, err := from.Read(p.bytes)
		if err != nil {
			return
		}
		now, _ := l.proxy.look()
		p.bytes, p.due = p.bytes[:n], time.Now().Add(now.delay)
		select {
		case way <- p:
		case <-l.done:
			return
		}
	}
}

// deliver writes it to the other end when it is time.
func (l *link) deliver(to net.Conn, way <-chan piece, open func(conditions) bool) {
	defer l.close()
	for {
		var p piece
		select {
		case p = <-way:
		case <-l.done:
			return
		}
		if !l.wait(time.Until(p.due)) {
			return
		}
		now, changed := l.proxy.look()
		for !open(now) {
			select {
			case <-changed:
			case <-l.done:
				return
			}
			now, changed = l.proxy.look()
		}
		if now.rate > 0 && !l.wait(time.Duration(len(p.bytes))*time.Second/time.Duration(now.rate)) {
			return
		}
		if _, err := to.Write(p.bytes); err != nil {
			return
		}
	}
}

// wait is false if the link was closed before d was over.
func (l *link) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

// reset closes a connection so that the other end notices at once.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
