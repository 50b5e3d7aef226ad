// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ec2 is the provider of Amazon EC2: it implements cloud.Cloud with network
// interfaces, their secondary addresses, and prefixes.
//
// A Cloud owns the interfaces that carry its tags (TagCluster with Config.Cluster); it
// deletes no other interface. It keeps instance types, VPCs and the facts of interfaces that
// never change; everything else is read each time.
//
// # Concurrency
//
// Any goroutine may call any method. The package starts no goroutine. All requests to EC2
// pass Config.Transport, which limits them; the SDK repeats none.
//
// # Failure
//
// Errors wrap cloud.ErrFull, cloud.ErrThrottled and cloud.ErrNoInstance, contain EC2's own
// error, and say what the user can do. CreateInterface tags each interface at its creation,
// so an interface whose creation, attachment or clean-up was lost is found by DeleteOrphans.
//
// Prefixes (/28 and /80) are not tested against EC2.
package ec2
