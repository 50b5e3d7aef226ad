// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// check compares the leases of an attachment with the result of its ADD, and with the
// addresses of its interface if the agent can see the network namespace.
func (p *PodManager) check(ctx context.Context, key ledger.Key, req cni.Request) error {
	leases := p.Ledger.ByKey(key)
	have := addrs(leases)
	if len(have) == 0 {
		return cni.Errorf(cni.CodeUnknown, "CHECK: %s holds no address", key)
	}
	for _, s := range req.Previous {
		want, err := netip.ParsePrefix(s)
		if err != nil {
			return cni.Errorf(cni.CodeDecode,
				"CHECK: prevResult: address %q is not an address with its prefix length, such as 10.1.5.2/24", s)
		}
		if !slices.Contains(have, want.Addr()) {
			return cni.Errorf(cni.CodeDiffers, "CHECK: prevResult has %s, but %s holds %v", want.Addr(), key, have)
		}
	}
	if len(req.Previous) > 0 && len(have) > len(req.Previous) {
		return cni.Errorf(cni.CodeDiffers, "CHECK: %s holds %v, but prevResult has only %v", key, have, req.Previous)
	}
	if have := p.identify(req.Netns); have.IsNot(leases[0].NetNSID) {
		return cni.Errorf(cni.CodeDiffers, "CHECK: %s names another network namespace by now: %s; %s was added in %s",
			req.Netns, have, key, leases[0].NetNSID)
	}
	if err := p.checkInterface(ctx, key, leases, req.Netns); err != nil || !req.Main {
		return err
	}
	return p.checkWire(ctx, key, leases[0], req)
}

// checkInterface compares the addresses of an attachment with those of its interface. Other
// addresses on it that are in no block of the attachment are not the agent's: the kernel and
// router advertisements make some, and so does another plugin.
func (p *PodManager) checkInterface(ctx context.Context, key ledger.Key, leases []ledger.Lease, netns string) error {
	if p.Kernel == nil || netns == "" {
		return nil
	}
	have := addrs(leases)
	found, exists, known, err := p.Kernel.Interface(ctx, netns, key.IfName)
	if err != nil || !known {
		p.Log.Debug("CHECK does not compare the interface", "key", key.String(), "netns", netns, "error", err)
		return nil
	}
	if !exists {
		return cni.Errorf(cni.CodeDiffers, "CHECK: %s holds %v, but network namespace %s has no interface %s",
			key, have, netns, key.IfName)
	}
	on := []netip.Addr{}
	for _, prefix := range found {
		if a := prefix.Addr(); !a.IsLinkLocalUnicast() {
			on = append(on, a)
		}
	}
	for _, a := range have {
		if !slices.Contains(on, a) {
			return cni.Errorf(cni.CodeDiffers, "CHECK: %s holds %s, but interface %s in %s has %v",
				key, a, key.IfName, netns, on)
		}
	}
	for _, a := range on {
		ours := slices.ContainsFunc(leases, func(l ledger.Lease) bool { return l.Block.Contains(a) })
		if ours && !slices.Contains(have, a) {
			return cni.Errorf(cni.CodeDiffers, "CHECK: interface %s in %s has %s, but %s holds %v",
				key.IfName, netns, a, key, have)
		}
	}
	return nil
}
