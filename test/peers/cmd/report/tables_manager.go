// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// managerRows are both modes of the address manager, and the agent of Cilium
// 1.15, whose cluster pool is the same allocator as its host scope.
func managerRows(subs []string) (host, pool, agent row) {
	return series(
			"Cadastre, host scope",
			"ours",
			"Manager/host",
			subs,
		), series(
			"Cadastre, cluster pool",
			"ours",
			"Manager/pool",
			subs,
		),
		series(
			"Cilium 1.15 agent",
			"cilium115",
			"HostScope",
			subs,
		)
}

func managerTable() table {
	subs, at50 := churns("24", "16"), "/16/churn/50"
	host, pool, agent := managerRows(subs)
	many := series("Cadastre, cluster pool of 256 /24", "ours", "Manager/pool", churns("16in24"))
	many.cells = append(make([]cell, len(many.cells)), many.cells...)
	return table{
		title: "The address manager: AllocateNextFamily, and ReleaseIP of a random older address, ns a pair",
		note: "Both are asked with the same call and the same owner's name of 20 bytes, and nothing of either is durable. In Cilium 1.15 a cluster pool is one block in host scope, so both modes are " +
			"compared with that.",
		head: append(churnHeads("/24", "/16"), "allocs"),
		rows: []row{
			host.and(
				allocs("ours", "Manager/host"+at50),
			),
			pool.and(allocs("ours", "Manager/pool"+at50)),
			many.and(allocs("ours", "Manager/pool/16in24/churn/50")),
			agent.and(allocs("cilium115", "HostScope"+at50)),
			of("host scope / Cilium agent", host, agent),
			of("cluster pool / Cilium agent", pool, agent),
		},
	}
}

// managerOtherOps returns the operations beside a claim of any address.
func managerOtherOps(ops ...string) []string {
	var subs []string
	for _, op := range ops {
		subs = append(subs, "24/"+op, "16/"+op)
	}
	return subs
}

func managerOtherTable() table {
	host, pool, agent := managerRows(managerOtherOps("full", "specific/50", "fill", "drain"))
	return table{
		title: "The address manager: a full pool's answer, a named address, fill and drain, ns",
		note:  "As for the allocators above.",
		head:  []string{"full /24", "/16", "named /24", "/16", "fill /24", "/16", "drain /24", "/16"},
		rows: []row{
			host,
			pool,
			agent,
			of("host scope / Cilium agent", host, agent),
			of("cluster pool / Cilium agent", pool, agent),
		},
	}
}

func roundTable() table {
	return table{
		title: "A round of the NetResourceSet manager over nodes that lack nothing, ms",
		head:  []string{"1 000 nodes", "10 000 nodes"},
		rows: []row{
			{
				"Cadastre operator",
				[]cell{milli(at("netresource", "Round/1000")), milli(at("netresource", "Round/10000"))},
			},
		},
	}
}

func managerAims() []aim {
	beside := func(mode string, subs []string) (ps []point) {
		for _, s := range subs {
			ps = append(
				ps,
				point{mode + ", " + describe(s), at("ours", "Manager/"+mode+"/"+s), at("cilium115", "HostScope/"+s)},
			)
		}
		return ps
	}
	both := func(ops ...string) []point {
		subs := managerOtherOps(ops...)
		return append(beside("host", subs), beside("pool", subs)...)
	}
	any := churns("24", "16")
	return []aim{
		{
			"address manager, host scope, any address, beside Cilium 1.15's agent",
			.5,
			beside("host", any),
			duration,
			nil,
		},
		{
			"address manager, cluster pool, any address, beside Cilium 1.15's agent",
			.5,
			beside("pool", any),
			duration,
			nil,
		},
		{"address manager, a named address, beside Cilium 1.15's agent", .2, both("specific/50"), duration, nil},
		{"address manager, fill and drain, beside Cilium 1.15's agent", .2, both("fill", "drain"), duration, nil},
		{
			"address manager, a database of 16 000 leases is open in under half a second",
			1,
			[]point{{"16000 leases", at("ours", "ManagerRestore/16000"), constant(500e6)}},
			duration,
			nil,
		},
		{
			"address manager, heap of an address, bytes",
			1,
			[]point{{"50000 addresses", at("ours", "ManagerMemory/16", "heapB/item"), constant(600)}},
			plain,
			nil,
		},
		{
			"a round of the NetResourceSet manager over 10 000 nodes in under a second",
			1,
			[]point{{"10000 nodes", at("netresource", "Round/10000"), constant(1e9)}},
			duration,
			nil,
		},
	}
}
