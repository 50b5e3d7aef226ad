// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package memcloud simulates a cloud in memory for tests, simulations and demonstrations.
//
// It implements cloud.Cloud: its machines have interfaces with addresses and prefixes of
// subnets. It implements nodeipam.Cloud too: its machines have aliases. Like a real cloud
// it throttles and shows changes late. One plan of faults applies to every call: it is
// refused, done with its answer lost, or half done.
//
// Every method may be called from any goroutine.
package memcloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/cadastre/cadastre/cloud"
)

// ErrInjected is the error of calls that fail by plan.
var ErrInjected = errors.New("memcloud: injected fault")

// Fault selects the outcome of a call.
type Fault int

// The outcomes of a call.
const (
	None   Fault = iota // the call works
	Refuse              // nothing is done, and the answer is an error
	Tear                // all is done, and the answer is an error
	Half                // half is done, and the answer is an error; a new interface is not attached
)

// Call describes a call to the plan of faults.
type Call struct {
	Number   int    // of all calls, from 1
	What     string // describe, assign, unassign, create, delete, orphans, aliases, add alias
	Instance string // the machine
}

// At plans one fault, for call number n.
func At(n int, f Fault) func(Call) Fault {
	return func(c Call) Fault {
		if c.Number == n {
			return f
		}
		return None
	}
}

// Config holds the properties of a cloud. All of them may be left out if only aliases are
// used.
type Config struct {
	Subnets      map[string]netip.Prefix // by ID
	Second       map[string]netip.Prefix // the ranges of dual-stack subnets in the other family, by ID
	Zones        map[string]string       // of subnets, by ID; "": zone-a
	Unusable     []string                // subnets that are not for new interfaces
	Interfaces   int                     // of a machine; 0: 4
	PerInterface int                     // addresses, or prefixes, of an interface, by family; 0: 16
	PrefixLen    int                     // of prefixes; 0: there are none
	PrefixLen6   int                     // of IPv6 prefixes; 0: there are none
	Reuse        bool                    // the lowest free address is given first, also one just returned
	Lag          time.Duration           // how late a change is shown
	QPS          int                     // calls in a second, more are throttled; 0: no bound
	Fault        func(Call) Fault        // the plan of faults; nil: none
	Now          func() time.Time        // nil: the clock
}

// Cloud is a simulated cloud. Use New.
type Cloud struct {
	config Config

	mu       sync.Mutex
	fault    func(Call) Fault
	calls    map[string]int
	number   int
	second   time.Time
	inSecond int
	taken    map[netip.Prefix]string // address or prefix to interface
	next     map[place]netip.Prefix
	machines map[string]*machine
	orphans  []*cloud.Interface // created, and never attached
	history  map[string][]moment
	made     int
}

// place is a subnet, and the length of what is taken from it.
type place struct {
	subnet string
	v6     bool
	bits   int
}

// machine holds the aliases and the interfaces of a machine.
type machine struct {
	known      bool // to AddMachine
	providerID string
	aliases    []netip.Prefix
	instance   *cloud.Instance // nil: AddInstance was not called
}

// moment holds the interfaces that a machine had from a time on.
type moment struct {
	at  time.Time
	all []*cloud.Interface
}

// New returns a cloud without machines. AddInstance adds one with interfaces, and AddMachine
// one with aliases.
func New(c Config) *Cloud {
	c.Interfaces, c.PerInterface = cmp.Or(c.Interfaces, 4), cmp.Or(c.PerInterface, 16)
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Cloud{
		config:   c,
		fault:    c.Fault,
		calls:    map[string]int{},
		taken:    map[netip.Prefix]string{},
		next:     map[place]netip.Prefix{},
		machines: map[string]*machine{},
		history:  map[string][]moment{},
	}
}

// Config returns the properties of the cloud.
func (c *Cloud) Config() Config { return c.config }

// SetFault replaces the plan of faults; nil ends all faults.
func (c *Cloud) SetFault(plan func(Call) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = plan
}

// CallCount returns the number of calls so far.
func (c *Cloud) CallCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.number
}

// Calls returns the number of calls of each kind, throttled ones among them.
func (c *Cloud) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Units returns the addresses and prefixes that a machine really has, without the own
// addresses of its interfaces.
func (c *Cloud) Units(instance string) (all []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interfaces(instance) {
		for _, b := range i.Blocks {
			if !b.Primary {
				all = append(all, b.Prefix)
			}
		}
	}
	return all
}

// Interfaces returns the interfaces that a machine really has.
func (c *Cloud) Interfaces(instance string) []*cloud.Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	return clone(c.interfaces(instance))
}

// Orphans returns the number of interfaces that no machine has.
func (c *Cloud) Orphans() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.orphans)
}

// Change changes an interface of a machine, as its owner could by hand.
func (c *Cloud) Change(instance, iface string, change func(*cloud.Interface)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.attached(instance, iface); i != nil {
		change(i)
		c.note(instance)
	}
}

// Take takes an address or prefix, as a foreign user of the cloud could.
func (c *Cloud) Take(p netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken[p] = "foreign"
}

// AddInstance adds a machine with a first interface in a subnet; "": without any.
func (c *Cloud) AddInstance(id, subnet string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machine(id)
	if m.instance != nil {
		return
	}
	m.instance = &cloud.Instance{
		ID:   id,
		Type: "mem",
		Zone: cmp.Or(c.config.Zones[subnet], "zone-a"),
		Limits: cloud.Limits{
			Interfaces: c.config.Interfaces,
			Addresses:  [2]int{c.config.PerInterface, c.config.PerInterface},
			PrefixBits: [2]int{c.config.PrefixLen, c.config.PrefixLen6},
		},
	}
	if subnet != "" {
		if i := c.newInterface(subnet); i != nil {
			i.Owned = false
			m.instance.Interfaces = append(m.instance.Interfaces, i)
		}
	}
	c.history[id] = append(c.history[id], moment{time.Time{}, clone(m.instance.Interfaces)})
}

// machine returns a machine, a new one if there is none of that name.
func (c *Cloud) machine(instance string) *machine {
	m := c.machines[instance]
	if m == nil {
		m = &machine{}
		c.machines[instance] = m
	}
	return m
}

// interfaces returns those of a machine.
func (c *Cloud) interfaces(instance string) []*cloud.Interface {
	if m := c.machines[instance]; m != nil && m.instance != nil {
		return m.instance.Interfaces
	}
	return nil
}

func (c *Cloud) attached(instance, iface string) *cloud.Interface {
	for _, i := range c.interfaces(instance) {
		if i.ID == iface {
			return i
		}
	}
	return nil
}

// Terminate removes a machine with its aliases and interfaces.
func (c *Cloud) Terminate(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.interfaces(instance) {
		c.free(i)
	}
	delete(c.machines, instance)
	delete(c.history, instance)
}

// enter counts a call and returns its outcome.
func (c *Cloud) enter(ctx context.Context, what, instance string) (Fault, error) {
	if ctx.Err() != nil {
		return Refuse, context.Cause(ctx)
	}
	c.number++
	c.calls[what]++
	now := c.config.Now()
	if now.Sub(c.second) >= time.Second {
		c.second, c.inSecond = now, 0
	}
	c.inSecond++
	if c.config.QPS > 0 && c.inSecond > c.config.QPS {
		c.calls["throttled"]++
		return Refuse, fmt.Errorf("%s: %w", what, cloud.ErrThrottled)
	}
	f := None
	if c.fault != nil {
		f = c.fault(Call{c.number, what, instance})
	}
	if f != None {
		return f, fmt.Errorf("%s: %w", what, ErrInjected)
	}
	return None, nil
}
