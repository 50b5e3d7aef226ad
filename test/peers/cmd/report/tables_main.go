// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// mainSizes returns the numbers of other pods on the node of the main plugins.
func mainSizes() []string { return []string{"0", "250", "990"} }

// mainTime returns the median of what a main plugin does, such as add30.
func mainTime(plugin, what, others string) expr {
	return at("cni", "MainPlugin/"+others, plugin+"-"+what+"-p50-ns")
}

func mainTable() table {
	t := table{
		title: "CNI main plugins: a dual-stack pod with its interface, ms",
		note: "A process for each call, as a runtime does, in turns, each plugin in a network namespace of its own: `cadastre-cni` with a running agent that makes the interface over netlink, " +
			"`bridge` with `host-local`, and kindnet's plugin if its source is there. \"30\" is thirty calls at once; \"gone\" is the time from the begin of the DELs until the last link is removed, " +
			"which ours does behind its answers. The next turn waits for that.",
		head: []string{"ADD", "DEL", "30 ADDs", "30 DELs", "30 gone", "ADD + DEL of 30, to the end"},
	}
	for _, others := range mainSizes() {
		line := func(name, plugin string) row {
			r := row{name: name + ", " + others + " other pods"}
			for _, what := range []string{"add", "del", "add30", "del30", "gone30"} {
				r.cells = append(r.cells, milli(mainTime(plugin, what, others)))
			}
			whole := sum(mainTime(plugin, "add30", others), mainTime(plugin, "gone30", others))
			return r.and(milli(whole))
		}
		ours, bridge := line("`cadastre-cni`", "cadastre"), line("`bridge` + `host-local`", "bridge")
		t.rows = append(t.rows, ours, bridge)
		if others != "990" {
			t.rows = append(t.rows, line("kindnet", "kindnet"))
		}
		t.rows = append(t.rows, of("ours / `bridge`", ours, bridge))
	}
	return t
}

func transportTable() table {
	wires := func(plugin string) cell {
		return cell{gigabits(at("cni", "Throughput", plugin+"-p50-ns"), 256<<20), plain}
	}
	across := func(name string) cell { return cell{at("linux", "Throughput/"+name, "Gbit/s"), plain} }
	return table{
		title: "TCP from pod to pod, Gbit/s",
		note: "One connection, 256 MiB; sender, receiver and the kernel share the processors. On one node beside `bridge`; between two nodes that a router separates, by the transport. " +
			"WireGuard is the agent's own where the kernel has none.",
		head: []string{"one node, ours", "one node, `bridge`", "`nodeip`, `hostgw`", "`vxlan`", "`wireguard`"},
		rows: []row{{"Gbit/s", []cell{
			wires("cadastre"),
			wires("bridge"),
			across("direct"),
			across("vxlan"),
			across("wireguard"),
		}}},
	}
}

func killedTable() table {
	return table{
		title: "A killed agent starts again beside 250 pods, ms",
		note:  "Their interfaces stay and pass packets meanwhile. \"resync\" compares all with the kernel; \"serving\" is the time from the start of the process until an ADD is answered, with that ADD and its process.",
		head:  []string{"resync", "serving"},
		rows: []row{
			{
				"250 pods",
				[]cell{milli(at("cni", "Killed", "resync-p50-ns")), milli(at("cni", "Killed", "serving-p50-ns"))},
			},
		},
	}
}

// gigabits returns the rate of so many bytes in a time.
func gigabits(ns expr, bytes float64) expr { return ratio(constant(8*bytes), ns) }

// mainAims are those of the main plugin.
func mainAims() []aim {
	beside := func(what string) (ps []point) {
		for _, others := range mainSizes() {
			ps = append(
				ps,
				point{others + " other pods", mainTime("cadastre", what, others), mainTime("bridge", what, others)},
			)
		}
		return ps
	}
	var flat []point
	for _, what := range []string{"add", "del"} {
		flat = append(
			flat,
			point{what + ", 990 / 0 other pods", mainTime("cadastre", what, "990"), mainTime("cadastre", what, "0")},
		)
	}
	return []aim{
		{"main plugin: ADD beside `bridge` + `host-local`", .5, beside("add"), duration, nil},
		{"main plugin: 30 ADDs at once, likewise", .4, beside("add30"), duration, nil},
		{"main plugin: DEL, likewise", .25, beside("del"), duration, nil},
		{"main plugin: 30 DELs at once, likewise", .55, beside("del30"), duration, nil},
		{"main plugin: flat up to 1 000 pods on the node", 1.25, flat, duration, nil},
		{
			"a killed agent has resynced 250 pods in under 250 ms",
			1,
			[]point{{"250 pods", at("cni", "Killed", "resync-p50-ns"), constant(250e6)}},
			duration,
			nil,
		},
	}
}
