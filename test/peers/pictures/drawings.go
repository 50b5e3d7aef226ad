// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// drawings returns the drawings by the names of their files.
func drawings() map[string]drawing {
	return map[string]drawing{
		"images/who-assigns-my-ip.svg": whoAssigns(),
		"images/pool-block-lease.svg":  poolBlockLease(),
		"images/lease-states.svg":      leaseStates(),
		"images/node-id.svg":           nodeID(),
		"images/event-loop.svg":        eventLoop(),
		"images/group-commit.svg":      groupCommit(),
		"images/witnesses.svg":         witnesses(),
		"images/network.svg":           podNetwork(),
		"images/watermarks.svg":        watermarks(),
	}
}

// whoAssigns shows the way from a request to a durable address, and for each mode the
// component that decides the blocks of a node.
func whoAssigns() drawing {
	sources := []box{
		{
			20,
			84,
			172,
			104,
			"blue",
			[]string{
				"podBlocks: nodeid",
				"the node ID decides:",
				"claimed by the agent in",
				"the cluster store;",
				"the block is arithmetic",
			},
		},
		{
			204,
			84,
			172,
			104,
			"green",
			[]string{
				"podBlocks: podcidr",
				"Node.spec.podCIDRs",
				"decides: cadastre-operator",
				"or another controller,",
				"one of them",
			},
		},
		{
			388,
			84,
			184,
			104,
			"yellow",
			[]string{
				"podBlocks: netresource",
				"the operator decides:",
				"blocks of an AddressPool,",
				"or addresses of a cloud,",
				"in the NetResourceSet",
			},
		},
		{
			584,
			84,
			172,
			104,
			"violet",
			[]string{
				"podBlocks: interfaces",
				"the cloud decides: the",
				"agent asks EC2 or Neutron",
				"for addresses of its",
				"machine's interfaces",
			},
		},
		{
			768,
			84,
			172,
			104,
			"plain",
			[]string{"podBlocks: static", "the administrator", "decides: staticPodCIDRs", "of contiv.conf"},
		},
	}
	d := drawing{
		title:  "Which component decides a pod's address",
		width:  960,
		height: 560,
		description: "The mode podBlocks selects the component that decides which blocks a node has: the node ID, Node.spec.podCIDRs, " +
			"the operator, the cloud, or the administrator. The ledger of the node's agent then picks the address, commits it to disk, " +
			"the data plane makes the interface, and the runtime is answered.",
	}
	d.shapes = append(d.shapes,
		text{20, 30, "start", "h", "Which component decides a pod's address"},
		text{20, 64, "start", "b", "First: which blocks may this node allocate from? (once per node, before any pod)"})
	for _, b := range sources {
		d.shapes = append(d.shapes, b, arrow{points: []int{b.x + b.w/2, 188, b.x + b.w/2, 230}})
	}
	d.shapes = append(
		d.shapes,
		box{
			20,
			232,
			920,
			44,
			"plain",
			[]string{
				"blocks of this node, such as 10.1.5.0/24",
				"no two nodes have one: by the node ID, a claim in the cluster store, the NetResourceSet, or the cloud",
			},
		},
		text{20, 310, "start", "b", "Then: which address of them? (for each pod)"},
		box{20, 330, 150, 64, "plain", []string{"kubelet, containerd", "a pod's sandbox"}},
		arrow{points: []int{170, 362, 228, 362}, label: "1 ADD", at: [2]int{199, 352}},
		box{230, 330, 130, 64, "plain", []string{"cadastre-cni", "keeps no state"}},
		arrow{points: []int{360, 362, 428, 362}, label: "2 socket", at: [2]int{394, 352}},
		box{430, 330, 180, 64, "plain", []string{"agent: event loop", "AddPod, in order"}},
		arrow{points: []int{610, 362, 698, 362}, label: "3 claim", at: [2]int{654, 352}},
		box{
			700,
			324,
			240,
			76,
			"green",
			[]string{
				"ledger: decides the address",
				"the next free one of an active",
				"block; never reserved, excluded,",
				"cooling or quarantined",
			},
		},
		arrow{points: []int{820, 276, 820, 322}},
		arrow{points: []int{820, 400, 820, 448}, label: "4 commit", at: [2]int{854, 428}},
		box{
			700,
			450,
			240,
			64,
			"yellow",
			[]string{"cadastre.db", "the lease is on disk (fdatasync)", "before any answer"},
		},
		arrow{points: []int{700, 482, 612, 482}, label: "5 durable", at: [2]int{656, 472}},
		box{
			430,
			450,
			180,
			64,
			"plain",
			[]string{"data plane", "the pod's interface, or the", "main CNI plugin makes it"},
		},
		arrow{
			points: []int{430, 482, 95, 482, 95, 396},
			label:  "6 answer: address, gateway, routes",
			at:     [2]int{262, 472},
		},
		text{
			20,
			545,
			"start",
			"s m",
			"A failure in 3, 4 or 5 undoes the event: the address is free again, and the runtime gets the reason.",
		},
	)
	return d
}

