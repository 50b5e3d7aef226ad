// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Config configures a Driver. The zero value selects Docker's own names, lists and
// order.
type Config struct {
	Local    Space         // for networks of this host
	Global   Space         // for networks of a swarm
	HostID   string        // unique name of the host, from which its local IPv6 pools follow
	Serial   bool          // allocate the address after the last one instead of the lowest one
	CoolDown time.Duration // from an address's release to its reuse
	FromPods FromPods      // pools that are parts of the pod block of the node

	GiveUpAfter time.Duration // the least time between two observations that agree (Observe); 0: 1 min
	Undo        time.Duration // time in which requests that are given up can be kept; 0: 1 h
}

// Space configures an address space: pools of one space do not overlap.
type Space struct {
	Name  string       // "": LocalDefault or GlobalDefault
	Pools []Predefined // prefixes from which the Driver chooses pools; nil: Docker's own list
}

// Predefined is a prefix from which the Driver chooses pools of the length Size.
type Predefined struct {
	Base netip.Prefix
	Size int
}

// FromPods makes pools of the local space parts of the node's own pod block.
type FromPods struct {
	Pool  string // the ledger's pool of the pod network; "": pools have prefixes of their own
	Size4 int    // length of an IPv4 pool that is requested without a length; 0: 28
	Size6 int    // the same of an IPv6 pool; 0: 112
}

// defaults returns the configuration with defaults for empty fields, and checks it.
func (c Config) defaults() (Config, error) {
	local, global := defaultPools()
	for _, x := range []struct {
		field string
		space *Space
		name  string
		pools []Predefined
	}{{"Local", &c.Local, "LocalDefault", local}, {"Global", &c.Global, "GlobalDefault", global}} {
		if x.space.Name == "" {
			x.space.Name = x.name
		}
		if strings.ContainsAny(x.space.Name, "/?") {
			return c, fmt.Errorf("%s.Name: %q contains / or ?, which separate the names in pool IDs",
				x.field, x.space.Name)
		}
		if x.space.Pools == nil {
			x.space.Pools = x.pools
		}
	}
	if c.Local.Name == c.Global.Name {
		return c, fmt.Errorf("Global.Name: %q is also the name of the local space", c.Global.Name)
	}
	if !slices.ContainsFunc(c.Local.Pools, func(p Predefined) bool { return p.Base.Addr().Is6() }) {
		c.Local.Pools = append(slices.Clone(c.Local.Pools), Predefined{hostPrefix(c.HostID), 64})
	}
	if c.CoolDown < 0 {
		return c, fmt.Errorf("CoolDown: %s is negative", c.CoolDown)
	}
	if c.GiveUpAfter == 0 {
		c.GiveUpAfter = time.Minute
	}
	if c.Undo == 0 {
		c.Undo = time.Hour
	}
	if c.FromPods.Size4 == 0 {
		c.FromPods.Size4 = 28
	}
	if c.FromPods.Size6 == 0 {
		c.FromPods.Size6 = 112
	}
	if strings.Contains(c.FromPods.Pool, "/") {
		return c, fmt.Errorf("FromPods.Pool: %q contains /, want the name of a pod network's pool", c.FromPods.Pool)
	}
	return c, nil
}

func (c Config) order() ledger.Order {
	if c.Serial {
		return ledger.Serial
	}
	return ledger.Lowest
}

// defaultPools returns Docker's default lists.
func defaultPools() (local, global []Predefined) {
	for _, s := range []string{
		"172.17.0.0/16",
		"172.18.0.0/16",
		"172.19.0.0/16",
		"172.20.0.0/14",
		"172.24.0.0/14",
		"172.28.0.0/14",
	} {
		local = append(local, Predefined{netip.MustParsePrefix(s), 16})
	}
	local = append(local, Predefined{netip.MustParsePrefix("192.168.0.0/16"), 20})
	return local, []Predefined{{netip.MustParsePrefix("10.0.0.0/8"), 24}}
}

// hostPrefix returns the unique local IPv6 prefix of a host, the same as Docker's
// own for the same ID: fd, and 40 bits of a hash.
func hostPrefix(hostID string) netip.Prefix {
	sum := sha256.Sum256([]byte(hostID))
	a := [16]byte{0: 0xfd}
	copy(a[1:6], sum[3:8])
	return netip.PrefixFrom(netip.AddrFrom16(a), 48)
}

// predefined returns a list by family, ordered, without the prefixes that another
// one contains.
func predefined(field string, list []Predefined) (byFamily [2][]Predefined, err error) {
	list = slices.Clone(list)
	for i := range list {
		p := &list[i]
		if p.Base = canonical(p.Base); !p.Base.IsValid() {
			return byFamily, fmt.Errorf("%s[%d]: the base is not a prefix", field, i)
		}
		if p.Size < p.Base.Bits() || p.Size > p.Base.Addr().BitLen() {
			return byFamily, fmt.Errorf("%s[%d]: size %d of base %s: want %d to %d",
				field, i, p.Size, p.Base, p.Base.Bits(), p.Base.Addr().BitLen())
		}
	}
	slices.SortStableFunc(list, func(p, q Predefined) int { return p.Base.Compare(q.Base) })
	for _, p := range list {
		f := &byFamily[ledger.FamilyOf(p.Base.Addr())]
		if n := len(*f); n == 0 || !within(p.Base, (*f)[n-1].Base) {
			*f = append(*f, p)
		}
	}
	return byFamily, nil
}
