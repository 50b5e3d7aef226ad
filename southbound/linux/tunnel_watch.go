// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
)

// announcementBuffer is the size of the queue of announcements, large enough for those of
// a resync.
const announcementBuffer = 4 << 20

// announcements holds a subscription to changes of the kernel.
type announcements struct {
	protocol int // of netlink
	groups   []uint
	each     func(m syscall.NetlinkMessage)
	lost     func() // some announcements were lost, or came before the subscription
}

// follow calls lost once it is subscribed, and each for all announcements until ctx ends.
func (a announcements) follow(ctx context.Context, within func(func() error) error) error {
	var socket *nl.NetlinkSocket
	err := within(func() (err error) {
		socket, err = nl.Subscribe(a.protocol, a.groups...)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the kernel: %w", err)
	}
	if socket.SetReceiveBufferSize(announcementBuffer, true) != nil {
		_ = socket.SetReceiveBufferSize(announcementBuffer, false) // as much as the system allows
	}
	stop := context.AfterFunc(ctx, socket.Close)
	defer func() {
		if stop() {
			socket.Close()
		}
	}()
	a.lost()
	for {
		messages, from, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			a.lost()
		case err != nil:
			return fmt.Errorf("watch the kernel: %w", err)
		case from.Pid != nl.PidKernel:
		default:
			for _, m := range messages {
				a.each(m)
			}
		}
	}
}

var (
	_ southbound.Watcher = (*nodeDescriptor)(nil)
	_ southbound.Watcher = (*tunnels)(nil)
	_ southbound.Watcher = (*egress)(nil)
)

// Watch calls changed when one of the node's own links, its addresses, or a firewall's
// chain FORWARD change.
func (n *nodeDescriptor) Watch(ctx context.Context, changed func(key string)) error {
	within, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- n.watchFirewalls(within, changed)
	}()
	err := n.watchLinks(within, changed)
	stop()
	return errors.Join(err, <-ended)
}

// watchFirewalls calls changed when a chain FORWARD of nftables changes. The tables of
// iptables-legacy announce nothing: their changes are found by the next resync.
func (n *nodeDescriptor) watchFirewalls(ctx context.Context, changed func(key string)) error {
	return announcements{
		protocol: unix.NETLINK_NETFILTER,
		groups:   []uint{unix.NFNLGRP_NFTABLES},
		lost:     func() { changed(kv.SinkNode) },
		each: func(m syscall.NetlinkMessage) {
			attribute := uint16(unix.NFTA_RULE_CHAIN)
			switch m.Header.Type & 0xff {
			case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
				attribute = unix.NFTA_CHAIN_NAME
			case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
			default:
				return
			}
			if nftAttribute(m, attribute) == forwardChain {
				changed(kv.SinkNode)
			}
		},
	}.follow(ctx, n.host.within)
}

func (n *nodeDescriptor) watchLinks(ctx context.Context, changed func(key string)) error {
	ours := map[int]bool{} // indexes of the links
	links, err := n.host.links()
	if err != nil {
		return err
	}
	for _, l := range links {
		ours[l.Attrs().Index] = isNodeLink(l.Attrs().Name)
	}
	return announcements{
		protocol: unix.NETLINK_ROUTE,
		groups:   []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR},
		lost:     func() { changed(kv.SinkNode) },
		each: func(m syscall.NetlinkMessage) {
			index, relevant := 0, false
			switch m.Header.Type {
			case unix.RTM_NEWLINK, unix.RTM_DELLINK:
				var name string
				index, name = linkOf(m.Data)
				ours[index] = isNodeLink(name)
				relevant = ours[index]
				if m.Header.Type == unix.RTM_DELLINK {
					delete(ours, index)
				}
			case unix.RTM_NEWADDR, unix.RTM_DELADDR:
				if len(m.Data) >= unix.SizeofIfAddrmsg {
					relevant = ours[int(nl.DeserializeIfAddrmsg(m.Data).Index)]
				}
			}
			if relevant {
				changed(kv.SinkNode)
			}
		},
	}.follow(ctx, n.host.within)
}

// isNodeLink reports whether a link belongs to the value "node".
func isNodeLink(name string) bool { return name == vxlanName || name == wireguardName }

// linkOf returns the index and the name of the link of an announcement.
func linkOf(data []byte) (index int, name string) {
	if len(data) < unix.SizeofIfInfomsg {
		return 0, ""
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return 0, ""
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_IFNAME {
			name = strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return int(nl.DeserializeIfInfomsg(data).Index), name
}

// Watch calls changed for each tunnel whose forwarding entry or neighbours another program
// has changed. The peers of WireGuard can be changed by this process alone, or go with
// their link.
func (t *tunnels) Watch(ctx context.Context, changed func(key string)) error {
	peers, _ := t.peers[kv.Transport_VXLAN].(*vxlanPeers)
	return announcements{
		protocol: unix.NETLINK_ROUTE,
		groups:   []uint{unix.RTNLGRP_NEIGH},
		lost:     func() { changed("") },
		each: func(m syscall.NetlinkMessage) {
			gone := m.Header.Type == unix.RTM_DELNEIGH
			if peers == nil || !gone && m.Header.Type != unix.RTM_NEWNEIGH || len(m.Data) < unix.SizeofNdMsg {
				return
			}
			entry, err := netlink.NeighDeserialize(m.Data)
			if err != nil {
				return
			}
			for _, p := range append(t.networks.all(), peers) {
				if key := p.damaged(entry, gone); key != "" {
					changed(key)
				}
			}
		},
	}.follow(ctx, t.host.within)
}

// damaged returns the key of the value whose entry has changed, "" if there is none.
func (v *vxlanPeers) damaged(entry *netlink.Neigh, gone bool) string {
	ip, ok := netip.AddrFromSlice(entry.IP)
	if !ok {
		return ""
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if entry.LinkIndex != v.at {
		return ""
	}
	if entry.Family == unix.AF_BRIDGE {
		owned, known := v.byMAC[entry.HardwareAddr.String()]
		if known && (gone || owned.dst != ip.Unmap()) {
			return owned.key
		}
		return ""
	}
	owned, known := v.byAddr[ip.Unmap()]
	if known && (gone || entry.State&netlink.NUD_PERMANENT == 0 || !sameMAC(owned.mac, entry.HardwareAddr)) {
		return owned.key
	}
	return ""
}

func sameMAC(text string, mac net.HardwareAddr) bool { return text == mac.String() }

// Watch calls changed when our table changes.
func (e *egress) Watch(ctx context.Context, changed func(key string)) error {
	return announcements{
		protocol: unix.NETLINK_NETFILTER,
		groups:   []uint{unix.NFNLGRP_NFTABLES},
		lost:     func() { changed(kv.SinkEgress) },
		each: func(m syscall.NetlinkMessage) {
			// the first attribute of tables, chains, rules and sets is the name of the table
			if nftAttribute(m, unix.NFTA_TABLE_NAME) == nftTable {
				changed(kv.SinkEgress)
			}
		},
	}.follow(ctx, e.nft.within)
}

// nftAttribute returns a text of an announcement of nftables.
func nftAttribute(m syscall.NetlinkMessage, attribute uint16) string {
	const header = 4 // struct nfgenmsg
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < header {
		return ""
	}
	attrs, err := nl.ParseRouteAttr(m.Data[header:])
	if err != nil {
		return ""
	}
	for _, a := range attrs {
		if a.Attr.Type == attribute {
			return strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return ""
}
