// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package attack

// Checks are the promises that the tests of an attack verify.
type Checks uint8

// The promises, one a column of docs/reliability.md.
const (
	Twice   Checks = 1 << iota // no address is held by two
	Lost                       // no lease is lost
	Crashed                    // no process ends otherwise than asked, or than with one sentence
	Late                       // nothing takes longer than stated
)

// Kind names a kind of attack.
type Kind string

// The kinds of attacks.
const (
	Kill       Kind = "kill"
	Older      Kind = "older"
	Flip       Kind = "flip"
	Damage     Kind = "damage"
	Foreign    Kind = "foreign"
	FullDisk   Kind = "full disk"
	Linear     Kind = "linear"
	HangUp     Kind = "hang up"
	SameDir    Kind = "same directory"
	Clone      Kind = "clone"
	Twin       Kind = "twin"
	SameName   Kind = "same name"
	Wipe       Kind = "wipe"
	NoStore    Kind = "no store"
	Clock      Kind = "clock"
	World      Kind = "world"
	Evidence   Kind = "evidence"
	IDClaim    Kind = "node ID"
	PodCIDR    Kind = "podCIDR"
	Pinned     Kind = "pinned"
	Released   Kind = "released"
	Autoscaler Kind = "autoscaler"
	Schedule   Kind = "schedule"
	ClaimWorld Kind = "claim world"
	IDWorld    Kind = "ID world"
	Sim        Kind = "simulation"
	ClusterSim Kind = "cluster simulation"
	BlockSim   Kind = "block simulation"
)

// Attack describes a kind for the report.
type Attack struct {
	Kind   Kind
	What   string // the first column
	Unit   string // what is counted
	Checks Checks
	Stated string // how long something may take at most, if Checks has Late
}

// All returns the kinds in the order of the report.
func All() []Attack {
	const node, all = Twice | Lost | Crashed, Twice | Lost | Crashed | Late
	return []Attack{
		{Kill, "`kill -9` of an agent while 8 clients ask", "kills", all, "20 s to serve"},
		{
			Older,
			"an older database in the place of the newer one; each note of the newest commit kept, removed, emptied, cut off, overwritten",
			"starts",
			Twice | Crashed,
			"",
		},
		{
			Flip,
			"one bit flipped in a record, in every bucket of the database",
			"flips",
			all,
			"20 s to serve or to refuse",
		},
		{
			Damage,
			"the closed database cut, zeroed, reordered, overwritten in part",
			"files",
			all,
			"20 s to serve or to refuse",
		},
		{
			Foreign,
			"the open database copied over, moved over, removed, renamed, cut; idle, before an ADD, under load",
			"changes",
			Twice | Crashed | Late,
			"20 s to end",
		},
		{
			FullDisk,
			"the disk is full at the start, or while clients ask, and has room again",
			"full disks",
			all,
			"20 s to recover",
		},
		{
			Linear,
			"concurrent requests for the same attachments, searched for an order that explains the answers",
			"requests",
			node,
			"",
		},
		{HangUp, "clients that leave in the middle of an ADD", "requests", Lost | Crashed, ""},
		{
			SameDir,
			"two agents on one state directory or one run directory",
			"starts",
			Lost | Crashed | Late,
			"5 s to end",
		},
		{
			Clone,
			"a copied disk under the same name on another machine, with and without the store",
			"clones",
			all,
			"45 s",
		},
		{
			Twin,
			"a copied disk on this and on another machine, and a memory snapshot that is resumed twice, beside restarts and reboots (simulated time)",
			"starts",
			Twice | Late,
			"0 s for a restart, 3 min for a copy",
		},
		{SameName, "two machines of one name, one after the other and at once", "pairs", all, "45 s"},
		{
			Wipe,
			"the store is wiped, replaced, set back to a snapshot, or has a record that cannot be read",
			"lost stores",
			all,
			"45 s",
		},
		{
			NoStore,
			"the store is without a leader; agents and store are killed together; a network is cut or half works",
			"outages",
			all,
			"45 s",
		},
		{Clock, "clocks that are set by two hours", "changes", all, "45 s"},
		{World, "agents, networks and etcd that fail at random", "steps", all, "45 s"},
		{
			Evidence,
			"pods, sandboxes, network namespaces, the runtime, the agent, the machine and its database that fail at random (lost also means: reclaimed while alive; none is leaked)",
			"steps",
			all,
			"2 min to agree",
		},
		{
			IDClaim,
			"node IDs that are claimed and released over failing networks by agents that are killed",
			"requests",
			Twice | Crashed,
			"",
		},
		{PodCIDR, "one podCIDR on two or three nodes", "assignments", all, "45 s"},
		{Pinned, "a pinned address that a node ID derives", "pins", Twice | Crashed | Late, "45 s"},
		{
			Released,
			"a released node that cannot be reached, and allocates on",
			"releases",
			Twice | Crashed | Late,
			"45 s",
		},
		{
			Autoscaler,
			"ten of sixteen nodes replaced in a network of sixteen blocks (simulated time)",
			"nodes",
			Twice | Late,
			"7 min",
		},
		{Schedule, "claim protocol: every order of the requests of two nodes", "orders", Twice, ""},
		{ClaimWorld, "claim protocol: random faults and crashes of four nodes", "worlds", Twice, ""},
		{
			IDWorld,
			"node IDs: crashes, copied disks, wiped stores, bad links, set clocks (simulated time)",
			"seeds",
			Twice,
			"",
		},
		{Sim, "simulation of one agent: faults of disk, store and process", "seeds", node, ""},
		{ClusterSim, "simulation of a cluster: faults, stores that are set back, pools that change", "seeds", node, ""},
		{BlockSim, "simulation of one agent whose blocks an operator gives and takes", "seeds", node, ""},
	}
}