// blockCells returns the addresses of a part of a block, with their states.
func blockCells(x, y int) []shape {
	fills := map[byte]string{'r': "plain", 'h': "blue", 'c': "yellow", 'q': "red", 'x': "violet", '.': "bg"}
	rows := []string{"rihhhhchhh", "hh.hhqhh..", "hccx......", "........ir"}
	names := []string{".0", ".1", ".254", ".255"}
	var shapes []shape
	for j, row := range rows {
		for i := range row {
			state := row[i]
			label := ""
			switch state {
			case 'i':
				state, label = 'h', names[min(1+j, 2)]
			case 'r':
				label = names[min(j, 1)*3]
			}
			shapes = append(shapes, box{x + i*46, y + j*28, 44, 26, fills[state], []string{label}})
		}
	}
	return shapes
}

// poolBlockLease shows a pool, its blocks on nodes, and the addresses of one block.
func poolBlockLease() drawing {
	d := drawing{
		title:  "Pool, block, address",
		width:  800,
		height: 470,
		description: "Pool default, 10.1.0.0/16, is divided into one block of 256 addresses for each node. In the block of node 5 some " +
			"addresses are held, some cool, one is quarantined, one is excluded, the first and the last are reserved.",
		shapes: []shape{
			text{20, 30, "start", "h", "Pool, block, address"},
			box{
				20,
				48,
				760,
				40,
				"plain",
				[]string{
					"pool default, 10.1.0.0/16: 65 536 addresses",
					"policy: order next, cool-down 60 s, edges reserved, exclusions",
				},
			},
			box{20, 104, 130, 40, "plain", []string{"10.1.0.0/24", "no node: ID 0"}},
			box{158, 104, 130, 40, "plain", []string{"10.1.1.0/24", "node 1"}},
			text{308, 128, "middle", "m", "..."},
			box{328, 104, 144, 40, "green", []string{"10.1.5.0/24", "node 5: a block"}},
			text{492, 128, "middle", "m", "..."},
			box{512, 104, 130, 40, "plain", []string{"10.1.254.0/24", "node 254"}},
			box{650, 104, 130, 40, "plain", []string{"10.1.255.0/24", "not used"}},
			arrow{points: []int{400, 144, 400, 176}},
			frame{20, 178, 760, 164, "block 10.1.5.0/24 of node 5: 256 addresses, 252 of them for pods"},
		},
	}
	d.shapes = append(d.shapes, blockCells(170, 208)...)
	legend := []struct{ fill, name, meaning string }{
		{"bg", "free", "the next ADD may get it"},
		{"blue", "held", "a lease: pod, Docker, infra (.1, .254)"},
		{"yellow", "cooling", "released; not used again for the cool-down"},
		{"red", "quarantined", "an unknown party uses it"},
		{"violet", "excluded", "kept out by its number, with a reason"},
		{"plain", "reserved", "the policy: first and last address"},
	}
	for i, l := range legend {
		x, y := 30+i%2*390, 362+i/2*34
		d.shapes = append(d.shapes, box{x, y, 100, 26, l.fill, []string{l.name}})
		d.shapes = append(d.shapes, text{x + 108, y + 17, "start", "s m", l.meaning})
	}
	return d
}

