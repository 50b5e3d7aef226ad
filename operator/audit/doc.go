// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit compares the objects of the cluster with each other, and publishes the
// differences in the cluster store, where each agent reads them for
// "cadastre check --cluster". findings.CompareCluster decides; this package reads,
// confirms and publishes. It changes nothing else.
//
// # Ownership
//
// Only the Auditor of the operator that leads writes kv.ClusterCheckKey.
//
// # Confirmation
//
// The objects are in two stores that are read one after the other, and a node that is
// being added has some of them before the others. A finding is published only if two
// comparisons in a row have it, at least Deps.Confirm apart. A Node that the informer
// does not have counts as absent only if the API server says so as well. A new leader
// publishes nothing before its second comparison: until then the report of the earlier
// leader stays, with its age.
//
// # Failure
//
// A comparison that cannot read everything publishes nothing, and the age of the last
// report rises. Values that cannot be decoded, and kinds of objects that this operator
// does not read, are named in the report.
//
// Run is one goroutine with the informers that it starts. It returns when its context
// ends and everything has ended, or if another process leads.
package audit
