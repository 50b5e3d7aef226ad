// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/witness"
)

// attributed holds what the engine's networks have in one pool.
type attributed struct {
	id        poolID
	networks  int                // that have a subnet in the pool
	gateways  map[netip.Addr]int // the number of networks that have each
	unknown   int                // networks whose gateway the engine does not name
	aux       []netip.Addr
	endpoints []holding
	fixed     []holding // of containers that do not run
}

// holding is an address with the owner that the engine names.
type holding struct {
	addr  netip.Addr
	owner owner
}

// attribution holds the pools of the engine's networks by ID.
type attribution map[string]*attributed

// attribute returns the pools of the networks of an IPAM driver. idOf returns the ID
// under which the driver serves a subnet of a network; a network for which it has none
// is left out. The function is pure if idOf is.
func attribute(
	view *witness.EngineView,
	driver string,
	idOf func(*witness.EngineNetwork, witness.EnginePool) (poolID, bool),
) attribution {
	all := attribution{}
	for i := range view.Networks {
		n := &view.Networks[i]
		if n.IPAMDriver != driver {
			continue
		}
		var pools []*attributed
		for _, subnet := range n.Pools {
			id, ok := idOf(n, subnet)
			if !ok {
				continue
			}
			pools = append(pools, all.add(id, subnet))
		}
		for _, e := range n.Endpoints {
			for _, a := range e.Addrs {
				if p := poolWith(pools, a); p != nil {
					p.endpoints = append(p.endpoints, holding{a, owner{mac: e.MAC}})
				}
			}
		}
		for _, c := range view.Containers {
			for _, a := range c.Fixed[n.ID] {
				if p := poolWith(pools, a); p != nil && !c.Running {
					p.fixed = append(p.fixed, holding{a, owner{name: c.Name, fixed: true}})
				}
			}
		}
	}
	return all
}

// add counts one subnet of a network.
func (all attribution) add(id poolID, subnet witness.EnginePool) *attributed {
	key := id.String()
	p := all[key]
	if p == nil {
		p = &attributed{id: id, gateways: map[netip.Addr]int{}}
		all[key] = p
	}
	p.networks++
	if subnet.Gateway.IsValid() {
		p.gateways[subnet.Gateway]++
	} else {
		p.unknown++
	}
	for _, a := range subnet.Aux {
		p.aux = append(p.aux, a)
	}
	return p
}

// uses reports whether a is known as another address than a gateway.
func (x *attributed) uses(a netip.Addr) bool {
	return slices.Contains(x.aux, a) ||
		slices.ContainsFunc(slices.Concat(x.endpoints, x.fixed), func(h holding) bool { return h.addr == a })
}

// poolWith returns the pool of a network that contains a. The address of an endpoint
// may be one of another pool of the group: then the first pool of its family.
func poolWith(pools []*attributed, a netip.Addr) *attributed {
	for _, p := range pools {
		if p.id.prefix.Contains(a) {
			return p
		}
	}
	i := slices.IndexFunc(pools, func(p *attributed) bool {
		return p.id.group != "" && p.id.prefix.Addr().Is4() == a.Is4()
	})
	if i < 0 {
		return nil
	}
	return pools[i]
}

// idOf returns the ID under which the Driver serves a subnet of a network. It is false
// for a network of a swarm, of which this engine shows only its own part. The hint is an
// ID that the engine has named: it says whether a pool was part of the pod block.
func (d *Driver) idOf(swarm bool, hint poolID) func(*witness.EngineNetwork, witness.EnginePool) (poolID, bool) {
	return func(n *witness.EngineNetwork, subnet witness.EnginePool) (poolID, bool) {
		id := poolID{
			space:  d.config.Local.Name,
			prefix: canonical(subnet.Subnet),
			group:  n.IPAMOptions[GroupOption],
		}
		if n.Scope != scopeLocal {
			id.space = d.config.Global.Name
			if swarm {
				return poolID{}, false
			}
		}
		if !id.prefix.IsValid() || id.prefix.Bits() == 0 {
			return poolID{}, false
		}
		if part := subnet.Range; part.IsValid() {
			if part = canonical(part); part != id.prefix && within(part, id.prefix) {
				id.sub = part
			}
		}
		s := d.spaces[id.space]
		switch there := s.pools[id.prefix]; {
		case len(there) > 0:
			id.pods = there[0].id.pods
		case hint.space == id.space && hint.prefix == id.prefix:
			id.pods = hint.pods
		default:
			id.pods = d.podPoolOf(s, id.prefix)
		}
		return id, true
	}
}

// scopeLocal is the scope of networks that only this engine has.
const scopeLocal = "local"

// networksOf returns the number of networks that may have a pool: those with its ID. If
// no pool has the ID of a network, each pool with the network's prefix counts it.
func (all attribution) networksOf(p *pool, pools map[string]*pool) (n int) {
	if x := all[p.key]; x != nil {
		n = x.networks
	}
	for key, x := range all {
		if x.id.prefix == p.id.prefix && pools[key] == nil {
			n += x.networks
		}
	}
	return n
}
