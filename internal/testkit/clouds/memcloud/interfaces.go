// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/cloud"
)

var _ cloud.Cloud = (*Cloud)(nil)

// Name implements cloud.Cloud.
func (c *Cloud) Name() string { return "mem" }

// Read implements cloud.Cloud.
func (c *Cloud) Read(ctx context.Context) (*cloud.Snapshot, error) {
	return c.read(ctx, "")
}

// ReadInstance implements cloud.Cloud.
func (c *Cloud) ReadInstance(ctx context.Context, instance string) (*cloud.Snapshot, error) {
	s, err := c.read(ctx, instance)
	if err == nil && s.Instances[instance] == nil {
		return nil, fmt.Errorf("read machine %q: %w", instance, cloud.ErrNoInstance)
	}
	return s, err
}

// read returns the machines as the cloud shows them: all of them if only is "".
func (c *Cloud) read(ctx context.Context, only string) (*cloud.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.enter(ctx, "describe", only); err != nil {
		return nil, err
	}
	s := &cloud.Snapshot{Instances: map[string]*cloud.Instance{}, Subnets: map[string]*cloud.Subnet{}}
	for id, m := range c.machines {
		if m.instance != nil && (only == "" || only == id) {
			shown := *m.instance
			shown.Interfaces = c.shown(id)
			s.Instances[id] = &shown
		}
	}
	for id := range c.config.Subnets {
		s.Subnets[id] = c.subnet(id)
	}
	return s, nil
}

// subnet returns a subnet. The gateway of each range is its first address but one.
func (c *Cloud) subnet(id string) *cloud.Subnet {
	s := &cloud.Subnet{
		ID:     id,
		Zone:   c.zone(id),
		Usable: !slices.Contains(c.config.Unusable, id),
		Free:   c.left(id),
	}
	for _, p := range c.ranges(id) {
		s.Ranges = append(s.Ranges, cloud.Range{CIDR: p, Gateway: p.Addr().Next()})
		s.VPC = append(s.VPC, p)
	}
	return s
}

func (c *Cloud) zone(subnet string) string {
	if z := c.config.Zones[subnet]; z != "" {
		return z
	}
	return "zone-a"
}

// ranges returns those of a subnet.
func (c *Cloud) ranges(subnet string) (all []netip.Prefix) {
	for _, from := range []map[string]netip.Prefix{c.config.Subnets, c.config.Second} {
		if p, ok := from[subnet]; ok {
			all = append(all, p)
		}
	}
	return all
}

// left returns the number of free addresses of a subnet's first range.
func (c *Cloud) left(subnet string) int {
	p := c.config.Subnets[subnet]
	n := 1 << min(p.Addr().BitLen()-p.Bits(), 40)
	for u := range c.taken {
		if p.Contains(u.Addr()) {
			n -= 1 << min(u.Addr().BitLen()-u.Bits(), 40)
		}
	}
	return max(n, 0)
}

// take finds the next free address or prefix of a subnet, around at its end.
func (c *Cloud) take(subnet, id string, v6 bool, bits int) (netip.Prefix, bool) {
	for _, p := range c.ranges(subnet) {
		if p.Addr().Is6() != v6 {
			continue
		}
		if bits == 0 {
			bits = p.Addr().BitLen()
		}
		first, key := netip.PrefixFrom(p.Addr(), bits), place{subnet, v6, bits}
		at, ok := c.next[key]
		if !ok || c.config.Reuse {
			at = first
		}
		for start := at; ; {
			u := at
			if at = after(at); !p.Contains(at.Addr()) {
				at = first
			}
			if !c.overlaps(u) {
				c.next[key], c.taken[u] = at, id
				return u, true
			}
			if at == start {
				break
			}
		}
	}
	return netip.Prefix{}, false
}

