// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cloudlab builds a cluster on one machine for tests against a cloud. The cluster
// has a real kube-apiserver with its etcd, and operators of which one leads. Its nodes are
// network namespaces with a real agent. A hypervisor watches the interfaces that the cloud
// shows for the machines. It plugs a veth with each interface's MAC address into the
// machine's namespace and into a bridge of the interface's network. A router has the
// gateways of all subnets.
//
// Pods come and go through cadastre-cni. A Judge records each ADD and DEL, compares what
// pods hold with the cloud while the test runs, and sees the source addresses of all
// packets that leave a machine.
//
// Operators and agents have the service accounts and the roles of the shipped manifests. A
// request that these do not permit fails the test.
//
// The cloud is known by one function that reads its truth, so every provider can use the
// package. All methods of a Lab are for the test's goroutine unless they say otherwise. New
// skips the test, with the reason, if the machine lacks what a lab needs.
package cloudlab
