// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// listener accepts as many connections as there is room for; further callers wait in
// the kernel's queue.
type listener struct {
	net.Listener
	room  chan struct{} // has an element for each open connection, and for Accept
	open  atomic.Int64  // connections
	ended chan struct{} // closed by Close
	end   func()
	write time.Duration
}

func newListener(l net.Listener, limits Limits) *listener {
	ended := make(chan struct{})
	return &listener{
		Listener: l, room: make(chan struct{}, limits.Connections), write: limits.Write,
		ended: ended, end: sync.OnceFunc(func() { close(ended) }),
	}
}

// Accept waits for room, and then for a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	l.open.Add(1)
	return &conn{Conn: c, write: l.write, leave: sync.OnceFunc(func() {
		l.open.Add(-1)
		<-l.room
	})}, nil
}

// Close ends Accept.
func (l *listener) Close() error {
	l.end()
	return l.Listener.Close()
}

func (l *listener) full() bool { return int(l.open.Load()) == cap(l.room) }

// conn is a connection whose writes have a deadline each: http.Server has one for
// the whole answer only, which would end streams.
type conn struct {
	net.Conn
	write  time.Duration
	leave  func()
	closed func() // of Config.Accepted; may be nil
}

// part holds the bytes that a caller must take within the limit of a write.
const part = 64 << 10

// Write writes b, each part within the limit.
func (c *conn) Write(b []byte) (n int, err error) {
	for more := true; more && err == nil; more = n < len(b) {
		if err = c.SetWriteDeadline(time.Now().Add(c.write)); err == nil {
			var taken int
			taken, err = c.Conn.Write(b[n:min(len(b), n+part)])
			n += taken
		}
	}
	return n, err
}

// CloseWrite closes the sending half, as http.Server does before it closes a
// connection whose request it has not read to the end.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close closes the connection and makes room for another one.
func (c *conn) Close() error {
	defer c.leave()
	if c.closed != nil {
		defer c.closed()
	}
	return c.Conn.Close()
}

// ownConn returns the connection that Accept has returned.
func ownConn(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*conn)
}
