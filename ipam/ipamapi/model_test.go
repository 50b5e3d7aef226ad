// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// model implements a driver in the simplest way: it scans everything, one after the
// other.
type model struct {
	pools    map[string]*modelPool
	released map[string]bool // since the start
	host     []netip.Prefix
	lists    []ipamapi.Predefined // in order
	leases   int                  // that were ever allocated
}

type modelPool struct {
	prefix, sub netip.Prefix
	refs        int
	block       *modelBlock
}

type modelBlock struct {
	leases map[netip.Addr]*modelLease
	cursor netip.Addr
}

type modelLease struct {
	pool, name, mac     string
	number              int  // of all leases
	gateway             int  // networks that have it
	likely              bool // the gateway is a guess
	any                 bool // any address was asked for
	restored, confirmed bool
}

// step is one call.
type step struct {
	what        string // pool, releasePool, address, releaseAddress
	prefix, sub string // of a pool
	pool        string
	addr        netip.Addr // the zero Addr: any
	name, mac   string
	gateway     bool
	serial      bool
}

func (s step) String() string {
	return fmt.Sprintf("%s %s %s %s %v name=%s mac=%s gateway=%t serial=%t", s.what, s.prefix, s.sub, s.pool, s.addr, s.name, s.mac, s.gateway, s.serial)
}

func (m *model) clone() *model {
	n := &model{pools: map[string]*modelPool{}, released: maps.Clone(m.released), host: m.host, lists: m.lists, leases: m.leases}
	blocks := map[*modelBlock]*modelBlock{}
	for id, p := range m.pools {
		if blocks[p.block] == nil {
			b := &modelBlock{leases: map[netip.Addr]*modelLease{}, cursor: p.block.cursor}
			for a, l := range p.block.leases {
				same := *l
				b.leases[a] = &same
			}
			blocks[p.block] = b
		}
		same := *p
		same.block = blocks[p.block]
		n.pools[id] = &same
	}
	return n
}

// restart forgets the state that ends with a process.
func (m *model) restart() {
	clear(m.released)
	for _, p := range m.pools {
		newest := 0
		p.block.cursor = netip.Addr{}
		for a, l := range p.block.leases {
			l.restored, l.confirmed = true, false
			if l.gateway == 0 && l.number > newest {
				newest, p.block.cursor = l.number, a
			}
		}
	}
}

// skip goes on after the address that a failed call would have got.
func (m *model) skip(failed *model) {
	for id, p := range m.pools {
		if q := failed.pools[id]; q != nil {
			p.block.cursor = q.block.cursor
		}
	}
}

// do is the answer to a call.
func (m *model) do(s step) (string, error) {
	switch s.what {
	case "pool":
		return m.request(s)
	case "releasePool":
		return "", m.releasePool(s.pool)
	case "address":
		return m.address(s)
	}
	return "", m.releaseAddress(s)
}

func (m *model) overlaps(p netip.Prefix, host bool) bool {
	for _, q := range m.pools {
		if q.prefix.Overlaps(p) {
			return true
		}
	}
	return host && slices.ContainsFunc(m.host, p.Overlaps)
}

func (m *model) blockOf(p netip.Prefix) *modelBlock {
	for _, q := range m.pools {
		if q.prefix == p {
			return q.block
		}
	}
	return nil
}

func (m *model) request(s step) (string, error) {
	var prefix, sub netip.Prefix
	bits := 0
	if s.prefix != "" {
		prefix = pfx(s.prefix)
		if prefix.Addr().IsUnspecified() {
			prefix, bits = netip.Prefix{}, prefix.Bits()
		}
	}
	if !prefix.IsValid() {
		var err error
		if prefix, err = m.choose(bits); err != nil {
			return "", err
		}
	}
	if s.sub != "" {
		if sub = pfx(s.sub); !prefix.Overlaps(sub) {
			return "", ipamapi.ErrInvalidSubPool
		}
		if sub.Bits() <= prefix.Bits() {
			sub = netip.Prefix{}
		}
	}
	id := "LocalDefault/" + prefix.String()
	if sub.IsValid() {
		id += "/" + sub.String()
	}
	if p := m.pools[id]; p != nil {
		p.refs++
		return id, nil
	}
	block := m.blockOf(prefix)
	if block == nil && m.overlaps(prefix, true) {
		return "", ipamapi.ErrPoolOverlap
	}
	m.add(id, prefix, sub, block)
	return id, nil
}

