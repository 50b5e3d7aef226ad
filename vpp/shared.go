// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.fd.io/govpp/api"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"

	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// firstWait and longestWait are between attempts to connect.
	firstWait   = 200 * time.Millisecond
	longestWait = 5 * time.Second
	// slowComparison is the period after which all values are compared with VPP: it does not
	// announce changes of routes, neighbours and addresses.
	slowComparison = 20 * time.Second
)

// shared holds what the descriptors have in common: the connection, and what is known of VPP.
type shared struct {
	opt     Options
	client  *client
	kernel  *kernel
	wires   *southbound.Descriptor // of the kernel's links
	planner planner

	mu   sync.Mutex
	on   *session
	st   *state          // nil: it must be read
	seen map[string]bool // descriptors that have retrieved values from st

	watchMu  sync.Mutex
	stale    bool                       // VPP may have changed since st was read
	watchers map[*kind]func(key string) // of running watches
	up       map[uint32]*kind           // complete interfaces, by index
	roleKind map[string]*kind           // the descriptors of interfaces, by role
}

// change calls f with what is known of VPP. If that is not true any more, and f fails for this
// reason, f is called again with what VPP has.
func (s *shared) change(ctx context.Context, f func(x *change) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	on, err := s.client.connect(ctx)
	if err != nil {
		return err
	}
	fresh := s.st == nil || s.on != on
	if fresh {
		if err := s.read(ctx, on); err != nil {
			return err
		}
	}
	for {
		s.seen = nil
		err := f(&change{ctx: ctx, client: s.client, on: on, st: s.st})
		if err == nil {
			s.noteUp()
			return nil
		}
		s.st = nil
		if fresh || errors.Is(err, errLost) || ctx.Err() != nil {
			return err
		}
		fresh = true
		if readErr := s.read(ctx, on); readErr != nil {
			return errors.Join(err, readErr)
		}
	}
}

// snapshot returns what VPP has, for the values of one descriptor. A resync calls it once for
// each descriptor; the first one reads.
func (s *shared) snapshot(ctx context.Context, name string) (*state, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	on, err := s.client.connect(ctx)
	if err != nil {
		return nil, err
	}
	s.watchMu.Lock()
	stale := s.stale
	s.stale = false
	s.watchMu.Unlock()
	if stale || s.st == nil || s.on != on || s.seen == nil || s.seen[name] {
		if err := s.read(ctx, on); err != nil {
			return nil, fmt.Errorf("%w: %w", southbound.ErrAway, err)
		}
		s.seen = map[string]bool{}
		s.noteUp()
	}
	s.seen[name] = true
	return s.st, nil
}

// read reads the state of VPP.
func (s *shared) read(ctx context.Context, on *session) error {
	st, err := s.client.read(ctx, on)
	if err != nil {
		s.st = nil
		return err
	}
	s.on, s.st = on, st
	return nil
}

// noteUp keeps the interfaces whose loss matters.
func (s *shared) noteUp() {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	s.up = make(map[uint32]*kind, len(s.st.byTag))
	for _, a := range s.st.byTag {
		if k := s.roleKind[roleOf(a.tag)]; k != nil && a.up {
			s.up[a.index] = k
		}
	}
}

// close ends the connection and closes the sockets. The objects stay.
func (s *shared) close() error {
	return errors.Join(s.client.close(), s.kernel.Close())
}

// watch keeps the connection, and tells all descriptors after each new one that VPP may have
// lost their objects.
func (s *shared) watch(ctx context.Context) error {
	policy := backoff.Policy{First: firstWait, Limit: longestWait, Random: s.opt.Random}
	failures := 0
	for ctx.Err() == nil {
		on, err := s.client.connect(ctx)
		if err != nil {
			failures++
			select {
			case <-ctx.Done():
			case <-s.opt.After(policy.After(failures)):
			}
			continue
		}
		if failures > 0 {
			s.opt.Log.Info("connected to VPP", "socket", s.opt.Socket)
		}
		failures = 0
		s.notify()
		if err := s.follow(ctx, on); err != nil && ctx.Err() == nil {
			s.opt.Log.Warn("the connection to VPP has ended", "socket", s.opt.Socket, "error", err)
			failures = 1
			s.notify()
		}
	}
	return nil
}

// follow passes on what VPP announces, until the connection or ctx ends.
func (s *shared) follow(ctx context.Context, on *session) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	events, err := on.conn.WatchEvent(ctx, &interfaces.SwInterfaceEvent{})
	if err != nil {
		return err
	}
	defer events.Close()
	want := &interfaces.WantInterfaceEvents{EnableDisable: 1}
	if _, err := s.client.call(ctx, on, "subscribe to events of interfaces", want); err != nil {
		return err
	}
	slow := s.opt.After(slowComparison)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-on.transport.Lost():
			s.client.broken(on, errLost)
			return errLost
		case <-on.ctx.Done():
			return context.Cause(on.ctx)
		case <-slow:
			slow = s.opt.After(slowComparison)
			s.notify()
		case m, open := <-events.Events():
			if !open {
				return errLost
			}
			s.announce(m)
		}
	}
}

// announce tells a descriptor that one of its interfaces is down or gone.
func (s *shared) announce(m api.Message) {
	e, ok := m.(*interfaces.SwInterfaceEvent)
	if !ok || !e.Deleted && e.Flags&interface_types.IF_STATUS_API_FLAG_ADMIN_UP != 0 {
		return
	}
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	k := s.up[uint32(e.SwIfIndex)]
	if changed := s.watchers[k]; k != nil && changed != nil {
		s.stale = true
		changed("")
	}
}

// notify tells all descriptors that anything may have changed.
func (s *shared) notify() {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	s.stale = true
	for _, changed := range s.watchers {
		changed("")
	}
}
