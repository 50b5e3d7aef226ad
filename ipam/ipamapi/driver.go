// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cadastre/cadastre/ledger"
)

// HostView lists the networks of the machine.
type HostView interface {
	// Networks returns the node's own subnets and the destinations of the host's
	// routes: no pool may overlap them.
	Networks() []netip.Prefix
}

// Deps holds the dependencies of a Driver. Only Ledger is required.
type Deps struct {
	Ledger  *ledger.Ledger // holds the leases
	Pools   PoolOpener     // nil: only the Driver changes pools of the ledger
	Records Records        // nil: they end with the process
	Host    HostView       // nil: the host has no networks
	Engine  Engine         // read before pools without a record are served
	Config  Config
	Log     *slog.Logger
}

// Driver implements Ipam on the ledger. Any goroutine may call its methods.
type Driver struct {
	ledger  *ledger.Ledger
	opener  PoolOpener
	records Records
	host    HostView
	engine  Engine
	config  Config
	log     *slog.Logger
	number  atomic.Uint64 // the last number in the key of a lease
	replays ledger.Replays

	change      sync.Mutex // one change of pools at a time; taken before the life of a pool
	spaces      map[string]*addressSpace
	put         map[string][]byte   // records that are being written
	dirty       map[string]struct{} // records that may differ from memory
	unconfirmed map[string]struct{} // pools of the ledger whose last change failed, perhaps after it was made
	fresh       bool                // nothing is on record: the engine may have pools of a database that is lost
	unread      bool                // the engine is still to be read for the first time
	suspects    map[string]*suspicion

	mu     sync.RWMutex // taken last; written under change as well
	pools  map[string]*pool
	groups map[group][]*pool // in the order of the requests; replaced, never changed
	ended  map[string]bool   // IDs that ended since the start, and (true) those whose record is Ended
}

var _ Ipam = (*Driver)(nil)

// group names pools that serve each other's requests when they are full.
type group struct {
	space, name string
	is4         bool
}

func (id poolID) inGroup() group { return group{id.space, id.group, id.prefix.Addr().Is4()} }

// New returns a Driver and opens the pools of its records in the ledger. From then
// on only the Driver may change pools of the ledger whose name begins with "docker/".
func New(ctx context.Context, deps Deps) (*Driver, error) {
	if deps.Ledger == nil {
		return nil, errors.New("start the Docker driver: a ledger is needed: Deps.Ledger")
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start the Docker driver: %w", context.Cause(ctx))
	}
	config, err := deps.Config.defaults()
	if err != nil {
		return nil, fmt.Errorf("configuration of the Docker driver: %w", err)
	}
	d := &Driver{
		ledger:      deps.Ledger,
		opener:      deps.Pools,
		records:     deps.Records,
		host:        deps.Host,
		engine:      deps.Engine,
		config:      config,
		log:         deps.Log,
		spaces:      map[string]*addressSpace{},
		put:         map[string][]byte{},
		dirty:       map[string]struct{}{},
		unconfirmed: map[string]struct{}{},
		suspects:    map[string]*suspicion{},
		pools:       map[string]*pool{},
		groups:      map[group][]*pool{},
		ended:       map[string]bool{},
	}
	if d.opener == nil {
		d.opener = NewDirectPools(d.ledger)
	}
	if d.records == nil {
		d.records = NewMemoryRecords()
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	for _, x := range []struct {
		field string
		space Space
	}{{"Local.Pools", config.Local}, {"Global.Pools", config.Global}} {
		byFamily, err := predefined(x.field, x.space.Pools)
		if err != nil {
			return nil, fmt.Errorf("configuration of the Docker driver: %w", err)
		}
		d.spaces[x.space.Name] = newAddressSpace(x.space.Name, byFamily)
	}
	d.spaces[config.Local.Name].pods = config.FromPods
	if err := d.restore(ctx); err != nil {
		return nil, fmt.Errorf("start the Docker driver: %w", err)
	}
	if err := d.learnAtStart(ctx); err != nil {
		return nil, fmt.Errorf("start the Docker driver: %w", err)
	}
	return d, nil
}

// GetDefaultAddressSpaces returns the names of the two spaces.
func (d *Driver) GetDefaultAddressSpaces() (string, string, error) {
	return d.config.Local.Name, d.config.Global.Name, nil
}

// IsBuiltIn returns false.
func (d *Driver) IsBuiltIn() bool { return false }

// Capability returns the capabilities of the Driver. It needs MACs, to tell endpoints
// apart. It needs no replays: it forgets nothing, and it would count a pool that is
// requested again.
func (d *Driver) Capability() Capability { return Capability{RequiresMACAddress: true} }

// Pool describes a pool of the Driver.
type Pool struct {
	ID         string
	Space      string
	Prefix     netip.Prefix
	SubPool    netip.Prefix // the zero Prefix: all of Prefix
	Group      string
	LedgerPool string   // the ledger's pool with its leases
	FromPods   bool     // LedgerPool is that of the pod network
	Chosen     bool     // the Driver has chosen the prefix
	Requests   int      // requests that are not released yet
	Leases     int      // addresses that were requested through it, gateways included
	GivenUp    *GivenUp // requests that no network of the engine accounts for; nil: none
}

// Pools returns all pools by ID.
func (d *Driver) Pools() []Pool {
	d.change.Lock()
	defer d.change.Unlock()
	leases := map[string]int{}
	for _, l := range d.ledger.Leases() {
		if _, ours := d.poolOf(l); ours {
			leases[l.Key.Network]++
		}
	}
	var all []Pool
	for key, p := range d.pools {
		all = append(all, Pool{
			ID:         key,
			Space:      p.id.space,
			Prefix:     p.id.prefix,
			SubPool:    p.id.sub,
			Group:      p.id.group,
			LedgerPool: p.ledger,
			FromPods:   p.fromPods(),
			Chosen:     p.chosen,
			Requests:   p.requests,
			Leases:     leases[key],
			GivenUp:    p.givenUp,
		})
	}
	slices.SortFunc(all, func(x, y Pool) int { return strings.Compare(x.ID, y.ID) })
	return all
}
