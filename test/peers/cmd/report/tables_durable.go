// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// micro writes ns as µs, milli as ms.
func micro(e expr) cell { return cell{e, scaled(1e3)} }
func milli(e expr) cell { return cell{e, scaled(1e6)} }

func durableTable() table {
	t := table{
		title: "One durable claim, one caller, µs",
		note: "Medians, means in brackets; every row is measured in turns, so that all columns saw the same disk. A bare bbolt file has the options, the number of records and the record size of ours; " +
			"the bare write goes to a file that is written already.",
		head: []string{
			"claim",
			"(mean)",
			"release",
			"bbolt put",
			"(mean)",
			"bbolt delete",
			"write + fdatasync",
			"claim / bbolt",
			"claim / fdatasync",
		},
	}
	for _, n := range []string{"0", "1000", "50000"} {
		unit := func(u string) expr { return at("ours", "Durable/"+n, u) }
		t.rows = append(t.rows, row{
			n + " other leases",
			[]cell{
				micro(unit("claim-p50-ns")),
				micro(unit("claim-ns")),
				micro(unit("release-p50-ns")),
				micro(
					unit("bbolt-put-p50-ns"),
				),
				micro(unit("bbolt-put-ns")),
				micro(unit("bbolt-delete-p50-ns")),
				micro(unit("fdatasync-p50-ns")),
				{
					ratio(unit("claim-p50-ns"), unit("bbolt-put-p50-ns")),
					bold(times),
				},
				{ratio(unit("claim-p50-ns"), unit("fdatasync-p50-ns")), bold(times)},
			},
		})
	}
	return t
}

func callersTable() table {
	alone := mean(at("ours", "Durable/1000", "claim-ns"), at("ours", "Durable/1000", "release-ns"))
	line := func(name, bench string, one expr) row {
		hundred := at("ours", "Callers/"+bench)
		return row{name, []cell{micro(one), micro(hundred), {ratio(hundred, one), bold(times)}}}
	}
	return table{
		title: "A hundred durable callers, µs an operation",
		note:  "Elapsed time over operations, with 1 000 other leases. Half of the ledger's operations are claims, half are releases. One caller of bbolt uses Update, a hundred use Batch.",
		head:  []string{"one caller (mean)", "a hundred", "hundred / one"},
		rows: []row{
			line("Cadastre ledger", "ledger", alone),
			line("bbolt", "bbolt-batch", at("ours", "Durable/1000", "bbolt-put-ns")),
			line(
				"*limit: write + one fdatasync for all who wait*",
				"fdatasync",
				at("ours", "Durable/1000", "fdatasync-ns"),
			),
		},
	}
}

func podTable() table {
	line := func(name, bench string) row {
		all, commit := at("loop", "Pod/"+bench), at("loop", "Pod/"+bench, "commit-ns")
		return row{
			name,
			[]cell{
				micro(
					all,
				),
				micro(commit),
				micro(minus(all, commit)),
				{ratio(minus(all, commit), all), percent},
				{at("loop", "Pod/"+bench, "allocs/op"), plain},
			},
		}
	}
	together := func(name, bench string) row {
		return row{name, []cell{micro(at("loop", "Pod/"+bench)), {}, {}, {}, {}}}
	}
	return table{
		title: "An ADD and a DEL of a pod through the event loop, µs a pair",
		note:  "From the request to the answer, without the socket. \"commit\" is the part that waits for the disk.",
		head:  []string{"pair", "commit", "the rest", "its share", "allocs"},
		rows: []row{
			line("ledger alone, null journal", "ledger/null"),
			line("through the loop, null journal", "loop/null"),
			line("ledger alone, on disk", "ledger/disk"),
			line("through the loop, on disk", "loop/disk"),
			together(
				"ledger, on disk, 100 callers at once",
				"ledger-100/disk",
			),
			together("through the loop, on disk, 100 callers at once", "loop-100/disk"),
		},
	}
}

func socketTable() table {
	line := func(name, n string) row {
		return row{name, []cell{{at("loop", "Socket/"+n), scaled(1e3)}}}
	}
	return table{
		title: "An ADD and a DEL on the agent's socket, durable, µs a pair",
		note:  "Elapsed time over all pairs. A run of ADDs and DELs that wait in the event loop shares one commit.",
		head:  []string{"pair"},
		rows:  []row{line("one caller", "1"), line("100 callers at once", "100")},
	}
}

func processTable() table {
	t := table{
		title: "CNI plugins as processes, ms",
		note: "ADD and DEL, a process each, in turns; \"50 at once\" is the time until 50 ADDs, started together, and then 50 DELs have ended: `cadastre-cni` with a running agent on its embedded store, and `host-local`, which never syncs. Medians, means in brackets. " +
			"\"without process\" is the same requests on the agent's socket, and `host-local`'s code called in process. " +
			"\"start-up\" is one process that does nothing: VERSION of both, an empty Go program, and /bin/true.",
		head: []string{
			"`cadastre-cni`",
			"(mean)",
			"`host-local`",
			"(mean)",
			"ours / theirs",
			"ours without process",
			"theirs",
			"empty Go program",
			"/bin/true",
		},
	}
	for _, n := range []string{"0", "100", "1000"} {
		unit := func(u string) expr { return at("cni", "Process/"+n, u) }
		t.rows = append(t.rows, row{
			"ADD + DEL, " + n + " other leases",
			[]cell{
				milli(
					unit("cadastre-cni-p50-ns"),
				),
				milli(unit("cadastre-cni-ns")),
				milli(unit("host-local-p50-ns")),
				milli(unit("host-local-ns")),
				{
					ratio(unit("cadastre-cni-p50-ns"), unit("host-local-p50-ns")),
					bold(times),
				},
				milli(unit("socket-p50-ns")),
				milli(at("cni", "HostLocal/"+n)),
				{},
				{},
			},
		})
	}
	for _, n := range []string{"0", "100", "1000"} {
		unit := func(u string) expr { return at("cni", "ProcessBurst/"+n, u) }
		t.rows = append(t.rows, row{
			"50 at once, " + n + " other leases",
			[]cell{
				milli(unit("cadastre-cni-p50-ns")),
				milli(unit("cadastre-cni-ns")),
				milli(unit("host-local-p50-ns")),
				milli(unit("host-local-ns")),
				{ratio(unit("cadastre-cni-p50-ns"), unit("host-local-p50-ns")), bold(times)},
				{},
				{},
				{},
				{},
			},
		})
	}
	unit := func(u string) expr { return at("cni", "StartUp", u) }
	t.rows = append(t.rows, row{
		"start-up, one process",
		[]cell{
			milli(
				unit("cadastre-cni-p50-ns"),
			),
			milli(unit("cadastre-cni-ns")),
			milli(unit("host-local-p50-ns")),
			milli(unit("host-local-ns")),
			{
				ratio(unit("cadastre-cni-p50-ns"), unit("host-local-p50-ns")),
				bold(times),
			},
			{},
			{},
			milli(unit("go-hello-p50-ns")),
			milli(unit("true-p50-ns")),
		},
	})
	return t
}

func startTable() table {
	t := table{
		title: "Start: the database opened and the ledger loaded",
		head:  []string{"ms", "MB allocated"},
	}
	for _, n := range []string{"0", "1000", "50000"} {
		t.rows = append(
			t.rows,
			row{n + " leases", []cell{milli(at("ours", "Start/"+n)), {at("ours", "Start/"+n, "B/op"), scaled(1e6)}}},
		)
	}
	return t
}
