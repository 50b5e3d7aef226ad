// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/api/watermark"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// subnetsFor returns the subnets for new interfaces of a machine, the best one first. The
// caller holds mu.
func (p *Provider) subnetsFor(m *cloud.Instance) (all []*cloud.Subnet) {
	for _, s := range p.view.subnets {
		sameZone := s.Zone == "" || m.Zone == "" || s.Zone == m.Zone
		if s.Usable && sameZone && !slices.ContainsFunc(p.families(), func(f int) bool { return !has(s, f) }) {
			all = append(all, s)
		}
	}
	prefixes := p.prefixSize(m, p.counted()) > 1
	slices.SortFunc(all, func(a, b *cloud.Subnet) int {
		if prefixes && p.isFragmented(a.ID) != p.isFragmented(b.ID) {
			if p.isFragmented(a.ID) {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(b.Free, a.Free), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// has reports whether a subnet has a range of a family.
func has(s *cloud.Subnet, f int) bool {
	return slices.ContainsFunc(s.Ranges, func(r cloud.Range) bool { return family(r.CIDR) == f })
}

// bestSubnet returns the ID of the subnet for a new interface; "": there is none. The caller
// holds mu.
func (p *Provider) bestSubnet(m *cloud.Instance) string {
	for _, s := range p.subnetsFor(m) {
		if s.Free != 0 && !p.isFull(m.ID, s.ID) {
			return s.ID
		}
	}
	return ""
}

// unit returns the number of addresses of the next thing that a subnet gives. The caller
// holds mu.
func (p *Provider) unit(m *cloud.Instance, subnet string, f int) int {
	size := p.prefixSize(m, f)
	s := p.view.subnets[subnet]
	if p.isFragmented(subnet) || f == v4 && s != nil && s.Free >= 0 && s.Free < size {
		return 1
	}
	return size
}

// slots returns how many more addresses or prefixes of a family an interface can have.
func slots(m *cloud.Instance, i *cloud.Interface, f int) int {
	used := 0
	for _, b := range i.Blocks {
		if !b.Primary && family(b.Prefix) == f {
			used++
		}
	}
	return max(0, m.Limits.Addresses[f]-used)
}

// room returns how many more addresses of a family an interface can have. The caller holds mu.
func (p *Provider) room(m *cloud.Instance, i *cloud.Interface, f int) int {
	s := p.view.subnets[i.Subnet]
	if i.Trunk || i.Exclude || p.deleting[i.ID] || p.isFull(m.ID, i.ID) || s != nil && !has(s, f) {
		return 0
	}
	room := slots(m, i, f) * p.unit(m, i.Subnet, f)
	if s != nil && s.Free >= 0 && (f == v4 || len(s.Ranges) == 1) {
		room = min(room, s.Free)
	}
	return room
}

// common returns how many addresses of each family of the node an interface can have; of a
// dual-stack node, IPv6 addresses that have no IPv4 one yet count. The caller holds mu.
func (p *Provider) common(m *cloud.Instance, i *cloud.Interface) int {
	if !p.config.IPv4 || !p.config.IPv6 {
		return p.room(m, i, p.counted())
	}
	return max(0, min(p.room(m, i, v4), p.room(m, i, v6)+total(m, v6)-total(m, v4)))
}

// total returns the number of addresses of a machine.
func total(m *cloud.Instance, f int) (n int) {
	for _, i := range m.Interfaces {
		for _, b := range i.Blocks {
			if !b.Primary && !i.Trunk && family(b.Prefix) == f {
				n += sizeOf(b.Prefix)
			}
		}
	}
	return n
}

// Allocate implements netresource.Provider. It assigns to the interface with the most room or,
// if none has any or that one is full, creates one.
func (p *Provider) Allocate(
	ctx context.Context,
	set *v1alpha1.NetResourceSet,
	wanted int,
) (got netresource.Allocation, err error) {
	n, err := p.node(set)
	if err != nil {
		return got, err
	}
	got, room, err := n.place()
	if err != nil {
		return got, err
	}
	if room > 0 {
		got.Addresses, err = n.fill(ctx, got.Interface, min(room, wanted))
		if err == nil && got.Addresses > 0 {
			return got, nil
		}
		if err == nil {
			return got, fmt.Errorf("assign to interface %q: it gets none of %d addresses", got.Interface, wanted)
		}
		got.Failed = "ip assignment failed"
		if !errors.Is(err, cloud.ErrFull) || got.Interfaces == 0 { // after another error it may have been done
			return got, err
		}
		if err2 := p.checkFence(ctx); err2 != nil {
			return got, errors.Join(err, err2)
		}
		got.Interface, got.Pool = "", "" // of the subnet that has just failed
	}
	if got.Interfaces == 0 {
		return got, nil
	}
	made, err2 := n.create(ctx, string(got.Pool), wanted)
	made.Interfaces = got.Interfaces
	if err2 != nil {
		return made, errors.Join(err, err2)
	}
	return made, nil
}

// place returns the interface with the most room, and the number of addresses that it has room
// for: else the subnet for a new one.
func (n *node) place() (at netresource.Allocation, room int, err error) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return at, 0, err
	}
	at.Interfaces = max(0, m.Limits.Interfaces-len(m.Interfaces))
	for _, i := range m.Interfaces {
		if r := p.common(m, i); r > room {
			room, at.Interface, at.Pool = r, i.ID, v1alpha1.PoolID(i.Subnet)
		}
	}
	if room == 0 {
		at.Pool = v1alpha1.PoolID(p.bestSubnet(m))
	}
	return at, room, nil
}

// fill assigns addresses of all families to an interface, and returns their number in the
// family that the manager counts.
func (n *node) fill(ctx context.Context, iface string, want int) (count int, err error) {
	release, err := n.occupy(iface)
	if err != nil {
		return 0, err
	}
	defer release()
	for _, f := range n.p.families() {
		if count, err = n.assign(ctx, iface, f, want); err != nil {
			return 0, err
		}
		if f == v6 && n.p.config.IPv4 {
			want = n.pairs(want)
		}
	}
	return count, nil
}

// pairs returns how many of want IPv4 addresses have an IPv6 address to go with.
func (n *node) pairs(want int) int {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return want
	}
	return max(0, min(want, total(m, v6)-total(m, v4)))
}

// occupy keeps an interface from being deleted until the function that it returns is called.
func (n *node) occupy(iface string) (release func(), err error) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return nil, err
	}
	if p.view.find(m.ID, iface) == nil || p.deleting[iface] {
		return nil, fmt.Errorf("add addresses to interface %q of machine %q: the machine does not have it any more",
			iface, m.ID)
	}
	p.busy[iface]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.busy[iface]--; p.busy[iface] == 0 {
			delete(p.busy, iface)
		}
	}, nil
}

