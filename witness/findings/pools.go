// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// poolRange is one range of a pool.
type poolRange struct {
	what   string // such as `pool "blue"`
	prefix netip.Prefix
	pods   bool
}

// ranges returns the ranges of all pools of this node. A pool of Docker that takes its
// addresses from the pod network is a part of that.
func (c *comparison) ranges() (all []poolRange) {
	for _, p := range c.book.Pools {
		for _, r := range p.Ranges {
			all = append(all, poolRange{fmt.Sprintf("pool %q", p.Name), r, true})
		}
	}
	for _, d := range c.book.Docker {
		if !d.FromPods {
			all = append(all, poolRange{"Docker's pool " + d.ID, d.Prefix, false})
		}
	}
	return all
}

// pools compares the pools with each other and with the engine's networks.
func (c *comparison) pools() {
	all := c.ranges()
	for i, x := range all {
		for _, y := range all[i+1:] {
			// Docker's pools of different groups and address spaces may overlap.
			if x.what == y.what || !x.prefix.Overlaps(y.prefix) || !x.pods && !y.pods {
				continue
			}
			if y.what+y.prefix.String() < x.what+x.prefix.String() {
				c.overlap(y, x)
			} else {
				c.overlap(x, y)
			}
		}
	}
	c.dockerNetworks(all)
}

func (c *comparison) overlap(x, y poolRange) {
	text := fmt.Sprintf("%s (%s) overlaps %s (%s)", x.what, x.prefix, y.what, y.prefix)
	c.add(numOverlap, Subject{Prefix: x.prefix, Object: x.what + " and " + y.what}, text,
		said(Configuration, text), y.prefix.String())
}

// dockerNetworks compares the engine's networks with the pools.
func (c *comparison) dockerNetworks(ranges []poolRange) {
	if c.world.Engine == nil {
		return
	}
	for i := range c.world.Engine.Networks {
		n := &c.world.Engine.Networks[i]
		for _, p := range n.Pools {
			if !p.Subnet.IsValid() || p.Subnet.Bits() == 0 {
				continue
			}
			if n.IPAMDriver == c.world.Driver {
				c.dockerKnown(n, p.Subnet.Masked())
				continue
			}
			for _, r := range ranges {
				if p.Subnet.Overlaps(r.prefix) {
					c.add(numDockerOverlap, Subject{Prefix: p.Subnet.Masked(), Object: n.Name},
						fmt.Sprintf("Docker network %s (%s, IPAM driver %s) overlaps %s (%s)",
							n.Name, p.Subnet, n.IPAMDriver, r.what, r.prefix),
						said(witness.Engine, fmt.Sprintf("network %s has subnet %s", n.Name, p.Subnet)),
						r.what, r.prefix.String())
				}
			}
		}
	}
	c.dockerUsed()
}

// dockerKnown reports a subnet of our driver that the driver has no pool of.
func (c *comparison) dockerKnown(n *witness.EngineNetwork, subnet netip.Prefix) {
	if !c.book.DockerOn || slices.ContainsFunc(c.book.Docker, func(d DockerPool) bool { return d.Prefix == subnet }) {
		return
	}
	c.add(numDockerUnknown, Subject{Prefix: subnet, Object: n.Name},
		fmt.Sprintf("Docker network %s has subnet %s, and the driver has no pool of it", n.Name, subnet),
		said(witness.Engine, fmt.Sprintf("network %s has subnet %s", n.Name, subnet)))
}

// dockerUsed reports pools of the driver without a network. Other nodes may use a pool of
// the global address space.
func (c *comparison) dockerUsed() {
	for _, d := range c.book.Docker {
		used := slices.ContainsFunc(c.engineNetworks(), func(n *witness.EngineNetwork) bool {
			has := func(p witness.EnginePool) bool { return p.Subnet.Masked() == d.Prefix }
			return slices.ContainsFunc(n.Pools, has)
		})
		if used || d.Global {
			continue
		}
		c.add(numDockerUnused, Subject{Prefix: d.Prefix, Object: d.ID},
			fmt.Sprintf("no network of Docker uses pool %s", d.ID),
			said(witness.Engine, "no network of the driver has subnet "+d.Prefix.String()))
	}
}

// subnets compares the blocks of the ledger with the subnets that this node should have,
// and the prefixes of gateways on the host with their blocks.
func (c *comparison) subnets() {
	if c.book.Differs != "" {
		c.add(numConfiguration, Subject{Object: "contiv.conf"}, c.book.Differs,
			said(Configuration, c.book.Differs), c.book.Differs)
	}
	c.blocks()
	if c.host == nil {
		return
	}
	for i := range c.host.Links {
		l := &c.host.Links[i]
		if l.Kind != "bridge" {
			continue
		}
		for _, p := range l.Addrs {
			b := c.blockOf(p.Addr())
			infra := func(x *ledger.Lease) bool { return x.Purpose == ledger.ForInfra }
			gateway := slices.ContainsFunc(c.leased[p.Addr()], infra)
			if b == nil || !gateway || p.Bits() == b.Block.Bits() || !c.forPods(b.Pool) {
				continue
			}
			shown := fmt.Sprintf("link %s of the host has %s", l.Name, p)
			c.add(numSubnet, Subject{Pool: b.Pool, Addr: p.Addr(), Prefix: b.Block, Object: l.Name},
				fmt.Sprintf("%s, and the block of the pods is %s", shown, b.Block),
				said(witness.Kernel, shown), p.String())
		}
	}
}

// blocks compares the active blocks with the subnets that this node should have.
func (c *comparison) blocks() {
	if c.book.Subnets == nil {
		return
	}
	for _, s := range c.book.Subnets {
		if !slices.ContainsFunc(c.book.Blocks, func(b ledger.BlockStat) bool {
			return b.Pool == s.Pool && b.Block == s.Prefix && b.State == ledger.Active
		}) {
			c.differs(s.Pool, s.Prefix, "this node should have %s of pool %q, and the ledger has no active block of it")
		}
	}
	for _, b := range c.book.Blocks {
		if b.State != ledger.Active || !c.forPods(b.Pool) {
			continue
		}
		if !slices.Contains(c.book.Subnets, Subnet{b.Pool, b.Block}) {
			c.differs(b.Pool, b.Block, "the ledger has active block %s of pool %q, which this node should not have")
		}
	}
}

func (c *comparison) differs(pool string, p netip.Prefix, format string) {
	text := fmt.Sprintf(format, p, pool)
	c.add(numSubnet, Subject{Pool: pool, Prefix: p}, text, said(Configuration, text))
}
