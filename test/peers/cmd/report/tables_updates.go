// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// updateModes are the benchmarks of node updates, with what they are for people.
func updateModes() [][2]string {
	return [][2]string{
		{"nodeid", "blocks of the node ID: its address changes"},
		{"podcidr", "external IPAM: its podCIDR changes"},
		{"claims", "external IPAM: its claim changes"},
		{"netresource", "NetResourceSets: its podCIDR changes"},
		{"netresource-claims", "NetResourceSets: its claim changes"},
	}
}

func update(mode string, nodes int) expr {
	return at("loop", fmt.Sprintf("NodeUpdate/%s/%d", mode, nodes), "ns/update")
}

func updatesTable() table {
	t := table{
		title: "The change of one node in a cluster of many, µs",
		note:  "From the event to the routes in the transaction: the event and the one that follows from it, through nodesync, ipam and ipnet. Nothing is written.",
		head:  []string{"100 nodes", "1 000", "10 000", "10 000 / 100"},
	}
	for _, m := range updateModes() {
		cells := make([]cell, 0, 4)
		for _, n := range []int{100, 1000, 10_000} {
			cells = append(cells, cell{update(m[0], n), scaled(1e3)})
		}
		cells = append(cells, cell{ratio(update(m[0], 10_000), update(m[0], 100)), bold(times)})
		t.rows = append(t.rows, row{m[1], cells})
	}
	return t
}

func joins(mode, unit string) expr { return at("loop", "Joins/"+mode+"/10000", unit) }

func joinsTable() table {
	t := table{
		title: "An ADD on the agent's socket while 10 000 nodes join, ms",
		note: "A whole agent with its database, over a store in memory that takes the objects of the nodes as fast as it can; each ADD is durable. " +
			"Agent, store and client share the processors. \"idle\" is the same ADD while no node joins.",
		head: []string{"idle: median", "99 %", "slowest", "joins: median", "99 %", "slowest", "all have joined, s"},
	}
	for _, m := range [][2]string{{"nodeid", "blocks of the node ID"}, {"podcidr", "external IPAM, with claims"}} {
		r := row{name: m[1]}
		for _, unit := range []string{"idle-p50-ms", "idle-p99-ms", "idle-max-ms", "add-p50-ms", "add-p99-ms", "add-max-ms", "join-s"} {
			r.cells = append(r.cells, cell{joins(m[0], unit), plain})
		}
		t.rows = append(t.rows, r)
	}
	return t
}

// updateAims are those of what other nodes do to the pods of this one.
func updateAims() []aim {
	var flat, adds []point
	for _, m := range updateModes() {
		flat = append(flat, point{m[0], update(m[0], 10_000), update(m[0], 100)})
	}
	for _, mode := range []string{"nodeid", "podcidr"} {
		adds = append(adds, point{mode, joins(mode, "add-max-ms"), constant(50)})
	}
	return []aim{
		{"the change of one node, flat from 100 to 10 000 nodes", 2, flat, duration, nil},
		{"the slowest ADD while 10 000 nodes join, beside 50 ms", 1, adds, plain, nil},
	}
}
