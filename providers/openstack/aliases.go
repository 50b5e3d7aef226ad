// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

var _ nodeipam.Cloud = (*Cloud)(nil)

// scheme begins the provider IDs of OpenStack's nodes: openstack:///UUID or openstack://REGION/UUID.
const scheme = "openstack://"

// ProviderName implements nodeipam.Cloud.
func (c *Cloud) ProviderName() string { return Name }

// Aliases implements nodeipam.Cloud: the allowed address pairs of the machine's first port
// that are prefixes and have the port's MAC address. A pair that contains an address of the
// port only permits the machine to use any address there; it routes nothing.
func (c *Cloud) Aliases(ctx context.Context, m nodeipam.Machine) ([]netip.Prefix, error) {
	p, err := c.portOf(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("aliases of node %q: %w", m.Node, err)
	}
	all, err := aliases(*p)
	if err != nil {
		return nil, fmt.Errorf("aliases of node %q: %w", m.Node, err)
	}
	return all, nil
}

// aliases returns the prefixes that Neutron routes to a port beside its own addresses.
func aliases(p ports.Port) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, a := range p.AllowedAddressPairs {
		prefix, err := pair(a)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", p.ID, err)
		}
		if a.MACAddress != "" && a.MACAddress != p.MACAddress || prefix.IsSingleIP() || covers(prefix, p) {
			continue
		}
		all = append(all, prefix)
	}
	return all, nil
}

// covers reports whether a prefix contains an address of a port.
func covers(prefix netip.Prefix, p ports.Port) bool {
	return slices.ContainsFunc(p.FixedIPs, func(ip ports.IP) bool {
		addr, err := netip.ParseAddr(ip.IPAddress)
		return err == nil && prefix.Contains(addr)
	})
}

// portOf returns the first port of a node's machine.
func (c *Cloud) portOf(ctx context.Context, m nodeipam.Machine) (*ports.Port, error) {
	q := query{networks: c.config.Networks, device: machineID(m.ProviderID)}
	switch {
	case q.device != "":
	case m.ProviderID != "":
		return nil, fmt.Errorf("%w: provider ID %q: want openstack:///UUID", nodeipam.ErrNoMachine, m.ProviderID)
	case c.compute != nil:
		id, err := c.serverNamed(ctx, m.Node)
		if err != nil {
			return nil, err
		}
		q.device = id
	default:
		q.name = m.Node
	}
	all, err := c.list(ctx, q)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p ports.Port) bool { return !isOfMachine(p) || c.owned(p) })
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: none of its ports is known", nodeipam.ErrNoMachine)
	}
	c.byDevice(all)
	if i := slices.IndexFunc(all, func(p ports.Port) bool { return p.DeviceID != all[0].DeviceID }); i >= 0 {
		return nil, fmt.Errorf("%w: ports of machines %q and %q have the node's name: want a provider ID on the node",
			nodeipam.ErrNoMachine, all[0].DeviceID, all[i].DeviceID)
	}
	return &all[0], nil
}

// machineID returns the ID of the machine in a provider ID.
func machineID(providerID string) string {
	rest, is := strings.CutPrefix(providerID, scheme)
	if !is || strings.HasSuffix(rest, "/") || !strings.Contains(rest, "/") {
		return ""
	}
	return path.Base(rest)
}

// serverNamed returns the ID of the only server of Nova with a name.
func (c *Cloud) serverNamed(ctx context.Context, name string) (string, error) {
	opts := servers.ListOpts{Name: "^" + regexp.QuoteMeta(name) + "$"}
	pages, err := servers.ListSimple(c.compute, opts).AllPages(ctx)
	if err != nil {
		return "", fmt.Errorf("list servers named %q: %w", name, failure(err))
	}
	all, err := servers.ExtractServers(pages)
	if err != nil {
		return "", fmt.Errorf("list servers named %q: %w", name, err)
	}
	if len(all) != 1 {
		return "", fmt.Errorf("%w: %d servers are named %q: want one, or a provider ID on the node",
			nodeipam.ErrNoMachine, len(all), name)
	}
	return all[0].ID, nil
}