// request holds what to ask the cloud for.
type request struct {
	want   cloud.Want
	count  int // of addresses
	slots  int
	subnet string
	size   int // addresses of a unit
}

// wanted returns the request for want addresses of a family on an interface. A dual-stack
// node gets as many IPv6 addresses as it will have IPv4 ones.
func (n *node) wanted(iface string, f, want int) (r request, instance string, err error) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return r, "", err
	}
	i := p.view.find(m.ID, iface)
	if i == nil {
		return r, "", fmt.Errorf("find interface %q of machine %q: it is not there", iface, m.ID)
	}
	if f == v6 && p.config.IPv4 {
		want = total(m, v4) + want - total(m, v6)
	}
	r.count, r.slots, r.subnet, r.size = want, slots(m, i, f), i.Subnet, p.unit(m, i.Subnet, f)
	r.want = cloud.Want{
		Count:    min(watermark.Units(want, r.size), r.slots),
		IPv6:     f == v6,
		Prefixes: r.size > 1,
	}
	return r, m.ID, nil
}

// singles returns the request for the addresses that prefixes were wanted for.
func (r request) singles() cloud.Want {
	return cloud.Want{Count: min(r.count, r.slots), IPv6: r.want.IPv6}
}

// assign adds up to want addresses of a family to an interface, and returns their number. If
// the subnet has no whole prefix left it adds single addresses.
func (n *node) assign(ctx context.Context, iface string, f, want int) (int, error) {
	r, instance, err := n.wanted(iface, f, want)
	if err != nil || r.want.Count == 0 {
		return 0, err
	}
	c := n.p.config.Cloud
	blocks, err := c.Assign(ctx, instance, iface, r.want)
	if r.want.Prefixes && errors.Is(err, cloud.ErrFull) {
		if blocks, err = c.Assign(ctx, instance, iface, r.singles()); err == nil {
			n.fragments(r.subnet)
		}
	}
	if err == nil && len(blocks) == 0 {
		err = errors.New("neither an address nor an error: want one of them")
	}
	if err != nil {
		err = fmt.Errorf("assign to interface %q of machine %q: %w", iface, instance, err)
		return 0, n.p.failed(instance, iface, err)
	}
	return n.added(instance, iface, blocks), nil
}

