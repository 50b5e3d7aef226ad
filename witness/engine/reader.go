// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/cadastre/cadastre/witness"
)

// Values of Options.Endpoint beside an address such as unix:///var/run/docker.sock.
const (
	Auto = "auto" // the usual socket; without it the engine is not applicable, unless it is needed
	None = "none"
)

// usual is the endpoint of Auto.
const usual = "unix:///var/run/docker.sock"

// Options configures a Reader.
type Options struct {
	Endpoint string // Auto, None or an address; "": Auto
	// Driver is the name under which the engine knows our IPAM driver. Endpoints that
	// have no container are read for its networks only. A network of our managed plugin,
	// whatever its name, is one of Driver's.
	Driver string
	// Needed makes a missing socket an error that is not witness.ErrNotApplicable.
	Needed bool
	Limit  time.Duration                        // of a Read; 0: 5 s
	Now    func() time.Time                     // nil: time.Now
	After  func(time.Duration) <-chan time.Time // nil: time.After
	Random func() float64                       // spreads the waits of Watch; nil: they are not spread
}

// Reader reads a Docker engine.
type Reader struct {
	options Options
	source  atomic.Pointer[string]
}

// New returns a Reader. It does not connect.
func New(o Options) *Reader {
	if o.Endpoint == "" {
		o.Endpoint = Auto
	}
	if o.Limit == 0 {
		o.Limit = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
	return &Reader{options: o}
}

// Source describes the engine as the last complete view had it, otherwise the endpoint.
func (r *Reader) Source() string {
	if s := r.source.Load(); s != nil {
		return *s
	}
	return r.address()
}

// address returns the engine's address; "" for None.
func (r *Reader) address() string {
	switch r.options.Endpoint {
	case Auto:
		return usual
	case None:
		return ""
	}
	return r.options.Endpoint
}

// errChanging is returned if the networks change faster than they can be read.
var errChanging = errors.New("its networks changed each time that they were read")

// attempts bounds how often Read begins again because the networks have changed.
const attempts = 5

// Read returns all networks and containers. It fails after Options.Limit.
func (r *Reader) Read(ctx context.Context) (*witness.EngineView, error) {
	address := r.address()
	fail := func(err error) (*witness.EngineView, error) {
		return nil, fmt.Errorf("read the Docker engine at %s: %w", address, err)
	}
	if err := r.applicable(); err != nil {
		return nil, err
	}
	limit := r.options.Limit
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not answered within %s", limit))
	defer cancel()
	c, err := connect(ctx, address)
	if err != nil {
		return fail(cause(ctx, err))
	}
	defer c.close()
	view, err := r.view(ctx, c)
	if err != nil {
		return fail(cause(ctx, err))
	}
	source := fmt.Sprintf("Docker %s at %s", view.Version, address)
	r.source.Store(&source)
	return view, nil
}

// cause returns the reason for which ctx has ended, err if it has not.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// applicable returns an error if there is no engine to read.
func (r *Reader) applicable() error {
	if r.options.Endpoint == None {
		return fmt.Errorf("the configuration names no Docker engine: %w", witness.ErrNotApplicable)
	}
	if r.options.Endpoint != Auto || r.options.Needed {
		return nil
	}
	path := strings.TrimPrefix(usual, "unix://")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no Docker engine at %s: %w", path, witness.ErrNotApplicable)
	}
	return nil
}

// view reads until networks and endpoints are the same before and after the containers.
func (r *Reader) view(ctx context.Context, c *connection) (*witness.EngineView, error) {
	info, err := c.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for its state: %w", err)
	}
	ours, err := c.managed(ctx)
	if err != nil {
		return nil, fmt.Errorf("list its plugins: %w", err)
	}
	ours[r.options.Driver] = true
	before, err := c.networks(ctx, ours)
	for range attempts {
		if err != nil {
			return nil, fmt.Errorf("list its networks: %w", err)
		}
		containers, err := c.api.ContainerList(ctx, client.ContainerListOptions{All: true})
		if err != nil {
			return nil, fmt.Errorf("list its containers: %w", err)
		}
		var after []network
		if after, err = c.networks(ctx, ours); err == nil && reflect.DeepEqual(before, after) {
			v := &witness.EngineView{
				Taken:   r.options.Now(),
				ID:      info.Info.ID,
				Version: info.Info.ServerVersion,
				Swarm:   partOfSwarm(info.Info.Swarm.LocalNodeState),
			}
			fill(v, after, containers.Items)
			r.rename(v, ours)
			return v, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list its networks again: %w", err)
		}
		before = after
	}
	return nil, errChanging
}

// rename names the networks of our managed plugins as those of our driver.
func (r *Reader) rename(v *witness.EngineView, ours map[string]bool) {
	for i := range v.Networks {
		if n := &v.Networks[i]; n.IPAMDriver != "" && ours[n.IPAMDriver] {
			n.IPAMDriver = r.options.Driver
		}
	}
}
