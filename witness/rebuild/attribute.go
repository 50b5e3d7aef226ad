// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// docker lists the uses of addresses by networks of our driver.
func (m *maker) docker() {
	v := m.world.Engine
	if v == nil {
		return
	}
	for i := range v.Networks {
		n := &v.Networks[i]
		if n.IPAMDriver != m.world.Driver {
			continue
		}
		for _, a := range addressesOf(v, n) {
			for _, use := range v.Uses(m.world.Driver, a) {
				if use.Network != n {
					continue
				}
				m.taken[a] = true
				m.plan.Docker = append(m.plan.Docker, DockerUse{a, subnetOf(n, a), n.Name, use.What})
			}
		}
	}
}

// addressesOf returns all addresses of a network, each once.
func addressesOf(v *witness.EngineView, n *witness.EngineNetwork) (all []netip.Addr) {
	for _, p := range n.Pools {
		if p.Gateway.IsValid() {
			all = append(all, p.Gateway)
		}
		for _, a := range p.Aux {
			all = append(all, a)
		}
	}
	for _, e := range n.Endpoints {
		all = append(all, e.Addrs...)
	}
	for _, c := range v.Containers {
		all = append(all, c.Fixed[n.ID]...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func subnetOf(n *witness.EngineNetwork, a netip.Addr) netip.Prefix {
	for _, p := range n.Pools {
		if p.Subnet.Contains(a) {
			return p.Subnet
		}
	}
	return netip.Prefix{}
}

// kernel attributes the addresses of links: those in blocks, and in namespaces of
// sandboxes all others too. An address of a block that neither answers there nor is in a CNI
// result has no owner: any process may put any address on a link of its own.
func (m *maker) kernel() {
	all := m.world.Sightings(func(netip.Addr) bool { return true })
	answering := map[netip.Addr][]witness.Place{}
	for _, s := range all {
		if s.Answers {
			answering[s.Addr] = append(answering[s.Addr], s.Place)
		}
	}
	for _, s := range all {
		sandbox := m.world.SandboxIn(s.Namespace)
		if !m.counts(s.Addr, sandbox != nil) {
			continue
		}
		listed := m.attachment(s.Addr, s.Place, sandbox)
		if s.Answers || m.poolOf(s.Addr) == nil || listed != nil && slices.Contains(listed.Addrs, s.Addr) {
			m.place(s.Addr, s.Place, sandbox, answering[s.Addr])
		}
	}
}

// counts reports whether an address of a link is a matter of the plan.
func (m *maker) counts(a netip.Addr, ofSandbox bool) bool {
	p := m.poolOf(a)
	return p == nil && ofSandbox && !a.IsLoopback() && !a.IsLinkLocalUnicast() ||
		p != nil && !slices.Contains(p.Reserved, a)
}

// place attributes one address on one link.
func (m *maker) place(a netip.Addr, at witness.Place, sandbox *witness.Sandbox, answering []witness.Place) {
	shown := fmt.Sprintf("%s has %s", at, a)
	if sandbox != nil {
		m.explained[sandbox.ID] = true
	}
	elsewhere := func(p witness.Place) bool { return p.Namespace != at.Namespace }
	if i := slices.IndexFunc(answering, elsewhere); i >= 0 {
		m.unattributed(a, "%s, and so has %s", shown, answering[i])
		return
	}
	evidence := []witness.Evidence{{Witness: witness.Kernel, Text: shown}}
	pool := m.poolOf(a)
	attachment := m.attachment(a, at, sandbox)
	switch {
	case pool == nil:
		m.unattributed(a, "%s; it is outside of every block of this node", shown)
	case attachment != nil:
		pod, netns := attachment.Pod, attachment.NetNS
		if sandbox != nil {
			pod, netns = podOf(sandbox), sandbox.NetNS
			evidence = append(evidence, m.has(sandbox))
		}
		m.add(a, Record{
			Pool: pool.Name, Key: attachment.Key, Pod: pod, NetNS: netns, NetNSID: m.identity(at.Namespace, netns),
			Wired: attachment.Wired, MAC: attachment.MAC, Evidence: evidence,
		})
	case sandbox != nil && m.in.Network != "":
		key := ledger.Key{Network: m.in.Network, ContainerID: sandbox.ID, IfName: at.Link.Name}
		m.add(a, Record{
			Pool: pool.Name, Key: key, Pod: podOf(sandbox), Wired: m.in.Wires,
			NetNS: sandbox.NetNS, NetNSID: m.identity(at.Namespace, sandbox.NetNS),
			Evidence: append(evidence, m.has(sandbox)),
		})
	case sandbox != nil:
		m.unattributed(a, "%s, of pod %s; its CNI network is not known (--network)", shown, podOf(sandbox))
	default:
		m.unattributed(a, "%s, and no sandbox, no CNI result and no network of the Docker engine explains it", shown)
	}
}

// identity returns the identity of a namespace with the address of a lease, if it is the one
// at the path of the lease. Otherwise nothing is known of the lease's.
func (m *maker) identity(ns *witness.Namespace, path string) kv.NetNSID {
	if !slices.Contains(ns.Paths, path) {
		return kv.NetNSID{}
	}
	return ns.Identity(m.world.BootID)
}

// identityOf returns the identity of the namespace of a sandbox that runs: the runtime holds
// its path.
func (m *maker) identityOf(s *witness.Sandbox) kv.NetNSID {
	if !s.Ready || m.world.Kernel == nil {
		return kv.NetNSID{}
	}
	if ns := m.world.Kernel.At(s.NetNS); ns != nil {
		return m.identity(ns, s.NetNS)
	}
	return kv.NetNSID{}
}

// attachment returns the attachment that a link of a namespace belongs to. The result
// cache decides by the container and the interface, or without a sandbox by the address.
func (m *maker) attachment(a netip.Addr, at witness.Place, sandbox *witness.Sandbox) *witness.Attachment {
	for i := range m.world.Attachments {
		x := &m.world.Attachments[i]
		switch {
		case at.Namespace.Host || !slices.Contains(x.Addrs, a):
		case sandbox != nil && x.Key.ContainerID == sandbox.ID:
			return x
		case sandbox == nil && (x.NetNS == "" || slices.Contains(at.Namespace.Paths, x.NetNS)):
			return x
		}
	}
	for i := range m.world.Attachments {
		x := &m.world.Attachments[i]
		if sandbox != nil && x.Key.ContainerID == sandbox.ID && x.Key.IfName == at.Link.Name {
			return x
		}
	}
	return nil
}

func podOf(s *witness.Sandbox) ledger.Pod {
	return ledger.Pod{Namespace: s.Namespace, Name: s.Name, UID: s.UID}
}

// has returns the statement of the runtime about a sandbox.
func (m *maker) has(s *witness.Sandbox) witness.Evidence {
	return witness.Evidence{Witness: witness.Runtime, Text: fmt.Sprintf("%s has sandbox %s of pod %s/%s",
		m.world.Runtime.Name, s.ID, s.Namespace, s.Name)}
}

// sandboxes adds the addresses that only the runtime or the result cache has: those of a
// pod whose data plane is not the kernel.
func (m *maker) sandboxes() {
	if m.world.Runtime == nil {
		return
	}
	for i := range m.world.Runtime.Sandboxes {
		s := &m.world.Runtime.Sandboxes[i]
		if s.HostNet {
			continue
		}
		for _, x := range m.world.Attachments {
			if x.Key.ContainerID == s.ID {
				m.claimed(x, s, "the CNI result lists")
			}
		}
		if m.in.Network != "" {
			key := ledger.Key{Network: m.in.Network, ContainerID: s.ID, IfName: defaultInterface}
			m.claimed(witness.Attachment{Key: key, Addrs: s.Addrs, Wired: m.in.Wires}, s, "the runtime reports")
		}
		if s.Ready && !m.explained[s.ID] {
			m.missing("the addresses of sandbox %s of pod %s", s.ID, podOf(s))
		}
	}
}

// defaultInterface is the interface that runtimes ask for in a pod.
const defaultInterface = "eth0"

// claimed adds addresses of a sandbox that no link has.
func (m *maker) claimed(x witness.Attachment, s *witness.Sandbox, verb string) {
	for _, a := range x.Addrs {
		m.explained[s.ID] = true
		p := m.poolOf(a)
		if p == nil {
			m.unattributed(a, "%s it for pod %s; it is outside of every block of this node", verb, podOf(s))
			continue
		}
		text := fmt.Sprintf("%s %s for sandbox %s; no link has it", verb, a, s.ID)
		m.add(a, Record{
			Pool: p.Name, Key: x.Key, Pod: podOf(s), Wired: x.Wired, MAC: x.MAC,
			NetNS: s.NetNS, NetNSID: m.identityOf(s),
			Evidence: []witness.Evidence{m.has(s), {Witness: witness.Runtime, Text: text}},
		})
	}
}

// attachments decides on results of containers that no runtime lists: they exist if a
// link has their address, and may exist if the views are not complete.
func (m *maker) attachments() {
	w := m.world
	blind := w.Kernel == nil || w.Kernel.Hidden != "" || w.Kernel.Limits != "" ||
		w.Runtime == nil && w.Report(witness.Runtime).State == witness.Missing
	for _, x := range m.world.Attachments {
		for _, a := range x.Addrs {
			p := m.poolOf(a)
			switch {
			case m.taken[a] || p == nil:
			case blind:
				m.add(a, Record{
					Pool:  p.Name,
					Key:   x.Key,
					Pod:   x.Pod,
					NetNS: x.NetNS,
					Wired: x.Wired,
					MAC:   x.MAC,
					Evidence: []witness.Evidence{
						{Witness: witness.Runtime, Text: "the CNI result lists " + a.String()},
					},
				})
			default:
				m.plan.Skipped = append(m.plan.Skipped,
					fmt.Sprintf("%s of %s: the CNI result lists it, no sandbox and no link has it", a, x.Key))
			}
		}
	}
}
