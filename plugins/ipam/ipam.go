// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Pools of the plugin in the ledger.
const (
	PodPool  = "default" // addresses of pods, the gateway and the NAT loopback
	HostPool = "vpphost" // both ends of the VPP-to-host link
)

// LoopbackName is the interface in the lease of the NAT loopback, which VPP has.
const LoopbackName = "natloopback"

// Deps lists dependencies of the IPAM plugin.
type Deps struct {
	controller.PluginDeps
	NodeSync     nodesync.API
	ContivConf   contivconf.API
	ServiceLabel controller.AgentLabel
	EventLoop    controller.EventLoop // may be nil: follow-ups go through the transaction of their event
	PodManager   Sandboxes            // nil: the newest sandbox of a pod follows from the leases
	Claims       Claims               // nil: this node needs no claims
	Interfaces   Interfaces           // with podBlocks interfaces; nil: this node has none
	Ledger       *ledger.Ledger       // holds the leases; nil: one in memory
	Stage        *ledger.Stage        // committed by the loop
	// Records stores the interfaces of addresses that pods have. The plugin is their only
	// writer. nil: they are known while there is a NetResourceSet or this process runs.
	Records Records
}

// Records stores named values. The file of the agent implements it.
type Records interface {
	// Load calls f for every record.
	Load(ctx context.Context, f func(key string, value []byte) error) error
	// Commit puts and deletes all of these or none, and returns when that is durable.
	Commit(ctx context.Context, put map[string][]byte, del []string) error
}

// Sandboxes returns the sandboxes of pods. podmanager implements it.
type Sandboxes interface {
	NewestSandbox(pod kv.PodID) (ledger.Key, bool)
}

// IPAM plugin implements IP address allocation for this node.
type IPAM struct {
	Deps
	state     *atomic.Pointer[state]
	committed *committed
	marked    *state   // at the savepoint of the loop
	register  register // of the loop
	event     *atomic.Pointer[podEvent]
	recorded  nodeset.Uplinks // in Records, of the loop
}

var (
	_ API                           = (*IPAM)(nil)
	_ FamilyAPI                     = (*IPAM)(nil)
	_ controller.EventHandler       = (*IPAM)(nil)
	_ controller.SavepointCommitter = (*IPAM)(nil)
)

// state holds the result of the last resync or update. It is immutable once it is stored.
type state struct {
	nodeID   uint32
	families []addrplan.Family
	nodes    []addrplan.Node // by family; the pod subnet may be missing
	// neighbours indexes the pod subnets that external IPAM has assigned, and the claims
	// of all nodes; nil: blocks follow from node IDs. Of a state it alone changes later.
	neighbours *neighbours
	pending    string          // the reason why there is no pod subnet yet
	wanted     []claims.Target // blocks that this node has if it holds their claims
	waiting    []claims.Target // those whose claims it does not hold
	asked      []netip.Prefix  // podCIDRs of the Node object, of the configured families
	// askedProblem holds the reason why nodesync cannot use them.
	askedProblem string
	known        []poolplan.Pool       // all pools of the cluster
	pools        []poolplan.Pool       // those that this node has blocks of
	networks     map[string]network    // this node's blocks of each network
	usable       nodeset.Usable        // of set
	uplinks      nodeset.Uplinks       // interfaces of the blocks; the source of the blocks makes it
	whole        map[netip.Prefix]bool // blocks of the default network without a gateway of their own
	set          *kv.NetResourceSet    // the source of the blocks, if they are of one
	seen         int64                 // revision of the store up to which set is its newest version
	problems     []Problem
	kept         []Problem // of them, the blocks that are refused and stay open
	mismatch     string
	differs      string // the difference between contiv.conf and the pools of the cluster
}

func beforeResync() *state { return &state{pending: "no resync yet"} }

// DefaultPlugin is a default instance of IPAM plugin.
var DefaultPlugin = *NewPlugin()

// Option is a function that acts on a Plugin to inject Dependencies or configuration.
type Option func(*IPAM)

// NewPlugin returns an IPAM plugin; options set its dependencies.
func NewPlugin(opts ...Option) *IPAM {
	p := &IPAM{
		state:     &atomic.Pointer[state]{},
		event:     &atomic.Pointer[podEvent]{},
		committed: &committed{poke: make(chan struct{}, 1)},
		register:  newRegister(),
	}
	p.state.Store(beforeResync())
	p.Name = "ipam"
	for _, opt := range opts {
		opt(p)
	}
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	return p
}

// UseDeps sets dependencies.
func UseDeps(set func(*Deps)) Option {
	return func(p *IPAM) { set(&p.Deps) }
}

// Init fails if a dependency is missing. If there is no ledger or stage it opens one, with
// the null journal.
func (i *IPAM) Init() (err error) {
	if err := i.missing(); err != nil {
		return fmt.Errorf("init %s: %w", i.Name, err)
	}
	if i.Ledger == nil {
		if i.Ledger, err = ledger.Open(
			context.Background(),
			ledger.NullJournal{},
			ledger.Options{Log: i.Log},
		); err != nil {
			return err
		}
	}
	if i.Stage == nil {
		i.Stage = i.Ledger.Begin()
	}
	return i.loadUplinks(context.Background())
}

// missing returns an error that names the first required dependency that is nil.
func (i *IPAM) missing() error {
	for _, d := range []struct {
		name string
		set  bool
	}{
		{"NodeSync", i.NodeSync != nil},
		{"ContivConf", i.ContivConf != nil},
		{"ServiceLabel", i.ServiceLabel != nil},
	} {
		if !d.set {
			return fmt.Errorf("dependency %s is missing: set Deps.%s with NewPlugin(UseDeps(...))", d.name, d.name)
		}
	}
	return nil
}

// usable returns an error before Init, or if a dependency is missing.
func (i *IPAM) usable() error {
	if err := i.missing(); err != nil {
		return err
	}
	if i.Ledger == nil || i.Stage == nil {
		return errors.New("the plugin has no ledger: call Init first")
	}
	return nil
}

// AfterInit does nothing.
func (i *IPAM) AfterInit() error { return nil }

// Close does nothing: leases outlive the process.
func (i *IPAM) Close() error { return nil }

// Pending returns the reason why this node has no pod subnet yet, "" if it has one.
func (i *IPAM) Pending() string {
	s := i.state.Load()
	if s.pending != "" && i.fromInterfaces() && i.Interfaces != nil && i.Interfaces.Shortage() != "" {
		return s.pending + ": " + i.Interfaces.Shortage()
	}
	return cmp.Or(s.pending, i.waitsFor(s))
}
