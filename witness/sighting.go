// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"fmt"
	"net/netip"
	"slices"
)

// Sighting is an address on a link, and what its presence there proves.
type Sighting struct {
	Place
	Addr   netip.Addr
	Prefix netip.Prefix // the address, with its prefix length on the link
	// Answers says that packets for the address arrive there, so that no pod may get it. Any
	// user of the node can put any address on a link that leads nowhere.
	Answers bool
	Why     string // what shows that it answers, or what is missing
	Pod     string // namespace/name of the pod whose namespace it is; "": not known
}

func (s Sighting) String() string { return fmt.Sprintf("%s has %s (%s)", s.Place, s.Addr, s.Why) }

// Sightings returns the addresses on links that wanted admits, in the order of the namespaces.
func (w *World) Sightings(wanted func(netip.Addr) bool) (all []Sighting) {
	if w.Kernel == nil {
		return nil
	}
	var e *evidence // made for the first one: most rounds have none
	for i := range w.Kernel.Namespaces {
		ns := &w.Kernel.Namespaces[i]
		for j := range ns.Links {
			for _, p := range ns.Links[j].Addrs {
				if !wanted(p.Addr()) {
					continue
				}
				if e == nil {
					e = newEvidence(w)
				}
				s := Sighting{Place: Place{ns, &ns.Links[j]}, Addr: p.Addr(), Prefix: p, Pod: e.pod(ns)}
				s.Answers, s.Why = e.answers(s.Place, p)
				all = append(all, s)
			}
		}
	}
	return all
}

// PodIn returns namespace/name of the pod whose network namespace it is, as the runtime or
// libcni's cache says; "" if neither does.
func (w *World) PodIn(ns *Namespace) string {
	if s := w.SandboxIn(ns); s != nil {
		return s.Namespace + "/" + s.Name
	}
	for i := range w.Attachments {
		if a := &w.Attachments[i]; !ns.Host && a.Pod.Name != "" && ns.has(a.NetNS) {
			return a.Pod.String()
		}
	}
	return ""
}

// SandboxIn returns the sandbox with a namespace, nil for none. A file may have been that of an
// earlier sandbox, which is not ready any more and is listed still.
func (w *World) SandboxIn(ns *Namespace) (found *Sandbox) {
	if w.Runtime == nil || ns.Host {
		return nil
	}
	for i := range w.Runtime.Sandboxes {
		s := &w.Runtime.Sandboxes[i]
		if !s.HostNet && ns.has(s.NetNS) && (found == nil || s.Ready && !found.Ready) {
			found = s
		}
	}
	return found
}

// has reports whether a file names the namespace.
func (n *Namespace) has(path string) bool { return path != "" && slices.Contains(n.Paths, path) }

// evidence holds the indexes for the sightings of one World.
type evidence struct {
	world  *World
	host   *Namespace
	byNSID map[int]*Namespace
	toward map[int]map[*Namespace]bool // the namespaces that links of the host lead to, by index
	pods   map[*Namespace]string

	networks map[*Link]layer2
	// engine has the addresses of endpoints, of any IPAM driver.
	engine map[netip.Addr]string
}

func newEvidence(w *World) *evidence {
	e := &evidence{
		world:  w,
		byNSID: map[int]*Namespace{},
		toward: map[int]map[*Namespace]bool{},
		pods:   map[*Namespace]string{},

		networks: map[*Link]layer2{},
		engine:   map[netip.Addr]string{},
	}
	for i := range w.Kernel.Namespaces {
		ns := &w.Kernel.Namespaces[i]
		if ns.Host {
			e.host = ns
		}
		if ns.NSID >= 0 {
			e.byNSID[ns.NSID] = ns
		}
	}
	if w.Engine != nil {
		for _, n := range w.Engine.Networks {
			for _, p := range n.Endpoints {
				for _, a := range p.Addrs {
					e.engine[a] = fmt.Sprintf("the engine has it for container %s of network %s", p.Name, n.Name)
				}
			}
		}
	}
	return e
}

func (e *evidence) pod(ns *Namespace) string {
	name, ok := e.pods[ns]
	if !ok {
		name = e.world.PodIn(ns)
		e.pods[ns] = name
	}
	return name
}

// answers reports whether packets for an address on a link arrive there, and why.
func (e *evidence) answers(at Place, p netip.Prefix) (bool, string) {
	ns, a := at.Namespace, p.Addr()
	if ns.Host {
		return true, "it is an address of the host"
	}
	if !ns.Counts {
		return false, "no link leads from there to the host, and no lease, runtime or CNI result names the namespace"
	}
	if why := e.assigned(ns, a); why != "" {
		return true, why
	}
	if why := e.routed(ns, a, at.Link.Loopback); why != "" {
		return true, why
	}
	if at.Link.Loopback {
		return false, "the link is the loopback of a namespace, and the host has no route to it there"
	}
	if why := e.shared(at, p); why != "" {
		return true, why
	}
	return false, "the host has no route and no permanent neighbour for it there, and the link is on no shared network"
}

// assigned says who has assigned an address to the namespace: the runtime, a CNI result, or the
// engine. It covers data planes of which the kernel shows nothing, such as VPP.
func (e *evidence) assigned(ns *Namespace, a netip.Addr) string {
	if s := e.world.SandboxIn(ns); s != nil && slices.Contains(s.Addrs, a) {
		return fmt.Sprintf("%s reports it for sandbox %s", e.world.Runtime.Name, s.ID)
	}
	for i := range e.world.Attachments {
		if x := &e.world.Attachments[i]; ns.has(x.NetNS) && slices.Contains(x.Addrs, a) {
			return "a CNI result lists it for container " + x.Key.ContainerID
		}
	}
	return e.engine[a]
}
