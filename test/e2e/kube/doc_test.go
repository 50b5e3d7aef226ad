// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube tests operator and agent against a real Kubernetes control
// plane. It runs an etcd and a kube-apiserver, a kube-controller-manager as the
// foreign counterpart, and kubectl for manifests. All come from the module
// test/e2e/kubernetes. It has tests only.
//
// KUBEBUILDER_ASSETS names the directory of those programs; without it every
// test is skipped, and says why. Everything listens on the loopback interface, at
// ports that are free, and needs no root. What is started dies with the test's
// process, however that ends.
//
// One control plane serves the whole run. A test gets a cluster without nodes of
// it, and leaves none behind; tests that torment the API server start their own.
// A judge watches all Node objects of a test, and says what must always be true.
// No two Node objects that exist at the same time have overlapping podCIDRs, and
// podCIDRs once set are never changed.
//
// With -short there are 200 nodes and 1 000 pods where there else are 2 000 and
// 10 000.
//
// Example: a node gets its block from one of the controllers.
//
//	c := newCluster(t)
//	startOperator(t, c, nodeipam.Options{Allocate: true, Cluster: "10.0.0.0/16"})
//	c.create("node-1")
//	c.awaitNumbered("node-1")
package kube
