// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// slowComparison is the period after which values are compared whose changes are not all
// announced, such as those inside of the pods' namespaces.
const slowComparison = 20 * time.Second

// announcement is a change of the node's network namespace that the kernel has announced.
type announcement struct {
	kind   uint16   // such as RTM_DELROUTE; those of nftables have the number of its subsystem
	link   hostLink // of a link; of an address the index and the name of its link
	object parsed   // an address, a neighbour, a route or a rule
	usual  bool     // a value may have such an object

	table, chain string // of nftables
}

// monitor passes the announcements of the node's network namespace to all descriptors.
type monitor struct {
	*rtnl.Monitor[announcement]
	after func(time.Duration) <-chan time.Time
}

func newMonitor(namespace string, after func(time.Duration) <-chan time.Time) *monitor {
	names := linkNames{}
	return &monitor{rtnl.NewMonitor(namespace,
		rtnl.Source[announcement]{
			Family: unix.NETLINK_ROUTE,
			Groups: []int{
				unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
				unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
			},
			Begin:  func() error { return names.read(namespace) },
			Decode: names.decode,
		},
		rtnl.Source[announcement]{
			Family: unix.NETLINK_NETFILTER,
			Groups: []int{unix.NFNLGRP_NFTABLES},
			Decode: decodeNFT,
		},
	), after}
}

// watch says which of the announcements damage the values of a kind.
type watch struct {
	families []int // of netlink; none: NETLINK_ROUTE
	damaged  func(announcement) (key string, is bool)
	all      string // the key that stands for all values
	slowly   bool   // all values are also compared after each slowComparison
	late     bool   // they are not compared at the start
}

// follow calls changed for all values at the start and after a loss of announcements, and for
// each damaged value, until ctx ends.
func (m *monitor) follow(ctx context.Context, changed func(key string), w watch) error {
	if len(w.families) == 0 {
		w.families = []int{unix.NETLINK_ROUTE}
	}
	follower, err := m.Follow(w.families...)
	if err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	defer follower.Close()
	if !w.late {
		changed(w.all)
	}
	var due <-chan time.Time
	if w.slowly {
		due = m.after(slowComparison)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due:
			due = m.after(slowComparison)
			changed(w.all)
		case news := <-follower.News:
			switch key, is := w.damaged(news.Announcement); {
			case errors.Is(news.Err, rtnl.ErrOverrun):
				changed(w.all)
			case news.Err != nil:
				return fmt.Errorf("watch the kernel: %w", news.Err)
			case is:
				changed(key)
			}
		}
	}
}

// linkNames holds the names of links by index: an announcement of an address has the index alone.
type linkNames map[uint32]string

// read reads the names of all links.
func (n linkNames) read(namespace string) error {
	return rtnl.Within(namespace, func() error {
		s, err := rtnl.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		links, err := listLinks(s, "")
		clear(n)
		for _, l := range links {
			n[l.index] = l.name
		}
		return err
	})
}

// decode reads an announcement of links, addresses, neighbours, routes or rules.
func (n linkNames) decode(kind uint16, body []byte) (a announcement, ok bool) {
	if len(body) == 0 {
		return a, false
	}
	a.kind = kind
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		a.link, ok = parseLink(body)
		n[a.link.index] = a.link.name
		if kind == unix.RTM_DELLINK {
			delete(n, a.link.index)
		}
		return a, ok
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a.object, a.usual = parseAddress(body)
		a.link.linkID = linkID{a.object.index, n[a.object.index]}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		a.object, a.usual = parseNeighbour(body)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		a.object, a.usual = parseRoute(body)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		a.object, a.usual = parseRule(body)
	default:
		return a, false
	}
	return a, true
}

// decodeNFT reads an announcement of nftables. The first attribute of tables, chains, rules and
// sets is the name of the table.
func decodeNFT(kind uint16, body []byte) (a announcement, ok bool) {
	const header = 4 // struct nfgenmsg
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < header {
		return a, false
	}
	a.kind = kind
	chain := uint16(0)
	switch kind & 0xff {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = unix.NFTA_RULE_CHAIN
	}
	rtnl.Attributes(body[header:], func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_TABLE_NAME:
			a.table = rtnl.Text(v)
		case chain:
			a.chain = rtnl.Text(v)
		}
	})
	return a, true
}
