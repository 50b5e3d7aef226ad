// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ours drives Cadastre's own allocators with the workload of the peers:
// the free-space index alone (ledger/addrspace), and the ledger, which knows
// the owners, in memory and on the disk. It has benchmarks only.
package ours
