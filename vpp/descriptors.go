// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/southbound/linux"
)

func (opt Options) withDefaults() Options {
	opt.Socket = cmp.Or(opt.Socket, DefaultSocket)
	if opt.Open == nil {
		socket := opt.Socket
		opt.Open = func(ctx context.Context) (Transport, error) { return openSocket(ctx, socket) }
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.After == nil {
		opt.After = time.After
	}
	return opt
}

// Descriptors returns all descriptors of a node in the order in which a key is offered to
// them. They are closed by the scheduler. VPP need not run yet.
func Descriptors(opt Options) ([]*southbound.Descriptor, error) {
	opt = opt.withDefaults()
	host, err := linux.OpenSwitch(linux.Options{Namespace: opt.Namespace})
	if err != nil {
		return nil, err
	}
	wires, err := linux.Wires(linux.Options{
		Namespace:    opt.Namespace,
		BareHostEnds: true,
		Log:          opt.Log,
		Now:          opt.Now,
		After:        opt.After,
	})
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	s := &shared{
		opt:      opt,
		client:   newClient(opt),
		kernel:   &kernel{host},
		wires:    wires,
		planner:  planner{opt: opt},
		watchers: map[*kind]func(string){},
		roleKind: map[string]*kind{},
	}
	all := []*southbound.Descriptor{s.node().Descriptor(), s.pods().Descriptor()}
	for _, k := range []*kind{s.network(), s.networkLink(), s.tunnel(), s.route(), s.egress()} {
		s.own(k)
		all = append(all, k.of().Descriptor())
	}
	return all, nil
}

// own notes the roles of a kind.
func (s *shared) own(k *kind) {
	for role := range k.roles {
		s.roleKind[role] = k
	}
}

func roles(names ...string) map[string]bool {
	all := map[string]bool{}
	for _, n := range names {
		all[n] = true
	}
	return all
}

// network returns the descriptor of networks with a table of their own.
func (s *shared) network() *kind {
	return &kind{
		shared: s,
		name:   "vpp network",
		prefix: kv.SinkNetworkPrefix,
		roles:  roles(roleNetworkGateway, roleTable),
		routes: func(at place, p path, _ string) bool {
			nowhere := !p.via.IsValid() && !p.other && !p.unreachable
			return nowhere && at.dst.Bits() > 0 || at.dst.Bits() == 0 && at.table != 0
		},
		plan: func(key string, value proto.Message, _ bool) (*plan, error) {
			m, err := message[*kv.Network](value)
			if err != nil {
				return nil, err
			}
			return s.planner.networkPlan(key, m)
		},
		dependencies: func(proto.Message) []string { return []string{kv.SinkNode} },
		before: func(_ context.Context, key string, was, value proto.Message) error {
			before, err := hostRoutes(key, was)
			if err != nil {
				return err
			}
			after, err := hostRoutes(key, value)
			if err != nil {
				return err
			}
			return errors.Join(
				s.kernel.RemoveRoutes(linkName, without(before, after)),
				s.kernel.setRoutes(after, s.planner.node.get()),
			)
		},
		ready: func(value proto.Message) (bool, error) {
			return s.hostRoutesComplete(value)
		},
		gone: func(_ context.Context, key string, value proto.Message) error {
			dst, err := hostRoutes(key, value)
			if err != nil {
				return err
			}
			return s.kernel.RemoveRoutes(linkName, dst)
		},
		strays: s.strayHostRoutes,
	}
}

// networkLink returns the descriptor of the tunnels' bridge domains of networks.
func (s *shared) networkLink() *kind {
	return &kind{
		shared: s,
		name:   "vpp network link",
		prefix: kv.SinkLinkPrefix,
		roles:  roles(roleLinkBVI, roleLinkDomain),
		plan: func(key string, value proto.Message, _ bool) (*plan, error) {
			m, err := message[*kv.NetworkLink](value)
			if err != nil {
				return nil, err
			}
			return s.planner.linkPlan(key, m)
		},
		dependencies: func(value proto.Message) []string {
			m, _ := value.(*kv.NetworkLink)
			return []string{kv.SinkNode, kv.SinkNetworkPrefix + m.GetNetwork()}
		},
	}
}

// tunnel returns the descriptor of tunnels.
func (s *shared) tunnel() *kind {
	return &kind{
		shared: s,
		name:   "vpp tunnel",
		prefix: kv.SinkTunnelPrefix,
		roles:  roles(roleTunnel),
		plan: func(key string, value proto.Message, live bool) (*plan, error) {
			m, err := message[*kv.NodeTunnel](value)
			if err != nil {
				return nil, err
			}
			return s.planner.tunnelPlan(key, m, live)
		},
		dependencies: func(value proto.Message) []string {
			m, _ := value.(*kv.NodeTunnel)
			if m.GetNetwork() != "" {
				return []string{kv.SinkNode, kv.SinkLinkPrefix + m.GetNetwork()}
			}
			return []string{kv.SinkNode}
		},
	}
}

// route returns the descriptor of routes to the pods of other nodes.
func (s *shared) route() *kind {
	return &kind{
		shared: s,
		name:   "vpp route",
		prefix: kv.SinkRoutePrefix,
		routes: func(at place, p path, role string) bool {
			return p.via.IsValid() && at.dst.Bits() > 0 && !ofPod(at, p, role) && !s.ofHost(at, p, role) ||
				p.unreachable || p.other
		},
		plan: func(key string, value proto.Message, _ bool) (*plan, error) {
			m, err := message[*kv.NodeRoute](value)
			if err != nil {
				return nil, err
			}
			return s.planner.routePlan(key, m)
		},
		dependencies: func(value proto.Message) []string {
			m, _ := value.(*kv.NodeRoute)
			if m.GetTransport() != kv.Transport_DIRECT {
				return []string{kv.SinkTunnelKey(m.GetNodeId(), m.GetNetwork())}
			}
			return []string{kv.SinkNode}
		},
	}
}

// egress returns the descriptor of the translation of what leaves the cluster.
func (s *shared) egress() *kind {
	return &kind{
		shared:     s,
		name:       "vpp egress",
		prefix:     kv.SinkEgress,
		translates: true,
		plan: func(_ string, value proto.Message, _ bool) (*plan, error) {
			m, err := message[*kv.Egress](value)
			if err != nil {
				return nil, err
			}
			return s.planner.egressPlan(m)
		},
		dependencies: func(proto.Message) []string { return []string{kv.SinkNode} },
		noter:        s.egressNotes,
	}
}
