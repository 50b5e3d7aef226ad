// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package memcloud simulates a cloud in memory for tests, simulations and demonstrations.
//
// Its machines have aliases (nodeipam.Cloud), and interfaces with secondary addresses or
// prefixes of subnets, for which Provider returns a provider of netresource. Like a real
// cloud it throttles and shows changes late. One plan of faults applies to every call: it
// is refused, done with its answer lost, or half done.
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
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
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
	Half                // half is done, and the answer is an error
)

// Call describes a call to the plan of faults.
type Call struct {
	Number   int    // of all calls, from 1
	What     string // describe, assign, unassign, create, aliases, add alias
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
	Subnets      map[v1alpha1.PoolID]netip.Prefix
	Interfaces   int              // of a machine; 0: 4
	PerInterface int              // addresses, or prefixes, of an interface; 0: 16
	PrefixLen    int              // interfaces get prefixes of that length; 0: addresses
	Pre          int              // addresses that nodes want free if they do not say
	Lag          time.Duration    // how late a change is shown
	QPS          int              // calls in a second, more are throttled; 0: no bound
	Fault        func(Call) Fault // the plan of faults; nil: none
	Now          func() time.Time // nil: the clock
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
	taken    map[netip.Prefix]string // unit to interface
	count    map[v1alpha1.PoolID]int // units that are taken
	next     map[v1alpha1.PoolID]netip.Prefix
	machines map[string]*machine
	history  map[string][]moment
	made     int
}

// machine holds the aliases and the interfaces of a machine.
type machine struct {
	known      bool // to AddMachine
	providerID string
	aliases    []netip.Prefix
	nics       []*nic
}

// nic is an interface.
type nic struct {
	id, instance string
	subnet       v1alpha1.PoolID
	units        []netip.Prefix
}

// moment holds the interfaces that a machine had from a time on.
type moment struct {
	at   time.Time
	nics []*nic
}

// New returns a cloud without machines. A machine comes into being with its first interface,
// or with AddMachine.
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
		next:     map[v1alpha1.PoolID]netip.Prefix{},
		count:    map[v1alpha1.PoolID]int{},
		machines: map[string]*machine{},
		history:  map[string][]moment{},
	}
}

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

