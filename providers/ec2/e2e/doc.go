// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Cadastre with Amazon EC2 from outside: moto behind a proxy that
// throttles, loses answers and shows old readings, a real kube-apiserver, the programs
// cadastre-operator-ec2 and cadastre-agent-ec2, and pods in network namespaces behind veths
// that play the interfaces of the machines.
//
// The bridges and the router between the machines are this test's, so it shows which
// interface a packet takes and not what a real VPC does with it.
package e2e
