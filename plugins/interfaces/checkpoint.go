// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// checkpointVersion is the version of checkpoints that are imported and exported.
const checkpointVersion = "vpc-cni-ipam/1"

// checkpoint is the file in which the daemon of the AWS VPC CNI keeps the addresses of
// pods. It is imported once, to take over from that daemon, and exported for the way back.
type checkpoint struct {
	Version     string  `json:"version"`
	Allocations []lease `json:"allocations"`
}

// lease is an address, or one of each family, of a pod.
type lease struct {
	NetworkName         string      `json:"networkName"`
	ContainerID         string      `json:"containerID"`
	IfName              string      `json:"ifName"`
	IPv4                string      `json:"ipv4,omitempty"`
	IPv6                string      `json:"ipv6,omitempty"`
	AllocationTimestamp int64       `json:"allocationTimestamp,omitempty"` // Unix time in ns
	Metadata            podMetadata `json:"metadata,omitzero"`
}

type podMetadata struct {
	Namespace string `json:"k8sPodNamespace,omitempty"`
	Name      string `json:"k8sPodName,omitempty"`
}

func (l *lease) key() ledger.Key {
	return ledger.Key{Network: l.NetworkName, ContainerID: l.ContainerID, IfName: l.IfName}
}

// addresses returns the addresses of the lease.
func (l *lease) addresses() (all []netip.Addr, err error) {
	for _, x := range []struct {
		text string
		v4   bool
	}{{l.IPv4, true}, {l.IPv6, false}} {
		if x.text == "" {
			continue
		}
		a, err := netip.ParseAddr(x.text)
		if err != nil {
			return nil, fmt.Errorf("entry of %s: address %q: %w", l.key(), x.text, err)
		}
		if a.Is4() != x.v4 || a.Is4In6() || a.Zone() != "" {
			return nil, fmt.Errorf("entry of %s: address %q is not of its field's family", l.key(), x.text)
		}
		all = append(all, a)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("entry of %s: it has no address", l.key())
	}
	return all, nil
}

// check returns an error for a checkpoint that cannot be imported.
func (c *checkpoint) check() error {
	if c.Version != checkpointVersion {
		return fmt.Errorf("it is of version %q: want %q", c.Version, checkpointVersion)
	}
	type owner struct {
		ledger.Key
		ledger.Family
	}
	owners, addresses := map[owner]bool{}, map[netip.Addr]bool{}
	for _, l := range c.Allocations {
		all, err := l.addresses()
		if err != nil {
			return err
		}
		for _, a := range all {
			by := owner{l.key(), ledger.FamilyOf(a)}
			switch {
			case by.Key == ledger.Key{}:
				return fmt.Errorf("address %s is in it without a key", a)
			case addresses[a]:
				return fmt.Errorf("entry of %s: address %s is in it twice", l.key(), a)
			case owners[by]:
				return fmt.Errorf("address %s: %s has another one", a, l.key())
			}
			owners[by], addresses[a] = true, true
		}
	}
	return nil
}

// importCheckpoint reads the checkpoint at the first start, and keeps its content: the
// agent reads the file only once.
func (p *Interfaces) importCheckpoint(ctx context.Context) error {
	path := p.deps.Config.Checkpoint
	if path != "" && len(p.stored) == 0 {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil {
			var c checkpoint
			if err := json.Unmarshal(text, &c); err != nil {
				return fmt.Errorf("it is not a whole JSON object: %w", err)
			}
			if err := c.check(); err != nil {
				return fmt.Errorf("%w: drain the node, remove the checkpoint and reboot, or correct it", err)
			}
			p.imported = c.Allocations
			p.log.Info("imported the checkpoint of another program", "file", path, "leases", len(p.imported))
		}
	}
	return p.saveImport(ctx)
}

func (p *Interfaces) saveImport(ctx context.Context) error {
	value, err := json.Marshal(p.imported)
	if err != nil {
		return err
	}
	return p.deps.Records.Commit(ctx, map[string][]byte{importRecord: value}, nil)
}

