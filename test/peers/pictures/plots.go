// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// The pages of results that charts read, below docs/.
const (
	benchmarks = "results/benchmarks.md"
	network    = "network.md"
)

// rows returns one cell for each row, all of one column.
func rows(page, heading string, column int, names ...string) []cell {
	var cells []cell
	for _, name := range names {
		cells = append(cells, cell{page, heading, name, column})
	}
	return cells
}

// columns returns one cell for each column, all of one row.
func columns(page, heading, row string, numbers ...int) []cell {
	var cells []cell
	for _, n := range numbers {
		cells = append(cells, cell{page, heading, row, n})
	}
	return cells
}

// charts returns the charts by the names of their files.
func charts() map[string]chart {
	const (
		process = "CNI plugins as processes, ms"
		wire    = "CNI main plugins: a dual-stack pod with its interface, ms"
		churn   = "Any address taken and a random older one given back, ns a pair"
		store   = "The interface datastore without a checkpoint: an address assigned and the oldest unassigned, µs a pair"
	)
	burst := []string{"50 at once, 0 other leases", "50 at once, 100 other leases", "50 at once, 1000 other leases"}
	pair := []string{"ADD + DEL, 0 other leases", "ADD + DEL, 100 other leases", "ADD + DEL, 1000 other leases"}
	leases := []string{"0 other leases", "100 other leases", "1 000 other leases"}
	wires := func(plugin string) []cell {
		return rows(benchmarks, wire, 1, plugin+", 0 other pods", plugin+", 250 other pods", plugin+", 990 other pods")
	}
	sixteen := func(allocator string) []cell { return columns(benchmarks, churn, allocator, 5, 6, 7, 8) }
	half := func(datastore string) []cell { return columns(benchmarks, store, datastore, 2, 5, 8, 11) }
	return map[string]chart{
		"plots/cni-pair.svg": {
			title: "An ADD and a DEL, one process each", unit: "ms, median", source: benchmarks, groups: leases,
			series: []series{
				{"cadastre-cni, durable", rows(benchmarks, process, 1, pair...)},
				{"host-local, never syncs", rows(benchmarks, process, 3, pair...)},
			},
		},
		"plots/cni-burst.svg": {
			title:  "50 ADDs at once, then 50 DELs",
			unit:   "ms until the last one has ended",
			source: benchmarks,
			groups: leases,
			series: []series{
				{"cadastre-cni, durable", rows(benchmarks, process, 1, burst...)},
				{"host-local, never syncs", rows(benchmarks, process, 3, burst...)},
			},
		},
		"plots/pod-interface.svg": {
			title: "ADD of a dual-stack pod with its interface", unit: "ms", source: benchmarks,
			groups: []string{"no other pod", "250 other pods", "990 other pods"},
			series: []series{
				{"cadastre-cni", wires("`cadastre-cni`")},
				{"bridge with host-local", wires("`bridge` + `host-local`")},
			},
		},
		"plots/allocators.svg": {
			title:  "Any address of a /16 taken, an older one given back",
			unit:   "ns a pair, in memory, without an owner",
			source: benchmarks,
			log:    true,
			groups: []string{"empty", "half full", "99 % full", "one address left"},
			series: []series{
				{"Cadastre", sixteen("Cadastre index, lowest first")},
				{"Cilium ipallocator", sixteen("Cilium `ipallocator`")},
				{"Kubernetes Services", sixteen("Kubernetes service bitmap")},
				{"moby, first free", sixteen("moby, first free")},
			},
		},
		"plots/interface-datastore.svg": {
			title:  "An address of a cloud's interface assigned, the oldest one unassigned",
			unit:   "µs a pair, half of all addresses assigned, no checkpoint",
			source: benchmarks,
			log:    true,
			groups: []string{"30 addresses", "250", "1 000", "16 000"},
			series: []series{{"Cadastre", half("Cadastre, secondary")}, {"AWS VPC CNI", half("AWS, secondary")}},
		},
		"plots/transports.svg": {
			title:  "TCP between the pods of two nodes",
			unit:   "ratio to a plain bridge between two namespaces, one connection",
			source: network,
			groups: []string{"nodeip", "hostgw", "vxlan", "wireguard (in the agent)"},
			series: []series{
				{"across nodes", rows(network, "Transports", 2, "nodeip", "hostgw", "vxlan", "wireguard")},
			},
		},
	}
}
