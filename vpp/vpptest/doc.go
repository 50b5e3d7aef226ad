// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package vpptest starts real VPPs for tests, and has the tests of package vpp that need
// packets: nodes are network namespaces, each with a VPP and a real agent, and pods are
// attached by cadastre-cni as a runtime does.
//
// # Environment
//
//	VPP_BIN           the program vpp, release 25.10: the tests start one for each node, and kill it
//	VPP_PLUGIN_PATH   the folder of its plugins; "": that of the build
//	LD_LIBRARY_PATH   of its libraries, unless they are in the folders of the system
//	VPP_API_SOCKET    the API socket of a VPP that runs already, in a network namespace of its
//	                  own: for TestRefusals, and the tests of package vpp
//	VPP_TEST_PODS     the number of pods under which VPP is killed; "": 250
//	VPP_TEST_PAGE     the file that gets the table of measurements
//
// Tests that need what is not set are skipped with the reason. All need root. The plugins
// af_packet, vxlan and nat are needed.
//
// # Layout
//
//	pod a  pod b            pod c
//	   |      |                |
//	[ VPP of node 1 ]   [ VPP of node 2 ]     host of node N: namespace of VPP and agent
//	   | eth1    | TAP     | eth1    | TAP
//	   |        host       |        host
//	   +---- segment ------+  router: 192.168.16.254, outside: 203.0.113.1
//
// A second network, management, connects the hosts with the cluster's store: an agent reaches
// it while its VPP is away.
package vpptest
