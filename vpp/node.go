// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// node returns the kind of the value "node". It remembers the value for the others, and closes
// what all have in common.
func (s *shared) node() southbound.Kind[value] {
	k := s.nodeKind()
	s.own(k)
	all := k.of()
	all.Retrieve = func(ctx context.Context, wanted []southbound.Wanted[value]) ([]controller.Value, error) {
		for _, v := range wanted {
			if m, ok := v.Message.(*kv.NodeNetwork); ok {
				s.planner.node.set(m)
			}
		}
		return k.retrieve(ctx, wanted)
	}
	all.Close = s.close
	return all
}

// nodeKind returns what the kind of the node does.
func (s *shared) nodeKind() *kind {
	return &kind{
		shared: s,
		name:   "vpp node",
		prefix: kv.SinkNode,
		roles:  roles(roleMain, roleHost, roleBVI, roleGateway, roleDomain),
		routes: func(at place, p path, role string) bool {
			return at.dst.Bits() == 0 && at.table == 0 || s.ofHost(at, p, role)
		},
		plan: func(_ string, value proto.Message, live bool) (*plan, error) {
			m, err := message[*kv.NodeNetwork](value)
			if err != nil {
				return nil, err
			}
			p, err := s.planner.nodePlan(m)
			if err != nil || !live {
				return p, err
			}
			return p, s.findHosts(p)
		},
		before: func(_ context.Context, _ string, _, value proto.Message) error {
			m, err := message[*kv.NodeNetwork](value)
			if err != nil {
				return err
			}
			s.planner.node.set(m)
			if s.planner.hasMain() {
				if err := s.kernel.Receive(s.opt.Main.Name); err != nil {
					return fmt.Errorf("the network interface of VPP: %w", err)
				}
			}
			return s.kernel.makeHostLink(m)
		},
		ready: func(value proto.Message) (bool, error) {
			m, _ := value.(*kv.NodeNetwork)
			if s.planner.hasMain() {
				if ready, err := s.kernel.Receives(s.opt.Main.Name); err != nil || !ready {
					return false, err
				}
			}
			return s.kernel.hostLinkComplete(m)
		},
		gone: func(context.Context, string, proto.Message) error { return s.kernel.Remove(hostLink(nil)) },
		strays: func(wanted []southbound.Wanted[value]) (func() error, error) {
			if len(wanted) > 0 {
				return nil, nil
			}
			is, err := s.kernel.Has(hostLink(nil))
			if err != nil || !is {
				return nil, err
			}
			return func() error { return s.kernel.Remove(hostLink(nil)) }, nil
		},
	}
}

// findHosts sets the indexes of the kernel's links that VPP reads.
func (s *shared) findHosts(p *plan) (err error) {
	for _, l := range p.links {
		if l.kind != packetLink {
			continue
		}
		if l.hostID, err = s.kernel.Index(l.hostName); err != nil {
			return err
		}
	}
	return nil
}

// hostRoutes returns the destinations that the node's kernel reaches through VPP, of a network
// that the main table leads to.
func hostRoutes(_ string, value proto.Message) ([]netip.Prefix, error) {
	m, _ := value.(*kv.Network)
	if m.GetVni() != 0 {
		return nil, nil
	}
	return readPrefixes("subnets", m.GetSubnets())
}

// strayHostRoutes returns a function that removes the kernel's routes of no wanted network.
func (s *shared) strayHostRoutes(wanted []southbound.Wanted[value]) (func() error, error) {
	have, err := s.kernel.Routes(linkName)
	if err != nil {
		return nil, err
	}
	for _, v := range wanted {
		// A value that cannot be read has no routes.
		dst, _ := hostRoutes(v.Key, v.Message)
		for _, p := range dst {
			delete(have, p.Masked())
		}
	}
	if len(have) == 0 {
		return nil, nil
	}
	strays := slices.Collect(maps.Keys(have))
	return func() error { return s.kernel.RemoveRoutes(linkName, strays) }, nil
}

// hostRoutesComplete reports whether the kernel has the routes of a network.
func (s *shared) hostRoutesComplete(value proto.Message) (bool, error) {
	want, err := hostRoutes("", value)
	if err != nil || len(want) == 0 || len(s.planner.node.get().GetHostInterconnectVpp()) == 0 {
		return err == nil, err
	}
	have, err := s.kernel.Routes(linkName)
	if err != nil {
		return false, err
	}
	vpp, err := gateways(s.planner.node.get())
	if err != nil {
		return false, err
	}
	for _, p := range want {
		i := slices.IndexFunc(vpp, func(a netip.Addr) bool { return a.Is4() == p.Addr().Is4() })
		if i >= 0 && have[p.Masked()] != vpp[i] {
			return false, nil
		}
	}
	return true, nil
}

// without returns the prefixes of x that y does not have.
func without(x, y []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(x), func(p netip.Prefix) bool { return slices.Contains(y, p) })
}

// egressNotes tells what VPP does not translate, or more than it should.
func (s *shared) egressNotes() []string {
	if s.planner.node.get().GetTransport() != kv.Transport_DIRECT || !s.planner.hasMain() {
		return nil
	}
	return []string{fmt.Sprintf(
		"VPP translates all that leaves by %s: without VXLAN, connections from pods to pods of other nodes "+
			"arrive with this node's address; set transport: vxlan, or masquerade: false", s.opt.Main.Name,
	)}
}

// ofHost reports whether a route is to the kernel's end of the VPP-host link, or to what is
// behind it. Without an interface of the underlay, routes to other nodes lead there too.
func (s *shared) ofHost(at place, p path, role string) bool {
	if role != roleHost {
		return false
	}
	ends, err := readAddrs("host_interconnect_linux", s.planner.node.get().GetHostInterconnectLinux())
	return s.planner.hasMain() || at.dst.IsSingleIP() && p.via == at.dst.Addr() ||
		err == nil && slices.Contains(ends, p.via)
}
