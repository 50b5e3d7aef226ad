// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// Run makes the routes to other nodes whose gateway comes onto a link, until ctx ends. The
// kernel has removed such a route if it was there before: Ligato does not see that.
func (s *Sink) Run(ctx context.Context) error {
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return fmt.Errorf("watch the node's addresses: %w", err)
	}
	for u := range updates { // until the subscription has ended, with ctx
		if !u.NewAddr {
			continue
		}
		if err := s.remake(ctx, u.LinkAddress); err != nil && ctx.Err() == nil {
			s.log.Warn("routes to other nodes are not made", "address", u.LinkAddress.String(), "error", err)
		}
	}
	if ctx.Err() == nil {
		return errors.New("watch the node's addresses: the kernel has ended the notifications")
	}
	return nil
}

// remake compares everything with the kernel if a route to another node has its gateway in
// the network of an address of this node.
func (s *Sink) remake(ctx context.Context, address net.IPNet) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	txn := controller.Transaction{Method: controller.DownstreamResync, Retry: s.retry}
	leads := false
	for key, it := range s.wanted {
		txn.Values = append(txn.Values, controller.Value{Key: key, Message: it.message})
		if r, ok := it.message.(*kv.NodeRoute); ok {
			gateway := net.ParseIP(r.GetGateway())
			leads = leads || gateway != nil && !gateway.Equal(address.IP) && address.Contains(gateway)
		}
	}
	if !leads {
		return nil
	}
	var failed controller.ValueErrors
	s.wanted, failed = s.plan(txn)
	return joined(failed, s.resync(ctx, "an address of this node has come", s.retry))
}