// AddAlias implements nodeipam.Cloud. Neutron itself permits a pair on any number of ports:
// AddAlias refuses a prefix of which another port has a part, and looks again after the
// write, until a reading shows that write. Two writers that add a prefix to two ports at once
// may both withdraw it; they do not both succeed.
func (c *Cloud) AddAlias(ctx context.Context, m nodeipam.Machine, prefix netip.Prefix) error {
	if err := c.addAlias(ctx, m, prefix.Masked()); err != nil {
		return fmt.Errorf("add alias %s to node %q: %w", prefix, m.Node, err)
	}
	return nil
}

func (c *Cloud) addAlias(ctx context.Context, m nodeipam.Machine, prefix netip.Prefix) error {
	p, err := c.portOf(ctx, m)
	if err != nil {
		return err
	}
	if covers(prefix, *p) {
		return fmt.Errorf("port %s has an address in it: want a prefix outside of the machine's own addresses", p.ID)
	}
	if _, err := c.routedElsewhere(ctx, *p, prefix); err != nil {
		return err
	}
	added := false
	_, after, err := c.change(ctx, p.ID, func(now ports.Port) (*ports.UpdateOpts, error) {
		have, err := aliases(now)
		if err != nil || slices.Contains(have, prefix) {
			return nil, err
		}
		added = true
		all := append(slices.Clone(now.AllowedAddressPairs), ports.AddressPair{IPAddress: prefix.String()})
		return &ports.UpdateOpts{AllowedAddressPairs: &all}, nil
	})
	if err != nil {
		return err
	}
	err = c.verifyAlone(ctx, *after, prefix)
	if !added || !errors.Is(err, nodeipam.ErrRouted) {
		return err
	}
	return errors.Join(err, c.withdraw(ctx, p.ID, prefix))
}

// verifyAlone returns ErrRouted if another port has a part of a prefix that p has. Readings
// may be old: one that does not show p as it is proves nothing, and is repeated.
func (c *Cloud) verifyAlone(ctx context.Context, p ports.Port, prefix netip.Prefix) error {
	for tries := 1; ; tries++ {
		seen, err := c.routedElsewhere(ctx, p, prefix)
		if err != nil {
			return err
		}
		if seen != nil && seen.RevisionNumber >= p.RevisionNumber {
			return nil
		}
		if err := sleep(ctx, c.retry.After(tries)); err != nil {
			return fmt.Errorf("no list of ports shows revision %d of port %s: %w", p.RevisionNumber, p.ID, err)
		}
	}
}

// routedElsewhere returns ErrRouted if another port has a part of a prefix. Otherwise it
// returns p as the reading shows it, nil if it does not.
func (c *Cloud) routedElsewhere(ctx context.Context, p ports.Port, prefix netip.Prefix) (*ports.Port, error) {
	var seen *ports.Port
	networks := c.config.Networks
	if len(networks) == 0 {
		networks = []string{p.NetworkID}
	}
	all, err := c.list(ctx, query{networks: networks})
	if err != nil {
		return nil, err
	}
	for _, other := range all {
		if other.ID == p.ID {
			seen = &other
			continue
		}
		if covers(prefix, other) {
			return nil, fmt.Errorf(
				"%w: port %s of device %q has an address in it",
				nodeipam.ErrRouted,
				other.ID,
				other.DeviceID,
			)
		}
		have, err := pairs(other)
		if err != nil {
			return nil, err
		}
		for _, q := range have {
			if q.Overlaps(prefix) && !covers(q, other) {
				return nil, fmt.Errorf(
					"%w: port %s of device %q has pair %s",
					nodeipam.ErrRouted,
					other.ID,
					other.DeviceID,
					q,
				)
			}
		}
	}
	return seen, nil
}

// withdraw removes an alias that another machine has too, also if the call has ended.
func (c *Cloud) withdraw(ctx context.Context, id string, prefix netip.Prefix) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	_, _, err := c.change(ctx, id, func(now ports.Port) (*ports.UpdateOpts, error) {
		kept := slices.DeleteFunc(slices.Clone(now.AllowedAddressPairs), func(a ports.AddressPair) bool {
			q, err := pair(a)
			return err == nil && q == prefix
		})
		return &ports.UpdateOpts{AllowedAddressPairs: &kept}, nil
	})
	if err != nil {
		return fmt.Errorf("withdraw %s from port %s: %w", prefix, id, err)
	}
	return nil
}
