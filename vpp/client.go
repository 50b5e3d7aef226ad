// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/memclnt"
	"go.fd.io/govpp/core"

	"github.com/cadastre/cadastre/southbound"
)

const (
	// patience limits the wait for one reply. VPP answers within milliseconds, unless it hangs.
	patience = 10 * time.Second
	// pipeline is the number of requests that are sent before their replies are read.
	pipeline = 64
	// replyQueue has room for the details of a dump until they are read: govpp drops those
	// that find the queue full for 100 ms.
	replyQueue = 1 << 14
	// grace is the time that a reply has after its caller's end. Without a reply the connection
	// ends too, as VPP hangs.
	grace = time.Second
)

// errLost means that the connection to VPP has ended.
var errLost = fmt.Errorf("%w: the connection has ended", southbound.ErrAway)

// client sends requests to VPP. It connects when it must. Any goroutine may call it.
type client struct {
	opt Options

	mu      sync.Mutex
	session *session
	closed  bool
}

// session is one connection.
type session struct {
	transport Transport
	conn      *core.Connection
	ctx       context.Context // ends with the connection
	end       context.CancelCauseFunc
}

func newClient(opt Options) *client {
	silence()
	return &client{opt: opt}
}

// silence ends the log of govpp: each failed request is an error that the caller reports. The
// log is one of the process, and goroutines of a former connection may still use it.
var silence = sync.OnceFunc(func() {
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	core.SetLogger(silent)
})

// close ends the connection for good.
func (c *client) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.drop(c.session, context.Canceled)
	return nil
}

// connect returns the connection, and makes one if there is none.
func (c *client) connect(ctx context.Context) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.session; s != nil {
		select {
		case <-s.transport.Lost():
			c.drop(s, errLost)
		default:
			if s.ctx.Err() == nil {
				return s, nil
			}
		}
	}
	if c.closed {
		return nil, c.unreachable(context.Canceled)
	}
	transport, err := c.opt.Open(ctx)
	if err != nil {
		return nil, c.unreachable(err)
	}
	conn, err := core.Connect(transport)
	if err != nil {
		return nil, c.unreachable(errors.Join(err, transport.Disconnect()))
	}
	s := &session{transport: transport, conn: conn}
	if err := s.unknown(needed()); err != nil {
		err = fmt.Errorf("it has version %s: %w", s.version(ctx), err)
		conn.Disconnect()
		return nil, c.unreachable(err)
	}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	c.session = s
	return s, nil
}

// unreachable returns the error of an attempt to connect.
func (c *client) unreachable(err error) error {
	return fmt.Errorf("%w: connect to VPP at %s: %w: want a running VPP 25.10 with this API socket and the plugins "+
		"af_packet and vxlan", southbound.ErrAway, c.opt.Socket, err)
}

// drop ends a connection; c.mu is locked.
func (c *client) drop(s *session, why error) {
	if s == nil {
		return
	}
	if c.session == s {
		c.session = nil
	}
	if s.ctx.Err() == nil {
		s.end(why)
		s.conn.Disconnect()
	}
}

// broken ends a connection after a failure.
func (c *client) broken(s *session, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(s, why)
}

// exchange sends requests over one connection and passes their replies, in order, to each. A
// request that ends with a control ping may have any number of replies before. The number of
// wanted replies is that of the requests without dumps.
func (c *client) exchange(ctx context.Context, s *session, requests []api.Message, until func(api.Message) bool) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := s.unknown(requests); err != nil {
		return fmt.Errorf("VPP at %s: %w", c.opt.Socket, err)
	}
	// The caller's end does not end the wait at once: a late reply would be taken for that of a
	// later request.
	waiting, stop := context.WithCancelCause(s.ctx)
	defer stop(nil)
	go c.watchCall(ctx, waiting, s, stop)
	err := func() error {
		stream, err := s.conn.NewStream(waiting, core.WithReplySize(replyQueue), core.WithReplyTimeout(patience))
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }() // it is open
		for _, r := range requests {
			if err := stream.SendMsg(r); err != nil {
				return fmt.Errorf("send %s: %w", r.GetMessageName(), err)
			}
		}
		for {
			reply, err := stream.RecvMsg()
			if err != nil {
				return fmt.Errorf("reply to %s: %w", requests[0].GetMessageName(), err)
			}
			if until(reply) {
				return nil
			}
		}
	}()
	if err != nil {
		if why := context.Cause(waiting); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		c.broken(s, err)
		return fmt.Errorf("VPP at %s: %w", c.opt.Socket, errors.Join(errLost, err))
	}
	return nil
}

// watchCall ends a wait for replies with the connection, and when its caller has ended for a
// while.
func (c *client) watchCall(ctx, waiting context.Context, s *session, stop context.CancelCauseFunc) {
	select {
	case <-s.transport.Lost():
		stop(errLost)
		return
	case <-waiting.Done():
		return
	case <-ctx.Done():
	}
	select {
	case <-s.transport.Lost():
		stop(errLost)
	case <-waiting.Done():
	case <-c.opt.After(grace):
		stop(context.Cause(ctx))
	}
}

// call sends one request and returns its reply.
func (c *client) call(ctx context.Context, s *session, what string, request api.Message) (api.Message, error) {
	var reply api.Message
	err := c.exchange(ctx, s, []api.Message{request}, func(m api.Message) bool { reply = m; return true })
	if err == nil {
		err = refusal(reply)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return reply, nil
}

// dump sends requests for details, and passes all replies to each.
func (c *client) dump(ctx context.Context, s *session, requests []api.Message, each func(api.Message)) error {
	for len(requests) > 0 {
		part := requests[:min(len(requests), pipeline)]
		requests = requests[len(part):]
		all := append(append([]api.Message(nil), part...), &memclnt.ControlPing{})
		err := c.exchange(ctx, s, all, func(m api.Message) bool {
			if _, end := m.(*memclnt.ControlPingReply); end {
				return true
			}
			each(m)
			return false
		})
		if err != nil {
			return fmt.Errorf("read the state: %w", err)
		}
	}
	return nil
}

// knows reports whether VPP has a message: that of a plugin that is not loaded is missing.
func (s *session) knows(m api.Message) bool {
	_, err := s.transport.GetMsgID(m.GetMessageName(), m.GetCrcString())
	return err == nil
}

// refusal returns the error that a reply holds.
func refusal(reply api.Message) error {
	v := reflect.Indirect(reflect.ValueOf(reply)).FieldByName("Retval")
	if !v.IsValid() || v.Int() == 0 {
		return nil
	}
	return api.VPPApiError(v.Int())
}

// refused reports whether err is VPP's refusal, with one of some numbers if any are given.
func refused(err error, numbers ...api.VPPApiError) bool {
	var number api.VPPApiError
	if !errors.As(err, &number) {
		return false
	}
	for _, n := range numbers {
		if n == number {
			return true
		}
	}
	return len(numbers) == 0
}
