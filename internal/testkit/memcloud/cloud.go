// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package memcloud is a cloud in memory, for tests, simulations and
// demonstrations: machines with interfaces, which have secondary addresses or
// prefixes of subnets; and a provider of netresource over it.
//
// Like a real one it throttles, shows changes late, and fails at every step: a
// call may be refused, done with its answer lost, or half done.
//
// Every method may be called from any goroutine.
//
// Example: addresses of one subnet, three interfaces of ten for each machine.
//
//	cloud := memcloud.New(memcloud.Config{
//		Subnets: map[v1alpha1.PoolID]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/21")},
//		Interfaces: 3, PerInterface: 10,
//	})
//	manager, err := netresource.New(netresource.Config{Instances: cloud.Provider(), ...})
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

// ErrInjected is the error of calls that fail because they were to.
var ErrInjected = errors.New("memcloud: injected fault")

// Fault is what happens to a call.
type Fault int

const (
	None   Fault = iota // nothing
	Refuse              // nothing is done, and the answer is an error
	Tear                // all is done, and the answer is an error
	Half                // half is done, and the answer is an error
)

// Call is a call as the plan of faults is asked about it.
type Call struct {
	Number   int    // of all calls, from 1
	What     string // describe, assign, unassign, create
	Instance string
}

// Config is what the cloud is like.
type Config struct {
	Subnets      map[v1alpha1.PoolID]netip.Prefix
	Interfaces   int           // of a machine; 0: 4
	PerInterface int           // addresses, or prefixes, of an interface; 0: 16
	PrefixLen    int           // interfaces get prefixes of that length; 0: addresses
	Pre          int           // addresses that nodes want free if they do not say
	Lag          time.Duration // how late a change is shown
	QPS          int           // calls in a second, more are throttled; 0: no bound
	Fault        func(Call) Fault
	Now          func() time.Time // nil: the clock
}

// Cloud is the cloud.
type Cloud struct {
	config Config

	mu       sync.Mutex
	calls    map[string]int
	number   int
	second   time.Time
	inSecond int
	taken    map[netip.Prefix]string // unit to interface
	count    map[v1alpha1.PoolID]int // units that are taken
	next     map[v1alpha1.PoolID]netip.Prefix
	machines map[string][]*nic
	history  map[string][]moment
	made     int
}

// nic is an interface.
type nic struct {
	id, instance string
	subnet       v1alpha1.PoolID
	units        []netip.Prefix
}

// moment is what a machine had from a time on.
type moment struct {
	at   time.Time
	nics []*nic
}

// New makes a cloud without machines: each is there as soon as it is asked for.
func New(c Config) *Cloud {
	c.Interfaces, c.PerInterface = cmp.Or(c.Interfaces, 4), cmp.Or(c.PerInterface, 16)
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Cloud{
		config: c, calls: map[string]int{}, taken: map[netip.Prefix]string{}, next: map[v1alpha1.PoolID]netip.Prefix{},
		count:    map[v1alpha1.PoolID]int{},
		machines: map[string][]*nic{}, history: map[string][]moment{},
	}
}

// Calls is how many calls of each kind there were, throttled ones among them.
func (c *Cloud) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Units are the addresses, or prefixes, that a machine really has.
func (c *Cloud) Units(instance string) (all []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.machines[instance] {
		all = append(all, n.units...)
	}
	return all
}

// Terminate removes a machine with all it has.
func (c *Cloud) Terminate(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.machines[instance] {
		for _, u := range n.units {
			delete(c.taken, u)
			c.count[n.subnet]--
		}
	}
	delete(c.machines, instance)
	delete(c.history, instance)
}

// enter counts a call, and says what happens to it.
func (c *Cloud) enter(ctx context.Context, what, instance string) (Fault, error) {
	if err := ctx.Err(); err != nil {
		return Refuse, err
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
	if c.config.Fault != nil {
		f = c.config.Fault(Call{c.number, what, instance})
	}
	if f != None {
		return f, fmt.Errorf("%s: %w", what, ErrInjected)
	}
	return None, nil
}

// bits is the length of a unit of a subnet.
func (c *Cloud) bits(p netip.Prefix) int {
	if c.config.PrefixLen > 0 {
		return c.config.PrefixLen
	}
	return p.Addr().BitLen()
}

// take finds a free unit of a subnet, going round.
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

// after is the unit behind u.
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

// free is how many units are left of a subnet.
func (c *Cloud) free(subnet v1alpha1.PoolID) int {
	p := c.config.Subnets[subnet]
	return 1<<min(c.bits(p)-p.Bits(), 30) - c.count[subnet]
}

// note writes down what a machine has since now.
func (c *Cloud) note(instance string) {
	if c.config.Lag == 0 {
		return
	}
	now := c.config.Now()
	h := c.history[instance]
	for len(h) > 1 && !h[1].at.After(now.Add(-c.config.Lag)) {
		h = h[1:]
	}
	c.history[instance] = append(h, moment{now, clone(c.machines[instance])})
}

func clone(nics []*nic) (all []*nic) {
	for _, n := range nics {
		copied := *n
		copied.units = slices.Clone(n.units)
		all = append(all, &copied)
	}
	return all
}

// shown is what is to be seen of a machine.
func (c *Cloud) shown(instance string) []*nic {
	if c.config.Lag == 0 {
		return clone(c.machines[instance])
	}
	var nics []*nic
	for _, m := range c.history[instance] {
		if !m.at.After(c.config.Now().Add(-c.config.Lag)) {
			nics = m.nics
		}
	}
	return clone(nics)
}

// describe shows all machines.
func (c *Cloud) describe(ctx context.Context) (map[string][]*nic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.enter(ctx, "describe", ""); err != nil {
		return nil, err
	}
	all := map[string][]*nic{}
	for instance := range c.machines {
		all[instance] = c.shown(instance)
	}
	return all, nil
}

// assign gives an interface n more units; fewer if there are no more.
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
	i := slices.IndexFunc(c.machines[instance], func(n *nic) bool { return n.id == id })
	if i < 0 {
		return nil, fmt.Errorf("assign to interface %q of %q: there is no such interface", id, instance)
	}
	units := c.fill(c.machines[instance][i], n)
	c.note(instance)
	if err == nil && len(units) == 0 && n > 0 {
		err = fmt.Errorf("assign to interface %q: subnet %q or the interface is full", id, c.machines[instance][i].subnet)
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

// create makes an interface with n units; fewer if there are no more, but not
// with none.
func (c *Cloud) create(ctx context.Context, instance string, subnet v1alpha1.PoolID, n int) (*nic, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "create", instance)
	if f == Refuse {
		return nil, err
	}
	if len(c.machines[instance]) >= c.config.Interfaces {
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
	c.machines[instance] = append(c.machines[instance], made)
	if f != Half {
		c.fill(made, n)
	}
	c.note(instance)
	return clone([]*nic{made})[0], err
}

// unassign takes units from a machine. What is not there is no error.
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
	for _, n := range c.machines[instance] {
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