// claims returns the imported leases for the blocks that the machine lacks yet. Both
// addresses of a lease are one claim; if the block of one of them comes later, its claim is
// a further one of the key.
func (p *Interfaces) claims(next machine) (all []ledger.Request) {
	isNew := func(a netip.Addr) bool {
		at, b := next.overlapping(netip.PrefixFrom(a, a.BitLen()))
		return at != nil && p.machine.of(b) == nil
	}
	for i := range p.imported {
		l := &p.imported[i]
		addresses, _ := l.addresses() // checked at the import
		wanted := slices.DeleteFunc(addresses, func(a netip.Addr) bool { return !isNew(a) })
		if len(wanted) == 0 {
			continue
		}
		req := ledger.Request{
			Pool:   ipam.PodPool,
			Key:    l.key(),
			Pod:    ledger.Pod{Namespace: l.Metadata.Namespace, Name: l.Metadata.Name},
			Wanted: wanted,
		}
		req.More = slices.ContainsFunc(p.deps.Ledger.ByKey(req.Key), func(x ledger.Lease) bool {
			return !slices.Contains(wanted, x.Addr)
		})
		all = append(all, req)
	}
	slices.SortFunc(all, func(x, y ledger.Request) int { return x.Wanted[0].Compare(y.Wanted[0]) })
	return all
}

// forgetClaimed drops the imported leases whose block the ledger has: they were claimed
// together with it. A later process must not claim them again after their pods have ended.
func (p *Interfaces) forgetClaimed(ctx context.Context) error {
	if len(p.imported) == 0 {
		return nil
	}
	has := map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool == ipam.PodPool {
			has[b.Block] = true
		}
	}
	claimed := func(a string) bool {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			return true
		}
		for b := range has {
			if b.Contains(addr) {
				return true
			}
		}
		return false
	}
	before := len(p.imported)
	var left []lease
	dropped := false
	for _, l := range p.imported {
		if l.IPv4 != "" && claimed(l.IPv4) {
			l.IPv4, dropped = "", true
		}
		if l.IPv6 != "" && claimed(l.IPv6) {
			l.IPv6, dropped = "", true
		}
		if l.IPv4+l.IPv6 != "" {
			left = append(left, l)
		}
	}
	if !dropped && len(left) == before {
		return nil
	}
	p.imported = left
	if err := p.saveImport(ctx); err != nil {
		return fmt.Errorf("forget the imported leases that are claimed: %w", err)
	}
	return nil
}

// export writes the leases to the file of cadastre.interfaces.export if they have
// changed.
func (p *Interfaces) export() {
	path := p.deps.Config.Export
	if path == "" {
		return
	}
	data := p.leases()
	if p.exported != nil && slices.Equal(p.exported.Allocations, data.Allocations) {
		return
	}
	if err := write(path, data); err != nil {
		p.log.Warn("the leases cannot be exported", "file", path, "error", err)
		return
	}
	p.exported = data
}

// leases returns the addresses that pods have, by address. A key with an address of each
// family has one entry: readers take that of their family.
func (p *Interfaces) leases() *checkpoint {
	of := p.machine.interfaces()
	all := slices.DeleteFunc(p.deps.Ledger.Leases(), func(x ledger.Lease) bool {
		return x.State != ledger.Held || x.Pool != ipam.PodPool || of[x.Block] == nil
	})
	slices.SortFunc(all, func(x, y ledger.Lease) int { return x.Addr.Compare(y.Addr) })
	c, at := &checkpoint{Version: checkpointVersion, Allocations: []lease{}}, map[ledger.Key]int{}
	for _, x := range all {
		i, known := at[x.Key]
		if !known {
			i = len(c.Allocations)
			at[x.Key] = i
			c.Allocations = append(c.Allocations, lease{
				NetworkName:         x.Key.Network,
				ContainerID:         x.Key.ContainerID,
				IfName:              x.Key.IfName,
				AllocationTimestamp: x.Since.UnixNano(),
				Metadata:            podMetadata{Namespace: x.Pod.Namespace, Name: x.Pod.Name},
			})
		}
		l := &c.Allocations[i]
		switch {
		case x.Addr.Is4() && l.IPv4 == "":
			l.IPv4 = x.Addr.String()
		case !x.Addr.Is4() && l.IPv6 == "":
			l.IPv6 = x.Addr.String()
		}
	}
	return c
}

// write replaces a file by a checkpoint. A crash leaves the old file or the new one.
func write(path string, c *checkpoint) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
