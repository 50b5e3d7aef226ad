// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// Switch makes what the node's kernel has of another switch on the node: the pair of links
// between both, and routes over it. One goroutine at a time calls its methods.
type Switch struct {
	ns   *rtnl.Namespace
	host *tunnelHost
}

// SwitchLink is a wanted pair of links. The kernel talks over Near; the switch reads Far.
type SwitchLink struct {
	Alias      string // of both
	Near, Far  SwitchEnd
	MTU        uint32                 // 0: the kernel's
	Addresses  []netip.Prefix         // of Near; to their prefixes the kernel makes routes
	Neighbours map[netip.Addr][6]byte // of the switch, by their addresses
}

// SwitchEnd is an end of a SwitchLink.
type SwitchEnd struct {
	Name string
	MAC  [6]byte
}

// OpenSwitch opens the node's network namespace. It changes nothing.
func OpenSwitch(opt Options) (*Switch, error) {
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, err
	}
	host, err := newTunnelHost(opt)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return &Switch{ns, host}, nil
}

// Close closes what was opened. What was made stays.
func (s *Switch) Close() error {
	s.host.close()
	return s.ns.Close()
}

// Do calls f in the node's network namespace.
func (s *Switch) Do(f func() error) error { return s.ns.Do(f) }

// Index returns the index of a link, 0 if there is none.
func (s *Switch) Index(name string) (int, error) {
	link, _, err := getLink(s.host.socket, name)
	return int(link.index), err
}

// plan returns the attributes of an end.
func (l SwitchLink) plan(end SwitchEnd) linkPlan {
	return linkPlan{alias: l.Alias, group: unnamedGroup, mtu: l.MTU, mac: end.MAC}
}

// objects returns what Near has.
func (l SwitchLink) objects() objects {
	wanted := routedAddresses(l.Addresses)
	for a, mac := range l.Neighbours {
		wanted[object{kind: neighbourObject, prefix: whole(a), mac: mac}] = true
	}
	return wanted
}

// end returns a link of ours, which may be half made.
func (s *Switch) end(l SwitchLink, end SwitchEnd) (hostLink, bool, error) {
	return s.host.marked(end.Name, l.Alias, func(alias string) bool { return alias == l.Alias })
}

// ends returns both links. joined is false unless they are there, and are one pair.
func (s *Switch) ends(l SwitchLink) (near, far hostLink, joined bool, err error) {
	near, nearFound, err := s.end(l, l.Near)
	if err != nil {
		return near, far, false, err
	}
	far, farFound, err := s.end(l, l.Far)
	return near, far, nearFound && farFound && near.peer == far.index, err
}

// Make makes a pair of links, or repairs it.
func (s *Switch) Make(l SwitchLink) error {
	near, far, joined, err := s.ends(l)
	if err != nil {
		return err
	}
	if !joined {
		if err := s.Remove(l); err != nil {
			return err
		}
		peer := l.plan(l.Far).birth(l.Far.Name)
		body := l.plan(l.Near).birth(l.Near.Name).Nest(unix.IFLA_LINKINFO, rtnl.Message(nil).
			Text(unix.IFLA_INFO_KIND, vethKind).
			Nest(unix.IFLA_INFO_DATA, rtnl.Message(nil).Nest(vethPeer, peer)))
		what := fmt.Sprintf("make the pair of links %s and %s", l.Near.Name, l.Far.Name)
		if _, err := makeLink(s.host.socket, what, l.Near.Name, body); err != nil {
			return err
		}
		if near, far, joined, err = s.ends(l); err != nil || !joined {
			return errors.Join(err, fmt.Errorf("%s: another program has changed it at once", what))
		}
	}
	if err := s.host.socket.Run(append(l.plan(l.Far).requests(far), l.plan(l.Near).requests(near)...)); err != nil {
		return err
	}
	return s.host.converge(near, l.objects(), s.objects)
}

// objects returns what a link has, without routes: those are of networks.
func (s *Switch) objects(link hostLink) (*linkObjects, error) {
	have, err := readObjects(s.host.socket, link.index)
	if err != nil {
		return nil, err
	}
	all := objects{}
	if found := have[link.index]; found != nil {
		for o := range found.all {
			if o.kind != routeObject {
				all[o] = true
			}
		}
	}
	return &linkObjects{all: all, ours: all}, nil
}

