// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package linux has the kinds of the southbound for the Linux kernel: they make the
// values true in one network namespace.
//
//	route/10.1.7.0/24       10.1.7.0/24 via 192.168.16.7 proto 202
//	route/10.1.8.0/24       unreachable 10.1.8.0/24 proto 202            no gateway is known
//	route/10.1.7.0/24       10.1.7.0/24 via 192.168.30.7 dev cadvxlan onlink proto 202
//	                        unreachable 10.1.7.0/24 proto 202            while it is pending
//	route/10.1.7.0/24       10.1.7.0/24 dev cadwg scope link proto 202
//	route/1007/10.1.7.0/24  the same in table 1007, of a custom network
//
//	pod/...                 a pair of veth links: cadXXXXXXXXXXXX here, eth0 in the pod; on both ends an
//	                        address, the other end as a permanent neighbour, and the routes
//	network/blue            blackhole routes at the end of the table of a custom network
//	node                    forwarding for the families of the pods; links of tunnels
//
// A known subnet without a gateway is unreachable, so that packets to it do not leave by
// the default route. A gateway without a tunnel must be on-link: an existing connected route
// must reach it. A route through a tunnel depends on the tunnel's value; until that is made,
// the subnet is unreachable.
//
// # Own and foreign routes
//
// The routes of protocol 202 are own routes, whichever program made them: those of an
// earlier agent are taken over. Their kind changes no other route. If there is a
// foreign route to a destination in the same table, of any metric, its key fails with
// southbound.ErrForeign. All routes to that destination stay, also an own route that was
// there first. A new route is added with NLM_F_EXCL. To change one, their kind appends
// the new route and then removes the old one by its protocol. So there is no moment without
// a route, unless the old one has a form that it does not make and the kernel
// cannot hold both. It also replaces nothing that may have become foreign. A
// foreign route of another metric that appears between the check and the change is noticed
// at the next check only.
//
// A route is correct only while its gateway is on-link on its interface. Values with a
// destination that is not in canonical form, or a gateway of the other family, are invalid.
//
// # The node, tunnels and masquerade
//
//	node        link cadvxlan (VXLAN), or cadwg (WireGuard); forwarding; the rules of AllowForward
//	tunnel/7    bridge fdb: MAC dst 192.168.16.7 self permanent; neighbours: permanent
//	tunnel/7    a WireGuard peer with the node's pod subnets
//	egress      chains egress, egress-ipv4 and egress-ipv6 of the nftables table inet cadastre
//
// The links have the alias cadastre:node. All that is in the table cadastre is ours. The rules
// of AllowForward have the comment cadastre. They are at the end of chain FORWARD of iptables,
// behind all other rules, because an accept in our own table cannot override a drop in another
// one. Without AllowForward, Notes names the firewalls that drop packets.
//
// WireGuard of this process (if the kernel has none) needs /dev/net/tun and works while the
// process runs. Its link and the routes stay behind, so packets are dropped meanwhile and
// do not leave unencrypted.
//
// # Wires
//
// A wire is known by the alias of its host end, "cadastre:" and the key, and while it is made
// by its group and name. Wires are made in three batches of netlink requests, each of which is
// one system call. Create returns when packets pass both ways. Delete detaches a wire: its
// host end is down, and no packet from or to the pod passes. Sweep removes detached links in
// batches. A custom network has a table, and one rule for each wire that is in it.
//
// What another program changes inside of a pod's namespace is not announced. It is found by a
// comparison of all wires every 20 seconds. An MTU or MAC that a chained plugin sets is
// changed back.
//
// The pods' lo is set up by the runtime, with the CNI plugin loopback. IPv6 is turned on for
// a link that gets an IPv6 address.
//
// # Uplinks
//
//	uplink/eni-1            table 228889770: 10.0.1.0/24 dev ens6; default via 10.0.1.1 dev ens6 onlink;
//	                        unreachable default
//	                        rule 1100: lookup main suppress_prefixlength 31 suppress_ifgroup default
//	                        rule 1150: fwmark 0x80/0x80 lookup main; chain uplink-replies of nftables
//	                        rule 1180: to 172.17.0.0/16 lookup main, for each network of other programs
//	uplinkaddress/10.0.1.9  rule 1200: from 10.0.1.9 lookup 228889770; proxy neighbour on ens6
//
// The link is found by its MAC; its name, its addresses and its MTU are not ours. While an
// uplink is not made, the rules of its addresses reject their packets. Proxy neighbours and
// settings are compared every 20 seconds: the kernel does not announce their changes. The
// tables of uplinks are above kv.UplinkTables, which marks the rules and routes in them.
//
// # Announcements
//
//	kernel -- route, nftables --> monitor --> Watch of each kind --> keys of damaged values
//
// One rtnl.Monitor has a socket for links, addresses, neighbours, routes and rules, and one for
// nftables. It decodes an announcement once. Each kind says which of its values the
// announcement damages. If announcements are lost, all values may be damaged.
//
// # Rights
//
//   - the network namespace of the node (hostNetwork), or Options.Namespace;
//   - CAP_NET_ADMIN: all links, addresses, routes, rules, settings and tracked connections;
//   - CAP_SYS_ADMIN: to enter the pods' namespaces, and to make the one in which the
//     removal of tracked connections is tried;
//   - CAP_NET_RAW: to tell the neighbours on an uplink of an address that moves to it. Without it
//     one warning is logged, and they learn it up to a minute later;
//   - the files of the pods' namespaces at the paths that the runtime uses, such as /run/netns,
//     mounted with HostToContainer propagation; for paths such as /proc/1/ns/net the host's
//     processes (hostPID) and CAP_SYS_PTRACE;
//   - /proc/sys/net writable, unless forwarding is on already and IPv6 is not turned off: a
//     mount of the node's /proc/sys/net at the same path is enough.
package linux
