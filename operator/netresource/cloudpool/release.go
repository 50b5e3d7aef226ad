// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// Spare implements netresource.Provider. It chooses free blocks, those of the highest device
// and the highest address first. Of a dual-stack node it chooses as many IPv6 addresses as
// leave one for each IPv4 address.
func (p *Provider) Spare(_ context.Context, set *v1alpha1.NetResourceSet, excess int) (keys []string, err error) {
	n, err := p.node(set)
	if err != nil {
		return nil, err
	}
	in := usedIn(set.Status.IPAM.Used)
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return nil, nil //nolint:nilerr // State has returned it
	}
	left := [2]int{excess, excess}
	if p.config.IPv4 && p.config.IPv6 {
		left[v6] = total(m, v6) - total(m, v4) + excess
	}
	for _, i := range slices.Backward(m.Interfaces) {
		if i.Trunk {
			continue
		}
		for _, b := range highestFirst(i.Blocks) {
			f := family(b.Prefix)
			if b.Primary || in(b.Prefix) || sizeOf(b.Prefix) > left[f] {
				continue
			}
			keys = append(keys, handshake.Key(b.Prefix))
			left[f] -= sizeOf(b.Prefix)
		}
	}
	return keys, nil
}

// highestFirst returns blocks sorted by family and address, the highest first.
func highestFirst(blocks []cloud.Block) []cloud.Block {
	return slices.SortedFunc(slices.Values(blocks), func(x, y cloud.Block) int {
		return y.Prefix.Addr().Compare(x.Prefix.Addr())
	})
}

// Release implements netresource.Provider. It deletes an interface that has become empty by
// that, if the provider may.
func (p *Provider) Release(ctx context.Context, set *v1alpha1.NetResourceSet, a *netresource.ReleaseAction) error {
	n, err := p.node(set)
	if err != nil {
		return err
	}
	instance, byInterface, order, err := n.interfacesOf(a)
	if err != nil {
		return err
	}
	for _, iface := range order {
		blocks := byInterface[iface]
		if err := p.config.Cloud.Unassign(ctx, instance, iface, blocks); err != nil {
			return translated(fmt.Errorf("unassign %d blocks of interface %q of machine %q: %w",
				len(blocks), iface, instance, err))
		}
		n.removed(instance, iface, blocks)
		if !needs(set, iface, blocks) {
			p.deleteEmpty(ctx, instance, iface)
		}
	}
	return nil
}

// needs reports whether the node's pool has an address of an interface beside those that
// are released. A reading may lack it, and pods may use it.
func needs(set *v1alpha1.NetResourceSet, iface string, released []netip.Prefix) bool {
	for key, at := range set.Spec.IPAM.Pool {
		p, err := handshake.ParseKey(key)
		if at.Resource != iface || set.Status.IPAM.ReleaseIPs[key] == handshake.Released {
			continue
		}
		if err != nil || !slices.Contains(released, p) {
			return true
		}
	}
	return false
}

// interfacesOf returns the node's machine, and the blocks of an action by interface. Blocks that
// the machine does not have are left out if the action does not name their interface.
func (n *node) interfacesOf(a *netresource.ReleaseAction) (
	instance string,
	all map[string][]netip.Prefix,
	order []string,
	err error,
) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	instance = n.instance()
	m := p.view.machines[instance]
	all = map[string][]netip.Prefix{}
	for _, text := range a.IPsToRelease {
		b, err := handshake.ParseKey(text)
		if err != nil {
			return "", nil, nil, fmt.Errorf("release %q: it %w", text, err)
		}
		on := a.InterfaceID
		if m != nil {
			for _, i := range m.Interfaces {
				if slices.ContainsFunc(i.Blocks, func(x cloud.Block) bool { return x.Prefix == b && !x.Primary }) {
					on = i.ID
				}
			}
		}
		if on == "" {
			continue
		}
		if all[on] == nil {
			order = append(order, on)
		}
		all[on] = append(all[on], b)
	}
	return instance, all, order, nil
}

// removed records blocks that the cloud has taken from an interface.
func (n *node) removed(instance, iface string, blocks []netip.Prefix) {
	p := n.p
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.config.Now()
	for _, b := range blocks {
		p.view.note(item{instance, iface, b}, change{at: now, removed: true})
	}
}

// deletable reports whether an interface is empty, and one that the provider may delete.
// The caller holds mu.
func (p *Provider) deletable(i *cloud.Interface) bool {
	return i.Owned && i.Device > 0 && !i.Trunk && !i.EFA && p.busy[i.ID] == 0 && !p.deleting[i.ID] &&
		!slices.ContainsFunc(i.Blocks, func(b cloud.Block) bool { return !b.Primary })
}

// deleteEmpty deletes an interface that has no addresses for pods left. A failure costs
// nothing but an interface that stays: it is used again, or a sweep deletes it.
func (p *Provider) deleteEmpty(ctx context.Context, instance, iface string) {
	p.mu.Lock()
	i := p.view.find(instance, iface)
	may := i != nil && p.deletable(i)
	if may {
		p.deleting[iface] = true
	}
	p.mu.Unlock()
	if !may {
		return
	}
	err := p.config.Cloud.DeleteInterface(ctx, instance, iface)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.deleting, iface)
	if err != nil {
		p.config.Log.Warn("delete an interface that is empty", "cloud", p.config.Cloud.Name(),
			"machine", instance, "interface", iface, "error", err)
		return
	}
	p.view.note(item{instance: instance, iface: iface}, change{at: p.config.Now(), removed: true})
}
