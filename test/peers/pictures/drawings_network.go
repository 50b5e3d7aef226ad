// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// podNetwork shows two nodes with their pods, and the transports between them.
func podNetwork() drawing {
	node := func(x int, name, first, second, subnet string) []shape {
		return []shape{
			frame{x, 50, 300, 230, name},
			box{x + 16, 82, 128, 48, "blue", []string{"pod", first}},
			box{x + 156, 82, 128, 48, "blue", []string{"pod", second}},
			arrow{points: []int{x + 80, 130, x + 80, 168}, label: "veth", at: [2]int{x + 58, 152}},
			arrow{points: []int{x + 220, 130, x + 220, 168}, label: "veth", at: [2]int{x + 198, 152}},
			box{x + 16, 170, 268, 42, "plain", []string{"the node's routing table", "one route a pod, no bridge"}},
			arrow{points: []int{x + 150, 212, x + 150, 228}},
			box{x + 16, 230, 268, 38, "green", []string{"block " + subnet}},
		}
	}
	d := drawing{
		title:       "The network of the pods",
		width:       860,
		height:      440,
		description: "Each pod has a veth pair to the routing table of its node. Between nodes the transport is nodeip, hostgw, vxlan or wireguard.",
		shapes:      []shape{text{20, 30, "start", "h", "The network of the pods (dataplane: linux)"}},
	}
	d.shapes = append(d.shapes, node(20, "node 5, 192.168.16.5", "10.1.5.2", "10.1.5.3", "10.1.5.0/24")...)
	d.shapes = append(d.shapes, node(540, "node 8, 192.168.16.8", "10.1.8.2", "10.1.8.3", "10.1.8.0/24")...)
	d.shapes = append(d.shapes,
		box{340, 96, 180, 62, "yellow", []string{"transport", "10.1.8.0/24 via node 8,", "10.1.5.0/24 via node 5"}},
		arrow{points: []int{320, 128, 338, 128}}, arrow{points: []int{520, 128, 538, 128}},
		box{20, 308, 196, 62, "plain", []string{"nodeip", "a route via the underlay", "address: one segment"}},
		box{228, 308, 196, 62, "plain", []string{"hostgw", "a route via the address in", "nodeInterconnectCIDR"}},
		box{436, 308, 196, 62, "plain", []string{"vxlan", "UDP 4789 between the", "underlay addresses"}},
		box{644, 308, 196, 62, "plain", []string{"wireguard", "encrypted, keys from the", "node records"}})
	d.shapes = append(d.shapes, lines(
		20,
		398,
		"start",
		"s m",
		"The kernel forwards: a killed agent loses no packet, except with WireGuard in the agent (if the kernel has none).",
		"Blocks of nodes that have not published an address yet are refused, and do not leave by the default route.",
	)...)
	return d
}

// watermarks shows how the addresses of a node follow its pods.
func watermarks() drawing {
	d := drawing{
		title:  "Watermarks of a node",
		width:  840,
		height: 420,
		description: "The addresses that a node has follow its pods: they grow in blocks as soon as fewer than preAllocate are free, and " +
			"shrink only when too many have been free for the release delay, and the agent agrees.",
		shapes: []shape{
			text{20, 30, "start", "h", "Watermarks: addresses that follow the pods"},
			arrow{points: []int{60, 300, 800, 300}},
			text{790, 318, "end", "s m", "time"},
			arrow{points: []int{60, 300, 60, 56}},
			text{68, 66, "start", "s m", "addresses of the node"},
			curve{[]int{60, 280, 130, 280, 180, 240, 230, 200, 290, 150, 340, 150, 390, 220, 440, 250, 800, 250}, 2},
			curve{
				[]int{
					60,
					236,
					150,
					236,
					150,
					192,
					200,
					192,
					200,
					148,
					255,
					148,
					255,
					104,
					590,
					104,
					590,
					192,
					800,
					192,
				},
				1,
			},
			text{700, 182, "middle", "b", "assigned"},
			text{700, 268, "middle", "b", "in use and cooling"},
			arrow{points: []int{100, 280, 100, 240}},
			text{108, 264, "start", "s", "preAllocate (8) free"},
			text{310, 96, "middle", "s", "too few are free: a block at once"},
			arrow{
				points: []int{395, 128, 588, 128},
				dashed: true,
				label:  "too many are free: 3 min",
				at:     [2]int{492, 122},
			},
			text{600, 150, "start", "s", "the agent agrees: released"},
		},
	}
	d.shapes = append(d.shapes, lines(
		20,
		346,
		"start",
		"s m",
		"A release is a handshake: the operator marks a block, the agent drains it and answers; then the operator releases it.",
		"Only a block without leases goes; addresses that cool count as used. A demand that flaps faster than the delay moves nothing.",
		"Releases are off by default: --release-excess-ips.",
	)...)
	return d
}
