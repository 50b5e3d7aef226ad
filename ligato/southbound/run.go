// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/controller"
)

// Run makes pending routes when an address of this node comes, until ctx ends.
func (s *Sink) Run(ctx context.Context) error {
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return fmt.Errorf("watch the node's addresses: %w", err)
	}
	for {
		select {
		case _, ok := <-updates:
			if !ok && ctx.Err() == nil {
				return errors.New("watch the node's addresses: the kernel has ended the notifications")
			}
			if !ok {
				return nil
			}
			if err := s.makePending(ctx); err != nil {
				s.log.Warn("routes that were pending are not made", "error", err)
			}
		case <-ctx.Done():
			for range updates { // until the subscription has ended
			}
			return nil
		}
	}
}

// makePending makes the routes whose gateway is on a link by now.
func (s *Sink) makePending(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	txn := controller.Transaction{Method: controller.Update, Description: "an address of this node has changed"}
	before := s.wanted
	for key, it := range before {
		if it.pending == "" || hasEnded(it.message) {
			continue
		}
		if _, pending, err := s.translate(key, it.message); err == nil && pending == "" {
			txn.Values = append(txn.Values, controller.Value{Key: key, Message: it.message})
		}
	}
	if len(txn.Values) == 0 {
		return nil
	}
	s.wanted, _ = s.plan(txn)
	return s.update(ctx, before, txn)
}
