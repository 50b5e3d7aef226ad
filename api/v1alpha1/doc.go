// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is Cadastre's own Kubernetes objects, group cadastre.dev,
// and what Kubernetes' own objects are in the words of package kv.
//
// People write CustomNetwork and NodeConfig: a pod network beside the default
// one, and how one node is set up. Where agents have no etcd, the cluster's other
// state is objects too. Agents claim node IDs with NodeID, NodeName and NodeBeat. A
// Pool is a part of a pod network. These objects are written by agents (and by
// "cadastre apply"); "kubectl get nodeids,pools" shows them. No other program should
// change them.
//
// A NetResourceSet is what one node has of addresses, and wants, where an
// operator keeps pools at watermarks; an AddressPool is what such an operator
// cuts blocks of.
//
// All are cluster-scoped. Those that are cluster state have ToKV, which makes the
// message of package kv that reflector, mirror and handlers work with. Those that
// agents write have a From function as well, and both ways nothing is lost.
//
// The deep copies and the definitions in k8s/crd are generated: make generate.
//
// Example:
//
//	apiVersion: cadastre.dev/v1alpha1
//	kind: CustomNetwork
//	metadata:
//	  name: blue
//	spec:
//	  subnetCIDR: 10.5.0.0/16
//	  subnetOneNodePrefixLen: 24
//
// +kubebuilder:object:generate=true
// +groupName=cadastre.dev
package v1alpha1
