// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/attachinterfaces"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/attributestags"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/cloud"
)

var _ cloud.Cloud = (*Cloud)(nil)

// cleanup bounds the time to delete what a failed call has created.
const cleanup = 10 * time.Second

// CreateInterface implements cloud.Cloud. It creates a port that no machine has, tags it,
// and attaches it. Tags and security groups are those of the machine's first port.
func (c *Cloud) CreateInterface(
	ctx context.Context,
	instance string,
	want cloud.NewInterface,
) (*cloud.Interface, error) {
	made, err := c.createInterface(ctx, instance, want)
	if err != nil {
		return nil, fmt.Errorf("create an interface of machine %q: %w", instance, err)
	}
	return made, nil
}

func (c *Cloud) createInterface(
	ctx context.Context,
	instance string,
	want cloud.NewInterface,
) (*cloud.Interface, error) {
	first, n, home, err := c.prepare(ctx, instance, want)
	if err != nil {
		return nil, err
	}
	port, err := c.createPort(ctx, instance, *first, n, home, want.Want)
	if err != nil {
		return nil, err
	}
	attached, err := c.attach(ctx, instance, *first, *port, home, want.Device)
	if err != nil {
		return nil, errors.Join(err, c.discard(ctx, port.ID))
	}
	// What the writes have answered is returned: a reading may be older.
	made, err := c.iface(*attached, want.Device, n, nil)
	if err != nil {
		return nil, err
	}
	if want.Prefixes && want.Count > 0 {
		blocks, err := c.assignBlocks(ctx, instance, port.ID, want.Want)
		if err != nil {
			c.config.Log.Warn("a new interface has no prefixes yet", "port", port.ID, "machine", instance, "error", err)
		}
		made.Blocks = append(made.Blocks, blocks...)
	}
	return made, nil
}

// prepare reads what a new interface needs: the machine's first port, and the subnet of the
// interface's own address with its network.
func (c *Cloud) prepare(
	ctx context.Context,
	instance string,
	want cloud.NewInterface,
) (*ports.Port, *networkState, *subnet, error) {
	all, err := c.list(ctx, query{device: instance})
	if err != nil {
		return nil, nil, nil, err
	}
	all = slices.DeleteFunc(all, func(p ports.Port) bool { return !isOfMachine(p) })
	if len(all) == 0 {
		return nil, nil, nil, cloud.ErrNoInstance
	}
	if len(all) >= c.config.MaxInterfaces {
		return nil, nil, nil, fmt.Errorf(
			"%w: it has %d of %d interfaces",
			cloud.ErrFull,
			len(all),
			c.config.MaxInterfaces,
		)
	}
	c.byDevice(all)
	first := all[0]
	network, err := c.networkWith(ctx, first.NetworkID, want.Subnet)
	if err != nil {
		return nil, nil, nil, err
	}
	home := network.home(first)
	if want.Subnet != "" {
		home = network.find(want.Subnet)
	}
	if home == nil || home.auto {
		return nil, nil, nil, fmt.Errorf("subnet %q: want one whose addresses can be asked for", want.Subnet)
	}
	return &first, network, home, nil
}

// networkWith returns the network that has a subnet, or the usual one if no subnet is wanted.
func (c *Cloud) networkWith(ctx context.Context, usual, subnet string) (*networkState, error) {
	n, err := c.networkOf(ctx, usual)
	if err != nil || subnet == "" || n.find(subnet) != nil {
		return n, err
	}
	all, err := c.readNetworks(ctx, c.config.Networks)
	if err != nil {
		return nil, err
	}
	for _, n := range all {
		if n.find(subnet) != nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("the cloud has no subnet %q", subnet)
}

// createPort creates a port of no machine with its own address and the wanted ones, or as
// many of them as the subnet has.
func (c *Cloud) createPort(
	ctx context.Context,
	instance string,
	first ports.Port,
	n *networkState,
	home *subnet,
	want cloud.Want,
) (*ports.Port, error) {
	groups := c.config.SecurityGroups
	if len(groups) == 0 {
		groups = first.SecurityGroups
	}
	count := min(want.Count, c.config.MaxAddresses)
	from := n.companion(home, want.IPv6)
	if want.Prefixes || from == nil || from.auto {
		count = 0
	}
	for ; ; count /= 2 {
		ips := []ports.IP{{SubnetID: home.id}}
		for range count {
			ips = append(ips, ports.IP{SubnetID: from.id})
		}
		port, err := ports.Create(ctx, c.network, ports.CreateOpts{
			NetworkID:      home.network,
			Name:           c.name(instance),
			Description:    "addresses of pods",
			DeviceOwner:    ownerOfNew,
			SecurityGroups: &groups,
			FixedIPs:       ips,
		}).Extract()
		if err == nil {
			return port, nil
		}
		if !isKind(err, exhausted) || count == 0 {
			return nil, fmt.Errorf("create a port: %w", failure(err))
		}
	}
}

// attach tags a new port and makes it an interface of the machine. It returns the port as it
// is then.
func (c *Cloud) attach(
	ctx context.Context,
	instance string,
	first ports.Port,
	port ports.Port,
	home *subnet,
	device int,
) (*ports.Port, error) {
	tags := slices.DeleteFunc(slices.Clone(first.Tags), func(tag string) bool {
		return strings.HasPrefix(tag, prefixOfTags)
	})
	tags = append(tags, tagOfDevice+strconv.Itoa(device))
	opts := ports.UpdateOpts{}
	for _, ip := range port.FixedIPs { // the list has an order, so this is the lowest as a text
		if ip.SubnetID == home.id {
			tags = append(tags, tagOfOwn+ip.IPAddress)
			description := ended(port.Description, "", []string{ip.IPAddress})
			opts.Description = &description
			break
		}
	}
	set := attributestags.ReplaceAll(ctx, c.network, "ports", port.ID, attributestags.ReplaceAllOpts{Tags: tags})
	if set.Err != nil {
		return nil, fmt.Errorf("tag port %s: %w", port.ID, failure(set.Err))
	}
	if c.compute == nil {
		opts.DeviceID, opts.DeviceOwner = &instance, &first.DeviceOwner
	}
	after, err := ports.Update(ctx, c.network, port.ID, opts).Extract()
	if err != nil {
		return nil, fmt.Errorf("attach port %s: %w", port.ID, failure(err))
	}
	if c.compute != nil {
		opts := attachinterfaces.CreateOpts{PortID: port.ID}
		if err := attachinterfaces.Create(ctx, c.compute, instance, opts).Err; err != nil {
			return nil, fmt.Errorf("attach port %s: %w", port.ID, failure(err))
		}
	}
	after.Tags, after.DeviceID, after.DeviceOwner = tags, instance, first.DeviceOwner
	return after, nil
}

// discard deletes a port that is of no use, also if the call has ended.
func (c *Cloud) discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	return c.remove(ctx, id)
}

