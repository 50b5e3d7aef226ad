// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

// The drivers for Docker: ours, and the one that the engine has.
const (
	ourDriver  = "Docker"
	mobyDriver = "DefaultIPAM"
)

// dockerRows are both drivers and their ratio, in both orders.
func dockerRows(subs []string) []row {
	var rows []row
	for _, order := range []string{"first", "serial"} {
		ours, moby := series(
			"Cadastre, "+order,
			"ours",
			ourDriver+"/"+order,
			subs,
		), series(
			"moby, "+order,
			"moby",
			mobyDriver+"/"+order,
			subs,
		)
		rows = append(rows, ours, moby, of("ours / moby", ours, moby))
	}
	return rows
}

func dockerTable() table {
	return table{
		title: "Docker's IPAM drivers in process: an address requested and a random older one released, ns a pair",
		note:  "Nothing is durable in either. Ours keeps who has each address; moby's `defaultipam` does not. \"first\" is the lowest free address, \"serial\" the next one after the last.",
		head:  churnHeads("/24", "/16"),
		rows:  dockerRows(churns("24", "16")),
	}
}

func dockerOtherOps() []string {
	var subs []string
	for _, op := range []string{"full", "specific/50", "fill", "drain"} {
		subs = append(subs, "24/"+op, "16/"+op)
	}
	return subs
}

func dockerOtherTable() table {
	return table{
		title: "Docker's IPAM drivers: a full pool's answer, a named address, fill and drain, ns",
		note:  "As for the allocators above.",
		head:  []string{"full /24", "/16", "named /24", "/16", "fill /24", "/16", "drain /24", "/16"},
		rows:  dockerRows(dockerOtherOps()),
	}
}

func dockerPools() []string { return []string{"0", "10", "100", "1000", "10000"} }

func dockerPoolTable() table {
	var subs []string
	for _, kind := range []string{"any/", "named/"} {
		for _, n := range dockerPools() {
			subs = append(subs, kind+n)
		}
	}
	ours, moby := series("Cadastre", "ours", ourDriver+"Pools", subs), series("moby", "moby", mobyDriver+"Pools", subs)
	return table{
		title: "Docker's IPAM drivers: a pool requested and released, ns a pair",
		note:  "/24 of 10.0.0.0/8, while so many others are taken: one of the driver's choice, and one that is named.",
		head: []string{
			"any, 0 others",
			"10",
			"100",
			"1 000",
			"10 000",
			"named, 0 others",
			"10",
			"100",
			"1 000",
			"10 000",
		},
		rows: []row{ours, moby, of("ours / moby", ours, moby)},
	}
}

func dockerSocketTable() table {
	line := func(name, clients string) row {
		bench := ourDriver + "Socket/" + clients
		return row{name, []cell{micro(at("ours", bench)), {at("ours", bench, "requests/s"), plain}}}
	}
	return table{
		title: "Docker's requests over the socket, durable",
		note:  "Half request an address, half release one. The clients are on the same processors.",
		head:  []string{"µs a request", "requests/s"},
		rows:  []row{line("one client", "1"), line("64 clients", "64")},
	}
}

func dockerAims() []aim {
	beside := func(order string, subs []string) (ps []point) {
		for _, s := range subs {
			ps = append(
				ps,
				point{
					order + ", " + describe(s),
					at("ours", ourDriver+"/"+order+"/"+s),
					at("moby", mobyDriver+"/"+order+"/"+s),
				},
			)
		}
		return ps
	}
	half := []string{"16/churn/50"}
	all := append(churns("24", "16"), dockerOtherOps()...)
	var pools []point
	for _, n := range dockerPools() {
		for _, kind := range []string{"any/", "named/"} {
			pools = append(
				pools,
				point{kind + n, at("ours", ourDriver+"Pools/"+kind+n), at("moby", mobyDriver+"Pools/"+kind+n)},
			)
		}
	}
	return []aim{
		{
			"Docker driver, half-full /16, beside moby's",
			.1,
			append(beside("first", half), beside("serial", half)...),
			duration,
			nil,
		},
		{
			"Docker driver, addresses elsewhere, beside moby's",
			1,
			append(beside("first", all), beside("serial", all)...),
			duration,
			nil,
		},
		{"Docker driver, a pool requested and released, beside moby's", 1, pools, duration, nil},
		{
			"Docker driver, any pool with 10 000 others in under 5 µs",
			1,
			[]point{{"requested and released", at("ours", ourDriver+"Pools/any/10000"), constant(5000)}},
			duration,
			nil,
		},
		{
			"Docker driver, durable, over 5 000 requests/s from 64 clients",
			1,
			[]point{{"a request", at("ours", ourDriver+"Socket/64"), constant(200e3)}},
			duration,
			nil,
		},
	}
}