// fragments records that a subnet has no whole prefix left.
func (n *node) fragments(subnet string) {
	n.p.mu.Lock()
	n.p.fragmented[subnet] = n.p.config.Now().Add(fragmentedFor)
	n.p.mu.Unlock()
	n.p.config.Log.Warn("a subnet has no whole prefix left: nodes get single addresses of it",
		"cloud", n.p.config.Cloud.Name(), "subnet", subnet, "for", fragmentedFor)
}

// added records blocks that the cloud has added to an interface, and counts their addresses.
func (n *node) added(instance, iface string, blocks []cloud.Block) (count int) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.config.Now()
	for _, b := range blocks {
		p.view.note(item{instance, iface, b.Prefix}, change{at: now, block: b})
		if !b.Primary {
			count += sizeOf(b.Prefix)
		}
	}
	return count
}

// create creates an interface with addresses, in the subnet or, if that is "", in the best one.
func (n *node) create(ctx context.Context, subnet string, want int) (got netresource.Allocation, err error) {
	f := n.p.families()[0]
	r, m, err := n.plan(subnet, f, want)
	if got.Pool = v1alpha1.PoolID(r.subnet); err != nil {
		return got, err
	}
	asked := cloud.NewInterface{Subnet: r.subnet, Want: r.want, Device: lowestDevice(m)}
	c := n.p.config.Cloud
	made, err := c.CreateInterface(ctx, m.ID, asked)
	if r.want.Prefixes && errors.Is(err, cloud.ErrFull) {
		asked.Want = r.singles()
		if made, err = c.CreateInterface(ctx, m.ID, asked); err == nil {
			n.fragments(r.subnet)
		}
	}
	if err == nil && made == nil {
		err = errors.New("neither an interface nor an error: want one of them")
	}
	if err != nil {
		got.Failed = "interface creation failed"
		err = fmt.Errorf("create an interface of machine %q in subnet %q: %w", m.ID, r.subnet, err)
		return got, n.p.failed(m.ID, r.subnet, err)
	}
	n.created(m.ID, made)
	got.Interface, got.Addresses = made.ID, n.added(m.ID, made.ID, made.Blocks)
	if f == n.p.counted() {
		return got, nil
	}
	release, err := n.occupy(made.ID)
	if err == nil {
		defer release()
		got.Addresses, err = n.assign(ctx, made.ID, v4, n.pairs(want))
	}
	if err != nil {
		got.Failed = "ip assignment failed"
	}
	return got, err
}

// plan returns the request for a new interface with addresses of a family.
func (n *node) plan(subnet string, f, want int) (r request, m *cloud.Instance, err error) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, err = n.machine(); err != nil {
		return r, nil, err
	}
	for _, f := range p.families() { // the interface would have no address for a pod
		if m.Limits.Addresses[f] == 0 {
			return r, nil, fmt.Errorf(
				"create an interface of machine %q: its type %q permits no %s addresses for pods: "+
					"want another type, or nodes without that family",
				m.ID,
				m.Type,
				[2]string{"IPv4", "IPv6"}[f],
			)
		}
	}
	copied := *m
	copied.Interfaces = slices.Clone(m.Interfaces)
	if r.subnet = cmp.Or(subnet, p.bestSubnet(m)); r.subnet == "" {
		return r, nil, fmt.Errorf("create an interface of machine %q: no usable subnet of zone %q has a free address: "+
			"want a larger subnet, or one more", m.ID, m.Zone)
	}
	r.size, r.slots, r.count = p.unit(m, r.subnet, f), m.Limits.Addresses[f], want
	if f == v6 && p.config.IPv4 {
		r.count = total(m, v4) + r.count - total(m, v6)
	}
	r.want = cloud.Want{
		Count:    max(0, min(watermark.Units(r.count, r.size), r.slots)),
		IPv6:     f == v6,
		Prefixes: r.size > 1,
	}
	return r, &copied, nil
}

// lowestDevice returns the lowest device number that no interface of a machine has.
func lowestDevice(m *cloud.Instance) int {
	taken := map[int]bool{}
	for _, i := range m.Interfaces {
		taken[i.Device] = true
	}
	for d := 0; ; d++ {
		if !taken[d] {
			return d
		}
	}
}

// created records an interface that the cloud has created.
func (n *node) created(instance string, made *cloud.Interface) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	bare := *made
	bare.Blocks = nil
	p.view.note(item{instance: instance, iface: made.ID}, change{at: p.config.Now(), iface: bare})
}