// DeleteInterface implements cloud.Cloud. The reservations of its prefixes are deleted
// after it.
func (c *Cloud) DeleteInterface(ctx context.Context, instance, iface string) error {
	if err := c.deleteInterface(ctx, instance, iface); err != nil {
		return fmt.Errorf("delete port %s of machine %q: %w", iface, instance, err)
	}
	return nil
}

func (c *Cloud) deleteInterface(ctx context.Context, instance, iface string) error {
	p, err := ports.Get(ctx, c.network, iface).Extract()
	if has(err, http.StatusNotFound) {
		return nil
	}
	if err != nil {
		return failure(err)
	}
	if !c.owned(*p) || isBlock(*p) || p.DeviceID != "" && p.DeviceID != instance {
		return fmt.Errorf(
			"it is named %q and its device is %q: want a port that CreateInterface has created for the machine",
			p.Name,
			p.DeviceID,
		)
	}
	all, err := c.list(ctx, query{networks: []string{p.NetworkID}, name: p.Name})
	if err != nil {
		return err
	}
	reserved, err := c.reservations(all)
	if err != nil {
		return err
	}
	have, err := pairs(*p)
	if err != nil {
		return err
	}
	if c.compute != nil && p.DeviceID != "" {
		err := attachinterfaces.Delete(ctx, c.compute, instance, iface).ExtractErr()
		if err != nil && !has(err, http.StatusNotFound) {
			return fmt.Errorf("detach: %w", failure(err))
		}
	}
	if err := c.remove(ctx, iface); err != nil {
		return err
	}
	for _, prefix := range have {
		if r := reservationOf(reserved, p.NetworkID, prefix); r != nil {
			if err := c.remove(ctx, r.port.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// DeleteOrphans implements cloud.Cloud. A port that has changed since it was read stays.
func (c *Cloud) DeleteOrphans(ctx context.Context, instance string, age time.Duration) ([]string, error) {
	deleted, err := c.deleteOrphans(ctx, instance, age)
	if err != nil {
		return deleted, fmt.Errorf("delete orphaned ports: %w", err)
	}
	return deleted, nil
}

func (c *Cloud) deleteOrphans(ctx context.Context, instance string, age time.Duration) (gone []string, err error) {
	var all []ports.Port
	if instance == "" {
		all, err = c.list(ctx, query{networks: c.config.Networks})
	} else {
		all, err = c.portsOf(ctx, instance)
	}
	if err != nil {
		return nil, err
	}
	reserved, err := c.reservations(all)
	if err != nil {
		return nil, err
	}
	var failed error
	for _, p := range all {
		old := c.config.Now().Sub(p.CreatedAt) >= age
		if !c.owned(p) || p.DeviceID != "" || !old || instance != "" && p.Name != c.name(instance) {
			continue
		}
		if isBlock(p) && routed(p, reserved, all) {
			continue
		}
		done, err := c.removeUnchanged(ctx, p)
		failed = errors.Join(failed, err)
		if done {
			gone = append(gone, p.ID)
		}
	}
	return gone, failed
}

// routed reports whether a port has the block of a reservation among its pairs.
func routed(p ports.Port, reserved []reservation, all []ports.Port) bool {
	at := slices.IndexFunc(reserved, func(r reservation) bool { return r.port.ID == p.ID })
	for _, q := range all {
		have, err := pairs(q)
		if err != nil || q.NetworkID == p.NetworkID && slices.Contains(have, reserved[at].block) {
			return true // a pair that cannot be read may be this one
		}
	}
	return false
}