func (m *model) add(id string, prefix, sub netip.Prefix, block *modelBlock) *modelPool {
	if block == nil {
		block = &modelBlock{leases: map[netip.Addr]*modelLease{}}
	}
	m.pools[id] = &modelPool{prefix, sub, 1, block}
	delete(m.released, id)
	return m.pools[id]
}

func (m *model) choose(bits int) (netip.Prefix, error) {
	fits := false
	for _, x := range m.lists {
		n := x.Size
		if bits != 0 {
			n = bits
		}
		if !x.Base.Addr().Is4() || n < x.Base.Bits() {
			continue
		}
		fits = true
		for a := x.Base.Addr(); x.Base.Contains(a); a = after(netip.PrefixFrom(a, n)) {
			if p := netip.PrefixFrom(a, n); !m.overlaps(p, true) {
				return p, nil
			}
		}
	}
	if !fits {
		return netip.Prefix{}, ipamapi.ErrInvalidPool
	}
	return netip.Prefix{}, ipamapi.ErrNoMoreSubnets
}

// after is the first address behind p.
func after(p netip.Prefix) netip.Addr {
	a := p.Addr()
	for p.Contains(a) {
		a = a.Next()
	}
	return a
}

func (m *model) releasePool(id string) error {
	p := m.pools[id]
	if p == nil {
		return ipamapi.ErrBadPool
	}
	if p.refs--; p.refs > 0 {
		return nil
	}
	maps.DeleteFunc(p.block.leases, func(_ netip.Addr, l *modelLease) bool { return l.pool == id })
	delete(m.pools, id)
	m.released[id] = true
	return nil
}

func (p *modelPool) edge(a netip.Addr) bool {
	if p.prefix.Addr().BitLen()-p.prefix.Bits() < 2 {
		return false
	}
	return a == p.prefix.Addr() || a.Is4() && !p.prefix.Contains(a.Next())
}

func (p *modelPool) free(a netip.Addr) bool { return !p.edge(a) && p.block.leases[a] == nil }

// any returns the address that a request for any address gets.
func (p *modelPool) any(serial bool) (netip.Addr, bool) {
	part := p.sub
	if !part.IsValid() {
		part = p.prefix
	}
	first := netip.Addr{}
	for a := part.Addr(); part.Contains(a); a = a.Next() {
		if !p.free(a) {
			continue
		}
		if !serial || !p.block.cursor.IsValid() || p.block.cursor.Less(a) {
			return a, true
		}
		if !first.IsValid() {
			first = a
		}
	}
	return first, first.IsValid()
}

// reopen returns the pool of an ID without a record.
func (m *model) reopen(id string) (*modelPool, error) {
	if m.released[id] {
		return nil, ipamapi.ErrPoolNotFound
	}
	parts := strings.Split(id, "/")
	prefix, sub := pfx(parts[1]+"/"+parts[2]), netip.Prefix{}
	if len(parts) == 5 {
		sub = pfx(parts[3] + "/" + parts[4])
	}
	block := m.blockOf(prefix)
	if block == nil && m.overlaps(prefix, false) {
		return nil, ipamapi.ErrPoolOverlap
	}
	p := m.add(id, prefix, sub, block)
	first := prefix.Addr()
	if sub.IsValid() {
		first = sub.Addr()
	}
	if p.edge(first) {
		first = first.Next()
	}
	if p.free(first) {
		p.block.leases[first] = &modelLease{pool: id, gateway: 1, likely: true}
	}
	return p, nil
}

