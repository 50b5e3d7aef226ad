// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package chaos breaks real agents and proves that no address was lost, kept
// or lent twice.
//
// The tests build the programs once, run them as processes, and kill them, fill
// their disk, damage their files, and ask them for the same thing from many
// sides at once. What must be true is said by two pure parts:
//
//   - Oracle, which knows from what clients were told what may and what must be
//     held, and says what in a book of leases contradicts it (crash tests);
//   - History, which holds concurrent requests with their answers and says
//     whether some order of them explains all answers (linearizability).
//
// Both have tests of their own that show them wrong histories.
//
// The files cluster_* are about agents over one etcd, which runs in the test and
// is stopped, wiped and restored there, with a proxy between it and each agent:
//
//   - stories, each of one calamity (cluster_store, cluster_names, cluster_clock, cluster_clones);
//   - a random world of agents, whose state is compared with what the store and
//     clients say after each of its calamities (cluster_world, cluster_invariants);
//   - histories of node IDs: who was told which, while claims, releases and
//     networks fail in the middle (cluster_claims, with the model in cluster_ids).
//
// An ID may be in two hands only after the store had lost it, and then who had
// it first must find out and lend nothing new. The clock of an agent is set in a
// build of its own, in which clock.go is another one.
//
// CADASTRE_TEST_EFFORT chooses how often each test repeats itself (package effort): 1
// is the default, "make ci" has 10, "make chaos" 300 (give go test -timeout 5h).
// CADASTRE_TEST_SEED=S repeats the choices of a failed run, which prints S. The
// scheduler's choices are not repeated. CHAOS_FOUND=1 also runs the tests of the known
// failures in docs/reliability.md.
//
// Each test that attacks counts what it tries (package attack); make chaos writes the
// counts and results into docs/reliability.md.
//
// The tests need Linux, and TMPDIR on a path that leaves room for a unix
// socket. The full disk needs a mount namespace: root, or user namespaces; where
// there are none that test says that it was skipped.
//
// Example: a client was told an address, the agent was killed, and the book
// that the next agent opens has nothing for it.
//
//	o := chaos.NewOracle()
//	o.Begin(key, chaos.Add)
//	err := o.End(key, chaos.Add, chaos.Told(addr))    // nil
//	err = o.Settle(chaos.Book{}, nil)                 // "... holds nothing, it was told 10.1.5.2"
package chaos
