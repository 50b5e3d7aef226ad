// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"cmp"
	"context"
	"net/netip"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// makesWires returns an error if a main plugin is asked of an agent that makes no wires.
func (p *PodManager) makesWires() error {
	if p.Wires != nil {
		return nil
	}
	return cni.Errorf(cni.CodeInvalidConfig,
		"type %s makes the interfaces of pods, but cadastre.dataplane of this agent is none: set it to linux, "+
			"or use another main plugin with ipam {\"type\": %q}", cni.PluginType, cni.PluginType)
}

// identify returns the identity of the network namespace of a request. Later its path may
// name another one.
func (p *PodManager) identify(netns string) kv.NetNSID {
	if p.Identify == nil || netns == "" {
		return kv.NetNSID{}
	}
	return p.Identify(netns)
}

// fits returns an error if an attachment has leases of an ADD that differs in what a
// repetition cannot change: who makes its interface, in which namespace, with which MAC.
func (p *PodManager) fits(ev *AddPod) error {
	leases := p.Ledger.ByKey(ev.Key)
	if len(leases) == 0 {
		return nil
	}
	const hint = "delete the attachment first, as a runtime does for a pod that it makes again"
	switch have := leases[0]; {
	case have.Wired && !ev.Wired:
		return cni.Errorf(cni.CodeDiffers, "ADD: the agent has made the interface of %s, "+
			"and another main plugin asks for addresses for it: %s", ev.Key, hint)
	case !have.Wired && ev.Wired:
		return cni.Errorf(cni.CodeDiffers, "ADD: %s has the addresses %v since an ADD of another main plugin, "+
			"whose interface the agent leaves alone: %s", ev.Key, addrs(leases), hint)
	case ev.Wired && have.NetNS != ev.Netns && !ev.NetNSID.IsNot(have.NetNSID):
		return cni.Errorf(cni.CodeDiffers, "ADD: the interface of %s is in network namespace %s, not in %s: %s",
			ev.Key, have.NetNS, ev.Netns, hint)
	case ev.Wired && ev.MAC != "" && have.MAC != ev.MAC:
		return cni.Errorf(cni.CodeDiffers, "ADD: the interface of %s has MAC address %s, not %s: %s",
			ev.Key, cmp.Or(have.MAC, "derived from its name"), ev.MAC, hint)
	}
	return nil
}

// indices in the interfaces of a reply to a main ADD.
const (
	hostEnd = iota
	podEnd
)

// interfaces adds the two ends of a wire to a reply. The pod's end has its addresses
// without the other addresses of their block.
func interfaces(r *cni.Reply, wire *kv.Wire, key ledger.Key, addresses []netip.Prefix) {
	r.Interfaces = []cni.Interface{
		hostEnd: {Name: wire.GetHostIfName(), MAC: wire.GetHostMac(), MTU: int(wire.GetMtu())},
		podEnd:  {Name: key.IfName, MAC: wire.GetPodMac(), MTU: int(wire.GetMtu()), Sandbox: wire.GetNetns()},
	}
	for i, a := range addresses {
		r.IPs[i].Interface = new(podEnd)
		r.IPs[i].Address = netip.PrefixFrom(a.Addr(), a.Addr().BitLen()).String()
	}
}

// checkWire compares the wire of an attachment with prevResult and with the kernel.
func (p *PodManager) checkWire(ctx context.Context, key ledger.Key, lease ledger.Lease, req cni.Request) error {
	if !lease.Wired {
		return cni.Errorf(cni.CodeDiffers, "CHECK: the addresses of %s are those of another main plugin, "+
			"and the agent has not made its interface: delete the pod", key)
	}
	if lease.NetNS != req.Netns {
		return cni.Errorf(cni.CodeDiffers, "CHECK: the interface of %s was made in network namespace %s, not in %s",
			key, lease.NetNS, req.Netns)
	}
	if link := req.Link; link != nil && lease.MAC != "" && link.MAC != lease.MAC {
		return cni.Errorf(cni.CodeDiffers, "CHECK: prevResult has MAC address %s, but %s was made with %s",
			link.MAC, key, lease.MAC)
	}
	if err := p.makesWires(); err != nil {
		return err
	}
	if err := p.Wires.Check(ctx, key); err != nil {
		return cni.Errorf(cni.CodeDiffers, "CHECK: the wire of %s: %v", key, err)
	}
	return nil
}
