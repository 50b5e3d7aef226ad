// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubestate is where the cluster's state comes from: it reads what is
// reflected in the kvdb, pushes it into the event loop as one DBResync, and
// every later change as a KubeStateChange.
//
// The snapshot is taken at one revision and the watch continues from the next,
// so that no change is lost or seen twice. When the watch breaks, or when
// Resync is called, a new snapshot is taken. A value that cannot be decoded is
// logged and left out; it harms nobody else.
//
// Source is driven by its Run; Resync may be called from any goroutine but a
// handler's.
//
// Example:
//
//	src := kubestate.New(kubestate.Deps{Store: store, EventLoop: loop, Log: log})
//	err := src.Run(ctx)       // pushes the first DBResync, then changes
package kubestate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
)

// Resources of controller.KubeStateData.
const (
	NodeRecords    = kv.NodeRecordResource
	Nodes          = kv.NodeResource
	Pods           = kv.PodResource
	Pools          = kv.PoolResource
	CustomNetworks = kv.CustomNetworkResource
	NodeConfigs    = kv.NodeConfigResource
)

// resource is one kind of message and where it is stored.
type resource struct {
	name, prefix string
	message      func() proto.Message
}

// registry are the kinds that are read.
func registry() []resource {
	return []resource{
		{NodeRecords, kv.NodeRecordPrefix, func() proto.Message { return &kv.NodeRecord{} }},
		{Nodes, kv.KubeNodePrefix, func() proto.Message { return &kv.Node{} }},
		{Pods, "node/", func() proto.Message { return &kv.Pod{} }},
	}
}

// Deps is what a Source is given.
type Deps struct {
	Log       *slog.Logger
	Store     kvdb.Store
	EventLoop controller.EventLoop
	RetryIn   time.Duration // after the store failed; 0: a second
}

// Source feeds the event loop.
type Source struct {
	deps    Deps
	demands chan demand
	ended   chan struct{} // closed when Run returns
	kinds   []resource
	known   map[string]proto.Message // by key of the store, as of the last event pushed
}

// demand is somebody who wants a resync and waits for its outcome.
type demand struct{ done chan<- error }

// New makes a Source; Run starts it.
func New(deps Deps) *Source {
	if deps.RetryIn == 0 {
		deps.RetryIn = time.Second
	}
	return &Source{deps: deps, demands: make(chan demand), ended: make(chan struct{}), kinds: registry()}
}

// Resync has a new snapshot processed and returns the outcome.
func (s *Source) Resync(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case s.demands <- demand{done}:
	case <-s.ended:
		return fmt.Errorf("ask for a resync: %w", controller.ErrClosedController)
	case <-ctx.Done():
		return fmt.Errorf("ask for a resync: %w", context.Cause(ctx))
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the resync: %w", context.Cause(ctx))
	}
}

// Run pushes snapshots and changes until ctx ends. It runs once.
func (s *Source) Run(ctx context.Context) error {
	defer close(s.ended)
	var waiting []demand
	for {
		err := s.follow(ctx, &waiting)
		if ctx.Err() != nil || errors.Is(err, controller.ErrClosedController) {
			for _, d := range waiting {
				d.done <- controller.ErrClosedController
			}
			return nil
		}
		if err == nil {
			continue // a resync was asked for
		}
		s.deps.Log.Warn("the cluster's state cannot be followed, trying again", "in", s.deps.RetryIn, "error", err)
		for _, d := range waiting {
			d.done <- err
		}
		waiting = nil
		select {
		case <-time.After(s.deps.RetryIn):
		case <-ctx.Done():
		}
	}
}

// follow pushes a snapshot and then what changes, until a resync is asked for
// (nil) or the store fails.
func (s *Source) follow(ctx context.Context, waiting *[]demand) error {
	watch, err := s.snapshot(ctx, *waiting)
	if err != nil {
		return err
	}
	defer watch.Close()
	*waiting = nil
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-s.demands:
			*waiting = append(*waiting, d)
			return nil
		case batch, ok := <-watch.Events():
			if !ok {
				if err := watch.Err(); err != nil {
					return fmt.Errorf("watch the store: %w", err)
				}
				return nil
			}
			for _, ev := range batch {
				if err := s.change(ctx, ev); err != nil {
					return err
				}
			}
		}
	}
}

// snapshot pushes a DBResync and opens the watch that continues from it.
func (s *Source) snapshot(ctx context.Context, waiting []demand) (kvdb.Watcher, error) {
	kvs, rev, err := s.deps.Store.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the store: %w", err)
	}
	watch, err := s.deps.Store.Watch(ctx, "", rev+1)
	if err != nil {
		return nil, fmt.Errorf("watch the store: %w", err)
	}
	s.known = map[string]proto.Message{}
	state := controller.KubeStateData{}
	for _, r := range s.kinds {
		state[r.name] = map[string]proto.Message{}
	}
	for _, x := range kvs {
		if r, m := s.decode(x); m != nil {
			state[r.name][x.Key], s.known[x.Key] = m, m
		}
	}
	ev := &controller.DBResync{Revision: rev, KubeState: state, OnDone: func(err error) {
		for _, d := range waiting {
			d.done <- err
		}
	}}
	if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		watch.Close()
		return nil, err
	}
	return watch, nil
}

func (s *Source) change(ctx context.Context, ev kvdb.Event) error {
	r, m := s.decode(ev.KeyValue)
	if r == nil {
		return nil
	}
	prev := s.known[ev.Key]
	if ev.Deleted || m == nil { // what cannot be read is as good as gone
		m = nil
		delete(s.known, ev.Key)
	} else {
		s.known[ev.Key] = m
	}
	if prev == nil && m == nil {
		return nil
	}
	return s.deps.EventLoop.PushEventWait(ctx, &controller.KubeStateChange{Key: ev.Key, Resource: r.name, Prev: prev, New: m})
}

// decode finds the kind of a key; the message is nil where there is none.
func (s *Source) decode(x kvdb.KeyValue) (*resource, proto.Message) {
	for i, r := range s.kinds {
		if !strings.HasPrefix(x.Key, r.prefix) {
			continue
		}
		m := r.message()
		if err := proto.Unmarshal(x.Value, m); err != nil {
			s.deps.Log.Warn("a value of the store cannot be read and is left out", "key", x.Key, "error", err)
			return &s.kinds[i], nil
		}
		return &s.kinds[i], m
	}
	return nil, nil
}
