// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package chaos breaks real agents and proves that no address was lost, kept
// or allocated twice.
//
// The tests build the programs once, run them as processes, and kill them, fill
// their disk, damage their files, and send the same requests from many clients at once.
// Two pure parts check the results:
//
//   - Oracle derives the leases that may and that must be held from the answers to
//     clients, and finds the contradictions in a list of leases (crash tests);
//   - history holds concurrent requests with their answers and finds an order of them
//     that explains all answers (linearizability).
//
// Both have tests of their own with wrong histories.
//
// The files cluster_* are about agents over one etcd, which runs in the test and
// is stopped, wiped and restored there, with a proxy between it and each agent:
//
//   - scenarios, each of one calamity (cluster_store, cluster_names, cluster_clock, cluster_clones);
//   - a random world of agents, whose state is compared with what the store and
//     clients say after each of its calamities (cluster_world, cluster_invariants);
//   - histories of node IDs: which ID each instance was told, while claims, releases and
//     networks fail in the middle (cluster_claims, with the model in cluster_ids).
//
// The files world_* are about one agent and its witnesses: real network namespaces and a
// container runtime behind a socket. Pods end properly or not, namespaces and sandboxes are
// lost, agent, runtime and machine fail, and the database is lost or older. After each step
// a live pod has its lease; after the last one ledger and world are equal, and so says
// cadastre check.
//
// Two nodes may have one ID only after the store had lost it. Then the first owner must
// notice that and allocate nothing new. The clock of an agent is set in a
// build of its own, in which clock.go is another one.
//
// CADASTRE_TEST_EFFORT chooses how often each test repeats itself (package effort): 1
// is the default, "make nightly" has 10, "make chaos" 300 (give go test -timeout 5h).
// CADASTRE_TEST_SEED=S repeats the choices of a failed run, which prints S. The
// scheduler's choices are not repeated. CHAOS_FOUND=1 also runs the tests of the known
// failures in docs/reliability.md.
//
// Each test that attacks counts what it tries (package attack); make chaos writes the
// counts and results into docs/reliability.md.
//
// The tests need Linux, and TMPDIR on a path that leaves room for a unix
// socket. The full disk needs a mount namespace: root, or user namespaces; without
// them that test is skipped.
package chaos
