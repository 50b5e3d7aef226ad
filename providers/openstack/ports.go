// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/attributestags"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/cloud"
)

// Names and tags of the ports that this package creates or marks.
const (
	prefixOfNames    = "cadastre/"
	ownerOfBlocks    = "cadastre:block"
	ownerOfNew       = "cadastre:interface"
	ownerOfMachines  = "compute:"
	tagOfOwn         = "cadastre-own-"
	tagOfDevice      = "cadastre-device-"
	prefixOfTags     = "cadastre-"
	triesOfOneChange = 8

	// revisionsOfOneChange is the most by which Neutron raises the revision for one update: one
	// for the description, one for addresses or pairs.
	revisionsOfOneChange = 2
)

// msgOverlapped is logged if Neutron has accepted an update of a port that had changed.
const msgOverlapped = "another writer changed the port at the same moment, and Neutron may have taken back its addresses: " +
	"the port is read again"

// errLostRaces is the error of a change that other writers have overtaken too often.
var errLostRaces = errors.New("other writers have changed the port in the meantime")

// query selects ports. An empty Device selects those of all devices.
type query struct {
	networks []string
	device   string
	name     string
}

// list is a query in the form of gophercloud.
type list url.Values

// ToPortListQuery implements ports.ListOptsBuilder.
func (l list) ToPortListQuery() (string, error) { return "?" + url.Values(l).Encode(), nil }

// list returns the ports of a query.
func (c *Cloud) list(ctx context.Context, q query) ([]ports.Port, error) {
	values := url.Values{"limit": {strconv.Itoa(c.config.PageSize)}}
	if len(q.networks) > 0 {
		values["network_id"] = q.networks
	}
	if q.device != "" {
		values.Set("device_id", q.device)
	}
	if q.name != "" {
		values.Set("name", q.name)
	}
	pages, err := ports.List(c.network, list(values)).AllPages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", failure(err))
	}
	all, err := ports.ExtractPorts(pages)
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	return all, nil
}

// change updates a port on the condition that it has not changed since it was read. edit
// returns what to write, nil if nothing. The port is read again if the race is lost.
//
// Neutron compares the revision with a value that it has read before it locks the port,
// unless an attribute of the port itself changes: fixed IPs and pairs are not such. The
// description is, so a new one makes the comparison atomic (stamped).
//
// If two updates of a port overlap in Neutron's database, Neutron repeats one of them within
// the request, without the condition: it may take back what the other one
// has written. The revisions tell. Then the port is read again, so that the caller sees what
// is there, and the log says so. The other writer learns it with its next reading.
func (c *Cloud) change(
	ctx context.Context,
	id string,
	edit func(ports.Port) (*ports.UpdateOpts, error),
) (before, after *ports.Port, err error) {
	for failures := 1; ; failures++ {
		before, err = ports.Get(ctx, c.network, id).Extract()
		if err != nil {
			return nil, nil, fmt.Errorf("read port %s: %w", id, failure(err))
		}
		opts, err := edit(*before)
		if err != nil || opts == nil {
			return before, before, err
		}
		description := stamped(*before, c.config.Random(math.MaxUint32))
		opts.RevisionNumber, opts.Description = &before.RevisionNumber, &description
		after, err = ports.Update(ctx, c.network, id, opts).Extract()
		if err == nil && after.RevisionNumber-before.RevisionNumber > revisionsOfOneChange {
			return c.overlapped(ctx, before, after)
		}
		if err == nil {
			return before, after, nil
		}
		if !has(err, http.StatusPreconditionFailed) {
			return before, nil, fmt.Errorf("update port %s: %w", id, failure(err))
		}
		if failures == triesOfOneChange {
			return before, nil, fmt.Errorf("update port %s: %w, %d times: %w", id, errLostRaces, failures, err)
		}
		if err := sleep(ctx, c.retry.After(failures)); err != nil {
			return before, nil, fmt.Errorf("update port %s: %w", id, err)
		}
	}
}

// overlapped returns the port as it is now, after another change between the reading and the
// update of it.
func (c *Cloud) overlapped(ctx context.Context, before, after *ports.Port) (*ports.Port, *ports.Port, error) {
	c.config.Log.Warn(msgOverlapped, "port", before.ID, "read", before.RevisionNumber, "written", after.RevisionNumber)
	now, err := ports.Get(ctx, c.network, before.ID).Extract()
	if err != nil {
		return before, nil, fmt.Errorf("read port %s after the update: %w", before.ID, failure(err))
	}
	return before, now, nil
}

// mostDescribed is the number of characters that a description can have.
const mostDescribed = 255

// stamp ends the description of a port that this package has changed. It repeats the
// machine's own addresses, so that a port whose tags another client removes keeps them.
var stamp = regexp.MustCompile(
	` ?\((?:changed by cadastre at revision \d+(?:\.[0-9a-f]+)?)?(?:, )?(?:own ([0-9a-fA-F:., ]+))?\)$`,
)

// stamped returns a description that no earlier revision of the port has had, and that no
// other writer of this one writes: of two that write the same, Neutron accepts both, and the
// later one's addresses replace the other's.
func stamped(p ports.Port, writer uint64) string {
	end := fmt.Sprintf("changed by cadastre at revision %d.%x", p.RevisionNumber, writer)
	var addresses []string
	if marked(p) {
		for _, ip := range p.FixedIPs {
			if own(p, ip) {
				addresses = append(addresses, ip.IPAddress)
			}
		}
	}
	return ended(p.Description, end, addresses)
}