func (m *model) address(s step) (string, error) {
	p := m.pools[s.pool]
	if p == nil {
		var err error
		if p, err = m.reopen(s.pool); err != nil {
			return "", err
		}
	}
	a, l := s.addr, (*modelLease)(nil)
	if !a.IsValid() {
		for a, l := range p.block.leases {
			if l.any && l.pool == s.pool && l.name == s.name && l.mac == s.mac && s.name != "" && s.mac != "" && !s.gateway {
				return netip.PrefixFrom(a, p.prefix.Bits()).String(), nil
			}
		}
		var ok bool
		if a, ok = p.any(s.serial); !ok {
			return "", ipamapi.ErrNoAvailableIPs
		}
		p.block.cursor = a
	} else {
		switch l = p.block.leases[a]; {
		case !p.prefix.Contains(a):
			return "", ipamapi.ErrIPOutOfRange
		case p.edge(a):
			return "", ipamapi.ErrIPAlreadyAllocated
		}
	}
	answer := netip.PrefixFrom(a, p.prefix.Bits()).String()
	if l == nil || s.gateway && l.likely && l.gateway == 1 && l.pool != s.pool {
		m.leases++
		l = &modelLease{pool: s.pool, name: s.name, mac: s.mac, number: m.leases, any: !s.addr.IsValid()}
		if s.gateway {
			l = &modelLease{pool: s.pool, gateway: 1}
		}
		p.block.leases[a] = l
		return answer, nil
	}
	same := s.name != "" && s.name == l.name || s.mac != "" && s.mac == l.mac
	replay := s.name == "" && s.mac == "" && l.restored && !l.confirmed
	switch {
	case l.pool != s.pool, s.gateway != (l.gateway > 0) && (!replay || s.gateway):
		return "", ipamapi.ErrIPAlreadyAllocated
	case s.gateway:
		l.gateway++
	case same, replay:
		l.confirmed = true
	default:
		return "", ipamapi.ErrIPAlreadyAllocated
	}
	return answer, nil
}

func (m *model) releaseAddress(s step) error {
	p := m.pools[s.pool]
	if p == nil {
		return ipamapi.ErrBadPool
	}
	if !p.prefix.Contains(s.addr) {
		return ipamapi.ErrIPOutOfRange
	}
	l := p.block.leases[s.addr]
	if l == nil || l.pool != s.pool {
		return nil
	}
	if l.gateway > 1 {
		l.gateway--
		return nil
	}
	delete(p.block.leases, s.addr)
	return nil
}

// text is all pools and leases.
func (m *model) text() string {
	var all []string
	for id, p := range m.pools {
		all = append(all, fmt.Sprintf("%s*%d", id, p.refs))
		for a, l := range p.block.leases {
			if l.pool == id {
				all = append(all, fmt.Sprintf("%s of %s: %s,%s,%t", a, l.pool, l.name, l.mac, l.gateway > 0))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// text is the same of the driver and its ledger.
func (w *world) text() string {
	var all []string
	for _, p := range w.Pools() {
		all = append(all, fmt.Sprintf("%s*%d", p.ID, p.Requests))
	}
	for _, l := range w.ledger.Leases() {
		name, mac := l.Key.ContainerID, l.Key.IfName[:strings.LastIndex(l.Key.IfName, "#")]
		gateway := mac == "gateway" || mac == "likely gateway"
		switch {
		case gateway:
			name, mac = "", ""
		case name == mac:
			name = ""
		}
		all = append(all, fmt.Sprintf("%s of %s: %s,%s,%t", l.Addr, l.Key.Network, name, mac, gateway))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// shares are the gateways that more than one network has.
func (m *model) shares() string {
	var all []string
	for id, p := range m.pools {
		for a, l := range p.block.leases {
			if l.pool == id && l.gateway > 1 {
				all = append(all, fmt.Sprintf("%s of %s: %d", a, id, l.gateway-1))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// shares are the same on record, which is what a new process has.
func (w *world) shares() string {
	var all []string
	_ = w.records.Load(context.Background(), func(id string, value []byte) error {
		var r struct{ Gateways map[string]int }
		err := json.Unmarshal(value, &r)
		for a, n := range r.Gateways {
			all = append(all, fmt.Sprintf("%s of %s: %d", a, id, n))
		}
		return err
	})
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// sameError compares an error with one of the well-known ones.
func sameError(got, want error) bool {
	if want == nil || got == nil {
		return got == nil && want == nil
	}
	return errors.Is(got, want)
}
