// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Cadastre with OpenStack from outside: a real Neutron server behind a
// proxy that throttles, loses answers and shows old readings, a real kube-apiserver, the
// programs cadastre-operator-openstack and cadastre-agent-openstack, and pods in network
// namespaces behind veths that play the ports of the machines.
package e2e
