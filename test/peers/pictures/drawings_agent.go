// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// eventLoop shows producers, the loop with its handlers, and what becomes durable when.
func eventLoop() drawing {
	d := drawing{
		title:  "The event loop",
		width:  860,
		height: 420,
		description: "Producers push events into one queue. The loop hands an event to the handlers in order, commits what they staged to " +
			"cadastre.db, commits the values to the southbound, and calls Done. A failure reverts the handlers in the opposite order.",
		shapes: []shape{
			text{20, 30, "start", "h", "The event loop: one goroutine, one order"},
			box{20, 60, 160, 46, "plain", []string{"podmanager", "AddPod, DeletePod"}},
			box{20, 114, 160, 46, "plain", []string{"kubestate", "resync, changes"}},
			box{20, 168, 160, 46, "plain", []string{"nodesync, claims", "node ID, prefixes"}},
			box{20, 222, 160, 46, "plain", []string{"underlay, interfaces", "links of the node"}},
			arrow{points: []int{180, 83, 228, 140}},
			arrow{points: []int{180, 137, 228, 148}},
			arrow{points: []int{180, 191, 228, 172}},
			arrow{points: []int{180, 245, 228, 182}},
			box{230, 130, 100, 64, "yellow", []string{"queue", "urgent events", "overtake"}},
			arrow{points: []int{330, 162, 368, 162}},
			frame{370, 60, 460, 208, "the loop"},
			box{
				384,
				90,
				432,
				54,
				"blue",
				[]string{
					"1 handlers, in order; they stage and never wait",
					"contivconf, nodesync, podmanager, ipam, ipnet, ...",
				},
			},
			arrow{points: []int{600, 144, 600, 158}},
			box{384, 160, 208, 46, "green", []string{"2 commit: cadastre.db", "durable from here on"}},
			arrow{points: []int{592, 183, 606, 183}},
			box{608, 160, 208, 46, "green", []string{"3 commit: southbound", "interfaces, routes, tunnels"}},
			arrow{points: []int{712, 206, 712, 218}},
			box{608, 220, 208, 36, "plain", []string{"4 Done: the answer, once"}},
			arrow{
				points: []int{384, 240, 350, 240, 350, 330, 100, 330, 100, 270},
				dashed: true,
				label:  "outcome",
				at:     [2]int{220, 322},
			},
			box{384, 220, 208, 36, "red", []string{"a failed AddPod: all undone"}},
		},
	}
	d.shapes = append(d.shapes, lines(
		20,
		362,
		"start",
		"s m",
		"An update changes one thing; a resync builds the whole state from a snapshot. A sequence of updates ends where one resync ends.",
		"After an error that is not reverted a healing resync follows, with growing delays. At most 128 pod events share commit 2.",
		"Between 1 and 4 the loop waits for cadastre.db and the southbound alone, never for the cluster store, a cloud or another node.",
	)...)
	return d
}

// groupCommit shows four requests that share one transaction.
func groupCommit() drawing {
	d := drawing{
		title:  "Four ADDs share one commit",
		width:  820,
		height: 330,
		description: "Four ADDs wait in the queue. Their changes are one transaction of bbolt with two fdatasyncs. Then each has its own " +
			"southbound transaction and its own answer, in order.",
		shapes: []shape{text{20, 30, "start", "h", "Four ADDs share one commit"}},
	}
	for i, name := range []string{"ADD a", "ADD b", "ADD c", "ADD d"} {
		y := 56 + i*48
		d.shapes = append(d.shapes,
			box{20, y, 80, 38, "plain", []string{name}},
			arrow{points: []int{100, y + 19, 128, y + 19}},
			box{130, y, 130, 38, "blue", []string{"handlers stage"}},
			arrow{points: []int{260, y + 19, 298, y + 19}},
			arrow{points: []int{520, y + 19, 558, y + 19}},
			box{560, y, 130, 38, "green", []string{"its southbound"}},
			arrow{points: []int{690, y + 19, 718, y + 19}},
			box{720, y, 80, 38, "plain", []string{"answer"}})
	}
	d.shapes = append(d.shapes, box{
		300,
		56,
		220,
		182,
		"yellow",
		[]string{
			"one transaction of bbolt",
			"4 leases, 4 entries of history",
			"write changed pages",
			"fdatasync",
			"write the meta page",
			"fdatasync",
		},
	})
	d.shapes = append(d.shapes, lines(
		20,
		272,
		"start",
		"s m",
		"A failed event is undone to the savepoint before it and runs again by itself. After a failed commit each event has its own:",
		"the outcome of an event does not depend on its neighbours. A lone ADD waits for no other one.",
	)...)
	return d
}

// witnesses shows the sources that the ledger is compared with.
func witnesses() drawing {
	d := drawing{
		title:  "Witnesses and findings",
		width:  860,
		height: 430,
		description: "The kernel, the container runtime, the Docker engine and the cluster are read in rounds and compared with the ledger. " +
			"A difference that two rounds show is a finding, a quarantine or a reclaim. A missing witness frees nothing.",
		shapes: []shape{
			text{20, 30, "start", "h", "The ledger and its witnesses"},
			frame{20, 48, 240, 280, "witnesses: what is really there"},
			box{36, 78, 208, 50, "plain", []string{"kernel", "namespaces, addresses, routes"}},
			box{36, 138, 208, 50, "plain", []string{"container runtime (CRI)", "sandboxes"}},
			box{36, 198, 208, 50, "plain", []string{"Docker engine", "networks, endpoints"}},
			box{36, 258, 208, 50, "plain", []string{"cluster", "pods of this node, nodes"}},
			arrow{points: []int{260, 170, 318, 170}, label: "a round", at: [2]int{289, 160}},
			box{320, 130, 180, 80, "yellow", []string{"compare", "twice, at least one", "interval apart (20 s)"}},
			box{320, 258, 180, 50, "blue", []string{"ledger", "leases, blocks"}},
			arrow{points: []int{410, 258, 410, 212}},
			arrow{points: []int{500, 150, 578, 92}}, arrow{points: []int{500, 165, 578, 156}},
			arrow{points: []int{500, 180, 578, 220}}, arrow{points: []int{500, 195, 578, 284}},
			box{580, 66, 260, 52, "green", []string{"they agree", "check: clean"}},
			box{580, 130, 260, 52, "violet", []string{"the owner is gone", "pending for 10 min, then released"}},
			box{580, 194, 260, 52, "red", []string{"in use without a lease", "quarantined until it is not seen"}},
			box{580, 258, 260, 52, "plain", []string{"another difference", "a finding Cxxx: cadastre check"}},
		},
	}
	d.shapes = append(d.shapes, lines(
		20,
		360,
		"start",
		"s m",
		"A witness that cannot be read, a clock jump, a reboot, a restart of the runtime: each ends the evidence, and it begins anew.",
		"Absence of evidence frees nothing. A pending reclaim is undone by a repeated ADD, by a witness that sees the address,",
		"by a restart of the agent, or by hand: cadastre reclaim undo ADDRESS.",
	)...)
	return d
}