// overlaps reports whether an address of u is taken.
func (c *Cloud) overlaps(u netip.Prefix) bool {
	if _, ok := c.taken[u]; ok {
		return true
	}
	bits := []int{c.config.PrefixLen, c.config.PrefixLen6}
	for _, b := range bits {
		if b > 0 && b < u.Bits() {
			if outer, err := u.Addr().Prefix(b); err == nil {
				if _, ok := c.taken[outer]; ok {
					return true
				}
			}
		}
	}
	if u.IsSingleIP() {
		return false
	}
	for t := range c.taken {
		if u.Overlaps(t) {
			return true
		}
	}
	return false
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

// free makes the addresses of an interface free.
func (c *Cloud) free(i *cloud.Interface) {
	for _, b := range i.Blocks {
		delete(c.taken, b.Prefix)
	}
}

// newInterface returns a new interface with its own address of each range; nil: the subnet
// is full.
func (c *Cloud) newInterface(subnet string) *cloud.Interface {
	n := c.made + 1
	made := &cloud.Interface{
		ID:      fmt.Sprintf("eni-%d", n),
		MAC:     fmt.Sprintf("02:00:00:%02x:%02x:%02x", byte(n>>16), byte(n>>8), byte(n)),
		Subnet:  subnet,
		Owned:   true,
		Created: c.config.Now(),
	}
	for _, p := range c.ranges(subnet) {
		u, ok := c.take(subnet, made.ID, p.Addr().Is6(), 0)
		if !ok {
			c.free(made)
			return nil
		}
		made.Blocks = append(made.Blocks, cloud.Block{Prefix: u, Subnet: subnet, Primary: true})
	}
	c.made = n
	return made
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
	c.history[instance] = append(h, moment{now, clone(c.interfaces(instance))})
}

func clone(all []*cloud.Interface) (copies []*cloud.Interface) {
	for _, i := range all {
		copied := *i
		copied.Blocks = slices.Clone(i.Blocks)
		copies = append(copies, &copied)
	}
	return copies
}

// shown returns the interfaces of a machine as the cloud shows them, which may be late.
func (c *Cloud) shown(instance string) []*cloud.Interface {
	if c.config.Lag == 0 {
		return clone(c.interfaces(instance))
	}
	var all []*cloud.Interface
	for _, m := range c.history[instance] {
		if !m.at.After(c.config.Now().Add(-c.config.Lag)) {
			all = m.all
		}
	}
	return clone(all)
}

// bits returns the length of what is wanted; 0: that of an address.
func (c *Cloud) bits(want cloud.Want) (int, error) {
	bits := c.config.PrefixLen
	if want.IPv6 {
		bits = c.config.PrefixLen6
	}
	switch {
	case !want.Prefixes:
		return 0, nil
	case bits == 0:
		return 0, fmt.Errorf("take %d prefixes: this cloud has none: want addresses", want.Count)
	}
	return bits, nil
}

// fill gives an interface as much of what is wanted as there is room for.
func (c *Cloud) fill(to *cloud.Interface, want cloud.Want) (added []cloud.Block, err error) {
	bits, err := c.bits(want)
	if err != nil {
		return nil, err
	}
	room := c.config.PerInterface
	for _, b := range to.Blocks {
		if !b.Primary && b.Prefix.Addr().Is6() == want.IPv6 {
			room--
		}
	}
	for range min(want.Count, room) {
		u, ok := c.take(to.Subnet, to.ID, want.IPv6, bits)
		if !ok {
			break
		}
		b := cloud.Block{Prefix: u, Subnet: to.Subnet}
		to.Blocks = append(to.Blocks, b)
		added = append(added, b)
	}
	return added, nil
}

// Assign implements cloud.Cloud.
func (c *Cloud) Assign(ctx context.Context, instance, iface string, want cloud.Want) ([]cloud.Block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "assign", instance)
	if f == Refuse {
		return nil, err
	}
	if f == Half {
		want.Count /= 2
	}
	i := c.attached(instance, iface)
	if i == nil {
		return nil, fmt.Errorf("assign to interface %q of %q: there is no such interface", iface, instance)
	}
	added, failed := c.fill(i, want)
	c.note(instance)
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, fmt.Errorf("assign to interface %q: %w", iface, failed)
	case len(added) == 0 && want.Count > 0:
		return nil, fmt.Errorf("assign to interface %q: it or subnet %q is full: %w", iface, i.Subnet, cloud.ErrFull)
	}
	return added, nil
}

