// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
)

const (
	forwarding4 = "net.ipv4.ip_forward"
	forwarding6 = "net.ipv6.conf.all.forwarding"
)

// forwarding turns forwarding on for the families of the node's pods. It stays on: other
// programs of the node may need it too.
type forwarding struct {
	namespace string
	log       *slog.Logger
}

// podFamilies returns the families of a node's pods.
func podFamilies(value *kv.NodeNetwork) (families []byte) {
	for _, text := range value.GetPodSubnets() {
		subnet, err := netip.ParsePrefix(text)
		if err == nil && !slices.Contains(families, familyOf(subnet.Addr())) {
			families = append(families, familyOf(subnet.Addr()))
		}
	}
	return families
}

// setting returns the setting that must be 1 for a family.
func (f *forwarding) setting(family byte) string {
	if family == unix.AF_INET6 {
		return forwarding6
	}
	return forwarding4
}

var _ nodePart = (*forwarding)(nil)

func (f *forwarding) read(value *kv.NodeNetwork, plan *nodePlan) error {
	plan.families = podFamilies(value)
	return nil
}

func (f *forwarding) wanted(plan nodePlan) bool { return len(plan.families) > 0 }

func (f *forwarding) replaces(nodePlan) bool { return false }

// remove does nothing: other programs of the node may need forwarding.
func (f *forwarding) remove() error { return nil }

// retrieve reports forwarding that is off as absent, which a node without pods has too.
func (f *forwarding) retrieve(_ *kv.NodeNetwork, plan nodePlan) (partState, error) {
	if !f.wanted(plan) {
		return partAbsent, nil
	}
	on, err := f.on(plan.families)
	if err != nil || !on {
		return partAbsent, err
	}
	return partComplete, nil
}

// on reports whether forwarding is on for families.
func (f *forwarding) on(families []byte) (on bool, err error) {
	on = true
	err = rtnl.Within(f.namespace, func() error {
		for _, family := range families {
			have, err := readSetting(f.setting(family))
			if err != nil {
				return err
			}
			on = on && have == "1"
		}
		return nil
	})
	return on, err
}

func (f *forwarding) create(plan nodePlan) error { return f.turnOn(plan.families) }

// turnOn turns forwarding on for families. A setting that is on is not written, so /proc/sys
// may be read-only then.
func (f *forwarding) turnOn(families []byte) error {
	return rtnl.Within(f.namespace, func() error {
		for _, family := range families {
			name := f.setting(family)
			if have, err := readSetting(name); err == nil && have != "1" && name == forwarding6 {
				f.warnAdvertised()
			}
			if err := writeSetting(name, "1"); err != nil {
				return err
			}
		}
		return nil
	})
}

// warnAdvertised names the links with a default route that a router has advertised: with
// forwarding on, the kernel lets it expire unless accept_ra is 2.
func (f *forwarding) warnAdvertised() {
	s, err := rtnl.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	body := make(rtnl.Message, unix.SizeofRtMsg)
	body[0], body[5] = unix.AF_INET6, unix.RTPROT_RA
	indexes := map[uint32]bool{}
	err = s.Dump("routes", unix.RTM_GETROUTE, body, func() {}, func(b []byte) {
		if p, ok := parseRoute(b); ok && p.prefix.Bits() == 0 && p.protocol == unix.RTPROT_RA {
			indexes[p.index] = true
		}
	})
	if err != nil {
		return
	}
	_ = s.Dump("links", unix.RTM_GETLINK, ifinfo(0, 0, 0), func() {}, func(b []byte) {
		l, ok := parseLink(b)
		if !ok || !indexes[binary.NativeEndian.Uint32(b[4:])] {
			return
		}
		setting := "net.ipv6.conf." + l.name + ".accept_ra"
		if have, err := readSetting(setting); err == nil && have != "2" {
			f.log.Warn("the default route of IPv6 will expire, because forwarding is turned on",
				"link", l.name, "fix", fmt.Sprintf("sysctl -w %s=2", setting))
		}
	})
}