// leaseStates shows the states of an address.
func leaseStates() drawing {
	return drawing{
		title:  "The life of an address",
		width:  840,
		height: 400,
		description: "A free address becomes held by a claim. A release makes it cooling, and after the cool-down it is free. A claim with " +
			"an expiry, and a reclaim, make it pending. An address that an unknown party uses is quarantined. Reserved and excluded addresses are not allocated.",
		shapes: []shape{
			text{20, 30, "start", "h", "The life of an address"},
			box{40, 150, 110, 54, "plain", []string{"free"}},
			box{330, 150, 130, 54, "blue", []string{"held", "a lease, durable"}},
			box{640, 150, 120, 54, "yellow", []string{"cooling", "60 s by default"}},
			box{330, 290, 130, 54, "violet", []string{"pending", "not confirmed"}},
			box{640, 290, 120, 54, "red", []string{"quarantined", "unknown use"}},
			box{40, 290, 160, 54, "plain", []string{"reserved, excluded", "never for pods"}},
			arrow{points: []int{150, 168, 328, 168}, label: "claim: ADD, Docker's request", at: [2]int{238, 160}},
			arrow{points: []int{460, 168, 638, 168}, label: "release: DEL, GC, by hand", at: [2]int{549, 160}},
			arrow{points: []int{700, 150, 700, 80, 95, 80, 95, 148}, label: "the cool-down ends", at: [2]int{400, 72}},
			arrow{
				points: []int{640, 188, 462, 188},
				dashed: true,
				label:  "nothing else is free:",
				at:     [2]int{550, 206},
			},
			text{550, 222, "middle", "s m", "longest cooling first"},
			arrow{points: []int{380, 204, 380, 288}, label: "a reclaim begins", at: [2]int{326, 236}},
			arrow{points: []int{410, 288, 410, 206}, dashed: true, label: "alive after all", at: [2]int{458, 250}},
			arrow{
				points: []int{460, 305, 560, 305, 560, 240, 680, 240, 680, 206},
				label:  "not undone",
				at:     [2]int{508, 298},
			},
			arrow{points: []int{725, 204, 725, 288}, label: "in use after all", at: [2]int{776, 262}},
			arrow{points: []int{700, 290, 700, 206}, dashed: true},
			text{700, 364, "middle", "s m", "its end, after two rounds without"},
			text{700, 380, "middle", "s m", "the use or by hand: it cools"},
			arrow{
				points: []int{95, 204, 95, 250, 250, 250, 250, 380, 590, 380, 590, 325, 638, 325},
				label:  "in use without a lease, in two rounds",
				at:     [2]int{420, 372},
			},
		},
	}
}

// nodeID shows the arithmetic from a node ID to its subnets.
func nodeID() drawing {
	row := func(y int, name, network, arithmetic, result string) []shape {
		return []shape{
			text{20, y + 24, "start", "b", name}, text{20, y + 41, "start", "s m", network},
			box{210, y, 290, 52, "plain", []string{arithmetic}},
			arrow{points: []int{500, y + 26, 538, y + 26}},
			box{540, y, 240, 52, "green", []string{result}},
		}
	}
	shapes := []shape{
		text{20, 30, "start", "h", "What follows from node ID 5"},
		text{210, 60, "start", "s m", "the network and the ID, shifted"},
		text{540, 60, "start", "s m", "this node's part"},
	}
	shapes = slices.Concat(shapes,
		row(74, "pods", "10.1.0.0/16, one node /24", "10.1.0.0 + 5 × 2^(32-24)", "10.1.5.0/24"),
		row(140, "VPP-host link", "172.30.0.0/16, one node /24", "172.30.0.0 + 5 × 2^(32-24)", "172.30.5.0/24"),
		row(206, "node", "192.168.16.0/24", "192.168.16.0 + 5", "192.168.16.5/24"),
		row(272, "VXLAN", "192.168.30.0/24", "192.168.30.0 + 5", "192.168.30.5/24"),
		[]shape{
			box{20, 346, 140, 52, "plain", []string{"10.1.5.0", "reserved: network"}},
			box{165, 346, 130, 52, "blue", []string{"10.1.5.1", "gateway"}},
			box{300, 346, 200, 52, "green", []string{"10.1.5.2 - 10.1.5.253", "252 addresses of pods"}},
			box{505, 346, 130, 52, "blue", []string{"10.1.5.254", "NAT loopback"}},
			box{640, 346, 140, 52, "plain", []string{"10.1.5.255", "reserved: broadcast"}},
			text{
				20,
				424,
				"start",
				"s m",
				"The networks of single addresses are the smallest: the largest node ID is 254. An ID that does not fit all of them is refused.",
			},
		})
	return drawing{
		title:  "What follows from node ID 5",
		width:  800 + 40,
		height: 442,
		shapes: shapes,
		description: "With conf/contiv.conf, node ID 5 has pods 10.1.5.0/24, the VPP-host link 172.30.5.0/24, the node address 192.168.16.5/24 and " +
			"the VXLAN address 192.168.30.5/24. Of 10.1.5.0/24 .1 is the gateway, .2 to .253 are for pods, .254 is the NAT loopback.",
	}
}
