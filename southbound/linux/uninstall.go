// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// Uninstall removes all objects of ours from the node, whichever process has made them:
// links, routes, rules, our nftables table and the rules of allowForward. removed describes
// each. Settings such as forwarding stay. Pods whose wires are removed have no network any
// more.
func Uninstall(ctx context.Context, opt Options) (removed []string, err error) {
	removed, err = uninstallOverlay(ctx, opt)
	if err != nil {
		return removed, fmt.Errorf("uninstall: %w", err)
	}
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return removed, fmt.Errorf("uninstall: %w", err)
	}
	s, err := ns.Dial()
	if err = errors.Join(err, ns.Close()); err != nil {
		return removed, fmt.Errorf("uninstall: %w", err)
	}
	defer func() { _ = s.Close() }()
	removeTable := func(context.Context, *rtnl.Socket) ([]string, error) { return removeTable(opt.Namespace) }
	for _, step := range []func(context.Context, *rtnl.Socket) ([]string, error){
		removeRules,
		removeProxies,
		removeRoutes,
		removeLinks,
		removeTable,
	} {
		part, err := step(ctx, s)
		removed = append(removed, part...)
		if err != nil {
			return removed, fmt.Errorf("uninstall: %w", err)
		}
	}
	return removed, nil
}

func removeRules(_ context.Context, s *rtnl.Socket) (removed []string, err error) {
	rules, err := listRules(s)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if err := s.Run([]*rtnl.Request{r.removal()}); err != nil {
			return removed, err
		}
		text := r.String()
		if r.name != "" {
			text += " of link " + r.name
		}
		removed = append(removed, text)
	}
	return removed, nil
}

func removeProxies(_ context.Context, s *rtnl.Socket) (removed []string, err error) {
	proxies, err := listProxies(s, unix.AF_INET, unix.AF_INET6)
	if err != nil {
		return nil, err
	}
	for _, p := range proxies {
		if !p.ours {
			continue
		}
		if err := s.Run([]*rtnl.Request{p.remove(linkID{index: p.index})}); err != nil {
			return removed, err
		}
		removed = append(removed, p.String())
	}
	return removed, nil
}

// removeRoutes removes the routes of our protocol in all tables, of any form.
func removeRoutes(ctx context.Context, s *rtnl.Socket) (removed []string, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var all []*rtnl.Request
		filter := make(rtnl.Message, unix.SizeofRtMsg)
		filter[0], filter[5] = family, ownProtocol
		err := s.Dump("routes", unix.RTM_GETROUTE, filter, func() { all = nil }, func(b []byte) {
			if p, ok := parseRoute(b); ok && p.ours {
				all = append(all, &rtnl.Request{
					What:  p.String(),
					Kind:  unix.RTM_DELROUTE,
					Body:  slices.Clone(b),
					Allow: []unix.Errno{unix.ESRCH},
				})
			}
		})
		if err != nil {
			return removed, err
		}
		for _, r := range all {
			if err := context.Cause(ctx); err != nil {
				return removed, err
			}
			what := r.What
			r.What = "remove " + what
			if err := s.Run([]*rtnl.Request{r}); err != nil {
				return removed, err
			}
			removed = append(removed, what)
		}
	}
	return removed, nil
}

func removeLinks(ctx context.Context, s *rtnl.Socket) (removed []string, err error) {
	all, err := listLinks(s, "")
	if err != nil {
		return nil, err
	}
	var ours []hostLink
	for _, l := range all {
		if strings.HasPrefix(l.alias, aliasPrefix) || l.ours() {
			ours = append(ours, l)
		}
	}
	for part := range slices.Chunk(ours, sweepBatch) {
		if err := context.Cause(ctx); err != nil {
			return removed, err
		}
		if err := removeBatch(s, part, all); err != nil {
			return removed, err
		}
		for _, l := range part {
			removed = append(removed, fmt.Sprintf("link %s (%s)", l.name, strings.TrimPrefix(l.alias, aliasPrefix)))
		}
	}
	return removed, nil
}

// removeTable removes our table of nftables, with all that it has.
func removeTable(namespace string) (removed []string, err error) {
	n, err := openNFT(namespace)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	c, err := n.conn()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list the tables of nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name != nftTable {
			continue
		}
		c.DelTable(t)
		if err := c.Flush(); err != nil {
			return nil, fmt.Errorf("remove table %s of nftables: %w", t.Name, err)
		}
		removed = append(removed, fmt.Sprintf("table inet %s of nftables", t.Name))
	}
	return removed, nil
}
