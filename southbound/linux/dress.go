// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// linkPlan holds the wanted attributes of a link of ours, which is up. The zero value of a field
// wants nothing.
type linkPlan struct {
	alias string
	group uint32
	mtu   uint32
	mac   hardware
	// noFilter is for a link whose packets are looked up in a table of their own. The kernel's
	// check of sources reads the main table, which has no routes to them.
	noFilter bool
	// noLinkLocal is for links that are many. When the kernel sets a link up, it walks through
	// all IPv6 routes, and a link-local address has some.
	noLinkLocal bool
	// noRouters is for links on whose other side nothing is a router of this node.
	noRouters bool
}

// change makes one attribute of a link the wanted one.
type change struct {
	difference string // "": the link works without the change
	flags      uint32
	attributes rtnl.Message
	spec       rtnl.Message // a part of IFLA_AF_SPEC, for a request before the link is up
	write      func() error // a setting that no request can change; may be nil
}

// changes compares a link with its plan. Each condition has its difference and its change.
func (p linkPlan) changes(have hostLink) (all []change) {
	if p.noLinkLocal && have.generate {
		all = append(all, change{
			difference: "gets a link-local address: its addr_gen_mode is not none",
			spec:       rtnl.Message(nil).Nest(unix.AF_INET6, rtnl.Message(nil).U8(inet6Generate, generateNone)),
		})
	}
	if p.noFilter && have.filter != 0 {
		filter := rtnl.Message(nil).U32(inetConfFilter, 0)
		all = append(all, change{
			difference: fmt.Sprintf("checks sources: net.ipv4.conf.%s.rp_filter is not 0", have.name),
			spec:       rtnl.Message(nil).Nest(unix.AF_INET, rtnl.Message(nil).Nest(inetConf, filter)),
		})
	}
	if p.noRouters && have.accepts {
		c := change{write: func() error { return ignoreRouters(have.name) }}
		if have.routers {
			c.difference = fmt.Sprintf("obeys router advertisements: net.ipv6.conf.%s.accept_ra is not 0", have.name)
		}
		all = append(all, c)
	}
	if p.alias != "" && have.alias != p.alias {
		all = append(all, change{
			difference: fmt.Sprintf("has alias %q, not %q", have.alias, p.alias),
			attributes: rtnl.Message(nil).Text(unix.IFLA_IFALIAS, p.alias),
		})
	}
	if p.group != 0 && have.group != p.group {
		all = append(all, change{
			difference: fmt.Sprintf("has group %#x, not %#x", have.group, p.group),
			attributes: rtnl.Message(nil).U32(unix.IFLA_GROUP, p.group),
		})
	}
	if p.mtu != 0 && have.mtu != p.mtu {
		all = append(all, change{
			difference: fmt.Sprintf("has MTU %d, not %d", have.mtu, p.mtu),
			attributes: rtnl.Message(nil).U32(unix.IFLA_MTU, p.mtu),
		})
	}
	if p.mac != (hardware{}) && have.mac != p.mac {
		all = append(all, change{
			difference: fmt.Sprintf("has MAC address %s, not %s", have.mac, p.mac),
			attributes: rtnl.Message(nil).Attr(unix.IFLA_ADDRESS, p.mac[:]),
		})
	}
	if !have.up {
		all = append(all, change{difference: "is down", flags: unix.IFF_UP})
	}
	return all
}

// differences returns an error that names each difference, nil if there is none. where says whose
// link it is.
func (p linkPlan) differences(have hostLink, where string) error {
	var errs []error
	for _, c := range p.changes(have) {
		if c.difference != "" {
			errs = append(errs, fmt.Errorf("link %s %s %s", have.name, where, c.difference))
		}
	}
	return errors.Join(errs...)
}

// requests returns the requests that end the differences, none if there is none. writeSettings
// comes before them.
func (p linkPlan) requests(have hostLink) (all []*rtnl.Request) {
	var sum change
	for _, c := range p.changes(have) {
		sum.flags |= c.flags
		sum.attributes, sum.spec = append(sum.attributes, c.attributes...), append(sum.spec, c.spec...)
	}
	if len(sum.spec) > 0 {
		spec := rtnl.Message(nil).Nest(unix.IFLA_AF_SPEC, sum.spec)
		all = append(all, changeLink("prepare "+have.name, have.index, 0, 0, spec))
	}
	if sum.flags != 0 || len(sum.attributes) > 0 {
		all = append(all, changeLink("set up "+have.name, have.index, sum.flags, sum.flags, sum.attributes))
	}
	return all
}

// writeSettings changes what no request can. within calls a function in the network namespace of
// the link.
func (p linkPlan) writeSettings(have hostLink, within func(func() error) error) error {
	for _, c := range p.changes(have) {
		if c.write == nil {
			continue
		}
		if err := within(c.write); err != nil {
			return err
		}
	}
	return nil
}

// birth returns the attributes of a request that makes the link.
func (p linkPlan) birth(name string) rtnl.Message {
	m := ifinfo(0, 0, 0).Text(unix.IFLA_IFNAME, name)
	if p.group != 0 {
		m = m.U32(unix.IFLA_GROUP, p.group)
	}
	if p.mac != (hardware{}) {
		m = m.Attr(unix.IFLA_ADDRESS, p.mac[:])
	}
	if p.mtu != 0 {
		m = m.U32(unix.IFLA_MTU, p.mtu)
	}
	return m
}

// checkFilter returns an error if the kernel checks the sources of packets from all links strictly,
// whatever a link says. The check reads the main table alone. loss says what it would drop.
func checkFilter(loss string) error {
	have, err := readSetting(allFilter)
	if err != nil || have != strictFilter {
		return err
	}
	return fmt.Errorf("%s is %s: %s: run `sysctl -w %s=0`", allFilter, have, loss, allFilter)
}