// Complete reports whether Make would change nothing.
func (s *Switch) Complete(l SwitchLink) (bool, error) {
	near, far, joined, err := s.ends(l)
	if errors.Is(err, southbound.ErrForeign) || err == nil && !joined {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	have, err := s.objects(near)
	return err == nil && l.plan(l.Far).differences(far, ofNode) == nil &&
		l.plan(l.Near).dressed(near, l.objects(), have), err
}

// Has reports whether there is an end of a pair, which may be half made.
func (s *Switch) Has(l SwitchLink) (bool, error) {
	for _, end := range []SwitchEnd{l.Near, l.Far} {
		_, found, err := s.end(l, end)
		if err != nil && !errors.Is(err, southbound.ErrForeign) || found {
			return found, err
		}
	}
	return false, nil
}

// Remove removes a pair of links, with the routes over it. A missing one is not an error.
func (s *Switch) Remove(l SwitchLink) error {
	for _, end := range []SwitchEnd{l.Near, l.Far} {
		link, found, err := s.end(l, end)
		if err != nil && !errors.Is(err, southbound.ErrForeign) {
			return err
		}
		if found {
			if err := removeLink(s.host.socket, link); err != nil {
				return err
			}
		}
	}
	return nil
}

// promiscuous has the flags of a link whose switch has another MAC address than the kernel.
const promiscuous = unix.IFF_UP | unix.IFF_PROMISC

// Receive sets a link up so that it takes packets to each MAC address.
func (s *Switch) Receive(name string) error {
	link, found, err := getLink(s.host.socket, name)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("there is no link %s", name)
	}
	if link.up && link.takesAll {
		return nil
	}
	r := changeLink("make "+name+" promiscuous", link.index, promiscuous, promiscuous, nil)
	return s.host.socket.Run([]*rtnl.Request{r})
}

// Receives reports whether Receive would change nothing.
func (s *Switch) Receives(name string) (bool, error) {
	link, _, err := getLink(s.host.socket, name)
	return link.up && link.takesAll, err
}

// Routes returns the gateways of the routes of ours over the near end of a pair.
func (s *Switch) Routes(near string) (all map[netip.Prefix]netip.Addr, err error) {
	routes, _, err := s.routes(near)
	all = map[netip.Prefix]netip.Addr{}
	for _, r := range routes {
		all[r.prefix] = r.gateway
	}
	return all, err
}

func (s *Switch) routes(near string) (all []object, link linkID, err error) {
	found, is, err := getLink(s.host.socket, near)
	if err != nil || !is {
		return nil, link, err
	}
	have, err := readObjects(s.host.socket, found.index)
	if err != nil {
		return nil, link, err
	}
	if on := have[found.index]; on != nil {
		for o := range on.ours {
			if o.kind == routeObject {
				all = append(all, o)
			}
		}
	}
	return all, found.linkID, nil
}

// SetRoutes makes destinations lead over the near end of a pair, each by the gateway of its
// family. Without the link, or a gateway, there is none.
func (s *Switch) SetRoutes(near string, dst []netip.Prefix, gateways []netip.Addr) error {
	have, link, err := s.routes(near)
	if err != nil || link.index == 0 {
		return err
	}
	var batch []*rtnl.Request
	for _, p := range dst {
		i := slices.IndexFunc(gateways, func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
		if i < 0 {
			continue
		}
		o := object{kind: routeObject, prefix: p.Masked(), gateway: gateways[i], table: unix.RT_TABLE_MAIN}
		if !slices.Contains(have, o) {
			r := o.add(link)
			r.Flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
			batch = append(batch, r)
		}
	}
	return s.host.socket.Run(batch)
}

// RemoveRoutes removes routes of ours over the near end of a pair, whatever their gateway is.
func (s *Switch) RemoveRoutes(near string, dst []netip.Prefix) error {
	have, link, err := s.routes(near)
	if err != nil {
		return err
	}
	var batch []*rtnl.Request
	for _, o := range have {
		if slices.ContainsFunc(dst, func(p netip.Prefix) bool { return p.Masked() == o.prefix }) {
			batch = append(batch, o.remove(link))
		}
	}
	return s.host.socket.Run(batch)
}