// Units returns the addresses, or prefixes, that a machine really has.
func (c *Cloud) Units(instance string) (all []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.machine(instance).nics {
		all = append(all, n.units...)
	}
	return all
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

// Terminate removes a machine with its aliases and interfaces.
func (c *Cloud) Terminate(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.machine(instance).nics {
		for _, u := range n.units {
			delete(c.taken, u)
			c.count[n.subnet]--
		}
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
		return Refuse, fmt.Errorf("%s: %w", what, netresource.ErrThrottled)
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

// bits returns the length of a unit of a subnet.
func (c *Cloud) bits(p netip.Prefix) int {
	if c.config.PrefixLen > 0 {
		return c.config.PrefixLen
	}
	return p.Addr().BitLen()
}

// take finds the next free unit of a subnet, around at its end.
func (c *Cloud) take(subnet v1alpha1.PoolID, id string) (netip.Prefix, bool) {
	p := c.config.Subnets[subnet]
	first := netip.PrefixFrom(p.Addr(), c.bits(p))
	at, ok := c.next[subnet]
	if !ok {
		at = first
	}
	for start := at; ; {
		u := at
		if at = after(at); !p.Contains(at.Addr()) {
			at = first
		}
		if _, taken := c.taken[u]; !taken {
			c.next[subnet], c.taken[u] = at, id
			c.count[subnet]++
			return u, true
		}
		if at == start {
			return netip.Prefix{}, false
		}
	}
}

// after returns the unit behind u.
func after(u netip.Prefix) netip.Prefix {
	b := u.Addr().AsSlice()
	for i, bit := (u.Bits()-1)/8, byte(1)<<(7-(u.Bits()-1)%8); i >= 0; i, bit = i-1, 1 {
		if b[i] += bit; b[i] >= bit {
			break
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(a, u.Bits())
}

// free returns the number of units that are left of a subnet.
func (c *Cloud) free(subnet v1alpha1.PoolID) int {
	p := c.config.Subnets[subnet]
	return 1<<min(c.bits(p)-p.Bits(), 30) - c.count[subnet]
}

// note records the interfaces of a machine from now on.
func (c *Cloud) note(instance string) {
	if c.config.Lag == 0 {
		return
	}
	now := c.config.Now()
	h := c.history[instance]
	for len(h) > 1 && !h[1].at.After(now.Add(-c.config.Lag)) {
		h = h[1:]
	}
	c.history[instance] = append(h, moment{now, clone(c.machine(instance).nics)})
}

func clone(nics []*nic) (all []*nic) {
	for _, n := range nics {
		copied := *n
		copied.units = slices.Clone(n.units)
		all = append(all, &copied)
	}
	return all
}

// shown returns the interfaces of a machine as the cloud shows them, which may be late.
func (c *Cloud) shown(instance string) []*nic {
	if c.config.Lag == 0 {
		return clone(c.machine(instance).nics)
	}
	var nics []*nic
	for _, m := range c.history[instance] {
		if !m.at.After(c.config.Now().Add(-c.config.Lag)) {
			nics = m.nics
		}
	}
	return clone(nics)
}

// describe returns the interfaces of all machines as the cloud shows them.
func (c *Cloud) describe(ctx context.Context) (map[string][]*nic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.enter(ctx, "describe", ""); err != nil {
		return nil, err
	}
	all := map[string][]*nic{}
	for instance, m := range c.machines {
		if len(m.nics) > 0 || len(c.history[instance]) > 0 {
			all[instance] = c.shown(instance)
		}
	}
	return all, nil
}

// assign gives an interface n more units, or as many as there are.
func (c *Cloud) assign(ctx context.Context, instance, id string, n int) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "assign", instance)
	if f == Refuse {
		return nil, err
	}
	if f == Half {
		n /= 2
	}
	nics := c.machine(instance).nics
	i := slices.IndexFunc(nics, func(n *nic) bool { return n.id == id })
	if i < 0 {
		return nil, fmt.Errorf("assign to interface %q of %q: there is no such interface", id, instance)
	}
	units := c.fill(nics[i], n)
	c.note(instance)
	if err == nil && len(units) == 0 && n > 0 {
		err = fmt.Errorf("assign to interface %q: subnet %q or the interface is full", id, nics[i].subnet)
	}
	return units, err
}

func (c *Cloud) fill(to *nic, n int) (units []netip.Prefix) {
	for range min(n, c.config.PerInterface-len(to.units)) {
		u, ok := c.take(to.subnet, to.id)
		if !ok {
			break
		}
		to.units = append(to.units, u)
		units = append(units, u)
	}
	return units
}

// create makes an interface with n units, or as many as there are, but not
// without any.
func (c *Cloud) create(ctx context.Context, instance string, subnet v1alpha1.PoolID, n int) (*nic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "create", instance)
	if f == Refuse {
		return nil, err
	}
	m := c.machine(instance)
	if len(m.nics) >= c.config.Interfaces {
		return nil, fmt.Errorf("make an interface of %q: it has %d, which is the most", instance, c.config.Interfaces)
	}
	if _, ok := c.config.Subnets[subnet]; !ok {
		return nil, fmt.Errorf("make an interface of %q: there is no subnet %q", instance, subnet)
	}
	if c.free(subnet) == 0 {
		return nil, fmt.Errorf("make an interface of %q: subnet %q is full", instance, subnet)
	}
	c.made++
	made := &nic{id: fmt.Sprintf("eni-%d", c.made), instance: instance, subnet: subnet}
	m.nics = append(m.nics, made)
	if f != Half {
		c.fill(made, n)
	}
	c.note(instance)
	return clone([]*nic{made})[0], err
}

// unassign takes units from a machine. It ignores units that the machine does not have.
func (c *Cloud) unassign(ctx context.Context, instance string, units []netip.Prefix) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "unassign", instance)
	if f == Refuse {
		return err
	}
	if f == Half {
		units = units[:len(units)/2]
	}
	for _, n := range c.machine(instance).nics {
		n.units = slices.DeleteFunc(n.units, func(u netip.Prefix) bool {
			if !slices.Contains(units, u) {
				return false
			}
			delete(c.taken, u)
			c.count[n.subnet]--
			return true
		})
	}
	c.note(instance)
	return err
}