// ended returns a description with a stamp. Own addresses that it has no room for are left
// out: the tags have them.
func ended(description, what string, addresses []string) string {
	end := " (" + what + ")"
	if len(addresses) > 0 {
		longer := " (" + strings.TrimPrefix(what+", own ", ", ") + strings.Join(addresses, " ") + ")"
		if len(longer) <= mostDescribed {
			end = longer
		}
	}
	text := []rune(stamp.ReplaceAllString(description, ""))
	text = text[:min(len(text), mostDescribed-len(end))]
	return strings.TrimPrefix(string(text)+end, " ")
}

// described returns the machine's own addresses that the description of a port has.
func described(p ports.Port) []string {
	found := stamp.FindStringSubmatch(p.Description)
	if found == nil {
		return nil
	}
	return strings.Fields(found[1])
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// remove deletes a port. One that is not there is no error.
func (c *Cloud) remove(ctx context.Context, id string) error {
	err := ports.Delete(ctx, c.network, id).ExtractErr()
	if err != nil && !has(err, http.StatusNotFound) {
		return fmt.Errorf("delete port %s: %w", id, failure(err))
	}
	return nil
}

// removeUnchanged deletes a port if it has the revision that was read, and reports whether.
func (c *Cloud) removeUnchanged(ctx context.Context, p ports.Port) (bool, error) {
	resp, err := c.network.Delete(ctx, c.network.ServiceURL("ports", p.ID), &gophercloud.RequestOpts{
		MoreHeaders: map[string]string{"If-Match": fmt.Sprintf("revision_number=%d", p.RevisionNumber)},
	})
	_, _, err = gophercloud.ParseResponse(resp, err)
	switch {
	case err == nil:
		return true, nil
	case has(err, http.StatusNotFound), has(err, http.StatusPreconditionFailed):
		return false, nil
	}
	return false, fmt.Errorf("delete port %s: %w", p.ID, failure(err))
}

// name returns the name of the ports that the cluster owns for a machine.
func (c *Cloud) name(instance string) string {
	return prefixOfNames + c.config.Cluster + "/" + instance
}

// owned reports whether CreateInterface has created the port, or Assign the reservation.
func (c *Cloud) owned(p ports.Port) bool { return strings.HasPrefix(p.Name, c.name("")) }

func isBlock(p ports.Port) bool { return p.DeviceOwner == ownerOfBlocks }

// isOfMachine reports whether a machine has the port as an interface.
func isOfMachine(p ports.Port) bool {
	return p.DeviceID != "" && strings.HasPrefix(p.DeviceOwner, ownerOfMachines)
}

// mark tags the addresses of a port that are the machine's own.
func (c *Cloud) mark(ctx context.Context, p ports.Port) error {
	for _, ip := range p.FixedIPs {
		if err := attributestags.Add(ctx, c.network, "ports", p.ID, tagOfOwn+ip.IPAddress).ExtractErr(); err != nil {
			return fmt.Errorf("tag port %s with the machine's own address %s: %w", p.ID, ip.IPAddress, failure(err))
		}
	}
	return nil
}

// marked reports whether tags, or the description, tell the machine's own addresses. Another
// client may have removed either.
func marked(p ports.Port) bool {
	return len(described(p)) > 0 ||
		slices.ContainsFunc(p.Tags, func(tag string) bool { return strings.HasPrefix(tag, tagOfOwn) })
}

// own reports whether an address of a port is the machine's own.
func own(p ports.Port, ip ports.IP) bool {
	return !marked(p) || slices.Contains(p.Tags, tagOfOwn+ip.IPAddress) || slices.Contains(described(p), ip.IPAddress)
}

// fixed returns a fixed IP's address as a prefix.
func fixed(ip ports.IP) (netip.Prefix, error) {
	addr, err := netip.ParseAddr(ip.IPAddress)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("fixed IP of a port: %w", err)
	}
	return netip.PrefixFrom(addr, addr.BitLen()), nil
}

// pair returns an allowed address pair as a prefix, without host bits.
func pair(p ports.AddressPair) (netip.Prefix, error) {
	if !strings.Contains(p.IPAddress, "/") {
		return fixed(ports.IP{IPAddress: p.IPAddress})
	}
	prefix, err := netip.ParsePrefix(p.IPAddress)
	if err != nil {
		return prefix, fmt.Errorf("allowed address pair: %w", err)
	}
	return prefix.Masked(), nil
}

// pairs returns the allowed address pairs of a port.
func pairs(p ports.Port) ([]netip.Prefix, error) {
	all := make([]netip.Prefix, 0, len(p.AllowedAddressPairs))
	for _, a := range p.AllowedAddressPairs {
		prefix, err := pair(a)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", p.ID, err)
		}
		all = append(all, prefix)
	}
	return all, nil
}

// byDevice sorts the ports of one machine: those that came with it by age, then those that
// were created for pods.
func (c *Cloud) byDevice(all []ports.Port) {
	slices.SortFunc(all, func(a, b ports.Port) int {
		if x, y := c.owned(a), c.owned(b); x != y {
			if x {
				return 1
			}
			return -1
		}
		if order := a.CreatedAt.Compare(b.CreatedAt); order != 0 {
			return order
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// device returns the device number of a machine's port, whose place among the ports is at.
func (c *Cloud) device(p ports.Port, at int) int {
	for _, tag := range p.Tags {
		if text, is := strings.CutPrefix(tag, tagOfDevice); is && c.owned(p) {
			if n, err := strconv.Atoi(text); err == nil && n >= 0 {
				return n
			}
		}
	}
	return at
}

// attached returns the port if it is an interface of the machine.
func attached(p ports.Port, instance string) error {
	if p.DeviceID != instance || !isOfMachine(p) {
		return fmt.Errorf("%w: port %s is not attached to machine %q", cloud.ErrNoInstance, p.ID, instance)
	}
	return nil
}