// Unassign implements cloud.Cloud.
func (c *Cloud) Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "unassign", instance)
	if f == Refuse {
		return err
	}
	if f == Half {
		blocks = blocks[:len(blocks)/2]
	}
	i := c.attached(instance, iface)
	if i == nil {
		return err
	}
	for _, b := range i.Blocks {
		if b.Primary && slices.Contains(blocks, b.Prefix) {
			return fmt.Errorf("unassign %s: it is the own address of interface %q", b.Prefix, iface)
		}
	}
	i.Blocks = slices.DeleteFunc(i.Blocks, func(b cloud.Block) bool {
		gone := slices.Contains(blocks, b.Prefix)
		if gone {
			delete(c.taken, b.Prefix)
		}
		return gone
	})
	c.note(instance)
	return err
}

// CreateInterface implements cloud.Cloud. It creates none without one of the addresses that
// are wanted.
func (c *Cloud) CreateInterface(
	ctx context.Context,
	instance string,
	want cloud.NewInterface,
) (*cloud.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "create", instance)
	if f == Refuse {
		return nil, err
	}
	made, failed := c.create(instance, want)
	switch {
	case failed != nil:
		return nil, fmt.Errorf("create an interface of %q: %w", instance, failed)
	case f == Half:
		c.orphans = append(c.orphans, made)
		return nil, err
	}
	m := c.machines[instance].instance
	m.Interfaces = append(m.Interfaces, made)
	slices.SortFunc(m.Interfaces, func(a, b *cloud.Interface) int { return a.Device - b.Device })
	c.note(instance)
	if err != nil {
		return nil, err
	}
	return clone([]*cloud.Interface{made})[0], nil
}

func (c *Cloud) create(instance string, want cloud.NewInterface) (*cloud.Interface, error) {
	m := c.machines[instance]
	if m == nil || m.instance == nil {
		return nil, cloud.ErrNoInstance
	}
	all := m.instance.Interfaces
	if len(all) >= c.config.Interfaces {
		return nil, fmt.Errorf("it has %d, which is the most: %w", len(all), cloud.ErrFull)
	}
	if slices.ContainsFunc(all, func(i *cloud.Interface) bool { return i.Device == want.Device }) {
		return nil, fmt.Errorf("device %d is in use: want a free number", want.Device)
	}
	if _, ok := c.config.Subnets[want.Subnet]; !ok {
		return nil, fmt.Errorf("there is no subnet %q", want.Subnet)
	}
	made := c.newInterface(want.Subnet)
	if made == nil {
		return nil, fmt.Errorf("subnet %q is full: %w", want.Subnet, cloud.ErrFull)
	}
	made.Device = want.Device
	added, err := c.fill(made, want.Want)
	if err == nil && len(added) == 0 && want.Count > 0 {
		err = fmt.Errorf("subnet %q is full: %w", want.Subnet, cloud.ErrFull)
	}
	if err != nil {
		c.free(made)
		return nil, err
	}
	return made, nil
}

// DeleteInterface implements cloud.Cloud.
func (c *Cloud) DeleteInterface(ctx context.Context, instance, iface string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "delete", instance)
	if f == Refuse {
		return err
	}
	i := c.attached(instance, iface)
	switch {
	case i == nil:
		return err
	case !i.Owned:
		return fmt.Errorf("delete interface %q of %q: CreateInterface did not create it", iface, instance)
	}
	m := c.machines[instance].instance
	m.Interfaces = slices.DeleteFunc(slices.Clone(m.Interfaces), func(x *cloud.Interface) bool { return x == i })
	c.note(instance)
	if f == Half { // detached, and not deleted
		c.orphans = append(c.orphans, i)
		return err
	}
	c.free(i)
	return err
}

// DeleteOrphans implements cloud.Cloud. An orphan of this cloud does not show whose it was:
// they are deleted whatever the instance.
func (c *Cloud) DeleteOrphans(ctx context.Context, instance string, age time.Duration) (gone []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := c.enter(ctx, "orphans", instance)
	if f == Refuse {
		return nil, err
	}
	now := c.config.Now()
	c.orphans = slices.DeleteFunc(c.orphans, func(i *cloud.Interface) bool {
		if now.Sub(i.Created) <= age {
			return false
		}
		c.free(i)
		gone = append(gone, i.ID)
		return true
	})
	return gone, err
}
