// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cadastre/cadastre/witness"
)

// Reader reads the sandboxes of the container runtimes of this node. It keeps a
// connection to each of them between readings.
type Reader struct {
	opt  Options
	turn chan struct{} // holds a token while nothing is read; guards the fields below

	conns map[string]*conn // by path of the socket
	known map[string]*cache
	since time.Time // of the view
	names string    // of the runtimes that have answered since then

	listed map[string]listing // by path of the socket: the last listing that had sandboxes
}

// listing holds what a runtime has listed.
type listing struct {
	name      string
	sandboxes int
}

// New returns a reader that has no connection yet.
func New(opt Options) *Reader {
	if opt.Endpoint == "" {
		opt.Endpoint = Auto
	}
	if opt.Sockets == nil {
		opt.Sockets = DefaultSockets()
	}
	if opt.Timeout <= 0 {
		opt.Timeout = 5 * time.Second
	}
	if opt.MaxAnswer <= 0 {
		opt.MaxAnswer = 16 << 20
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	r := &Reader{
		opt:    opt,
		turn:   make(chan struct{}, 1),
		conns:  map[string]*conn{},
		known:  map[string]*cache{},
		listed: map[string]listing{},
	}
	r.turn <- struct{}{}
	return r
}

// Read lists all sandboxes, ready or not. HostNet, NetNS and Addrs are not set.
func (r *Reader) Read(ctx context.Context) (*witness.RuntimeView, error) {
	return r.read(ctx, false)
}

// ReadDetailed lists all sandboxes with HostNet, NetNS and Addrs. It asks for the
// details of a sandbox once, and again when the sandbox is no longer ready.
func (r *Reader) ReadDetailed(ctx context.Context) (*witness.RuntimeView, error) {
	return r.read(ctx, true)
}

// Close closes the connections. A later reading opens new ones.
func (r *Reader) Close() {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	r.interrupt(nil)
}

func (r *Reader) read(ctx context.Context, detailed bool) (*witness.RuntimeView, error) {
	select {
	case <-r.turn:
		defer func() { r.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, fmt.Errorf("read the container runtime: wait for another reading: %w", context.Cause(ctx))
	}
	view, err := r.readAll(ctx, detailed)
	if err != nil {
		r.since = time.Time{}
		return nil, fmt.Errorf("read the container runtime: %w", err)
	}
	return view, nil
}

// readAll reads every runtime: a sandbox is absent only if none of them has it.
func (r *Reader) readAll(ctx context.Context, detailed bool) (*witness.RuntimeView, error) {
	paths, err := r.sockets()
	if err != nil {
		return nil, err
	}
	r.interrupt(paths)
	began := r.opt.Now()
	view := &witness.RuntimeView{Taken: began, Detailed: detailed}
	var names, versions, sources, without, with []string
	for _, path := range paths {
		c, all, err := r.readOne(ctx, path, detailed)
		if errors.Is(err, errNoCRI) {
			without = append(without, path)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		view.Sandboxes = append(view.Sandboxes, all...)
		with = append(with, path)
		if r.listed[path] = (listing{c.name, len(all)}); len(all) == 0 {
			delete(r.listed, path)
		}
		names, versions = append(names, c.name), append(versions, c.version)
		sources = append(sources, fmt.Sprintf("%s %s at %s", c.name, c.version, path))
	}
	if err := r.left(with); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, absentError{fmt.Errorf("%w: %s", ErrNoRuntime, r.whyNone(without))}
	}
	view.Name, view.Version = strings.Join(names, " and "), strings.Join(versions, " and ")
	view.Source = strings.Join(sources, " and ")
	view.Since = r.uninterrupted(view.Source, began)
	return view, nil
}

// left returns an error if a runtime is not among these that had sandboxes when it was read
// last. It has stopped, with its socket removed, and its containers may go on.
func (r *Reader) left(paths []string) error {
	for _, path := range r.opt.Sockets {
		if l, ok := r.listed[path]; ok && !slices.Contains(paths, path) {
			return fmt.Errorf("%s: %s is not there any more, and had %d sandboxes: "+
				"start it, or restart the agent if it was removed from this node", path, l.name, l.sandboxes)
		}
	}
	return nil
}

// readOne reads the runtime at a socket. A kept connection may have ended without notice,
// by a restart of the runtime: then it is read again over a new one.
func (r *Reader) readOne(ctx context.Context, path string, detailed bool) (*conn, []witness.Sandbox, error) {
	for {
		kept := r.conns[path] != nil
		c, err := r.conn(path)
		if err != nil {
			return nil, nil, err
		}
		all, err := c.read(ctx, detailed)
		if err == nil {
			return c, all, nil
		}
		r.drop(path)
		if !kept || status.Code(err) != codes.Unavailable {
			return nil, nil, err
		}
	}
}

// whyNone says why no runtime was read.
func (r *Reader) whyNone(without []string) string {
	if len(without) > 0 {
		return strings.Join(without, ", ") + " answers without the service runtime.v1.RuntimeService"
	}
	return "found none of the sockets " + strings.Join(r.opt.Sockets, ", ")
}

// uninterrupted returns the time since which the same runtimes have answered every
// reading over the same connections.
func (r *Reader) uninterrupted(names string, began time.Time) time.Time {
	same := !r.since.IsZero() && names == r.names
	for _, c := range r.conns {
		same = same && c.dials() == c.seen
		c.seen = c.dials()
	}
	if !same {
		r.since, r.names = began, names
	}
	return r.since
}

// interrupt closes the connections to all other sockets than these.
func (r *Reader) interrupt(but []string) {
	for path := range r.conns {
		if !slices.Contains(but, path) {
			r.drop(path)
		}
	}
}

func (r *Reader) conn(path string) (*conn, error) {
	if c := r.conns[path]; c != nil {
		return c, nil
	}
	if r.known[path] == nil {
		r.known[path] = &cache{}
	}
	c, err := dial(path, r.opt, r.known[path])
	if err != nil {
		return nil, err
	}
	r.conns[path] = c
	return c, nil
}

// drop closes a connection: the next reading dials at once, without the pause that a
// kept connection makes after a failure.
func (r *Reader) drop(path string) {
	if c := r.conns[path]; c != nil {
		c.close()
		delete(r.conns, path)
	}
}
