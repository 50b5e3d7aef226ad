// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A program that asks the agent without cadastre-cni leases nothing under a bad name.
func TestAnADDWithABadNameLeasesNothing(t *testing.T) {
	for name, change := range map[string]func(r *cni.Request){
		"container": func(r *cni.Request) { r.ContainerID = "c\ufffd" },
		"interface": func(r *cni.Request) { r.IfName = "eth0 and more and more" },
		"network":   func(r *cni.Request) { r.Network = "../pods" },
		"pod":       func(r *cni.Request) { r.Pod.Name = "a/b" },
		"long path": func(r *cni.Request) { r.Netns = strings.Repeat("/run", 2000) },
		"long part": func(r *cni.Request) { r.Netns = "/run/" + strings.Repeat("n", 256) },
		"bytes":     func(r *cni.Request) { r.Netns = "/run/netns/\ufffd" },
		"terminal":  func(r *cni.Request) { r.Netns = "/run/netns/\x1b[31m" },
	} {
		g := NewWithT(t)
		a := newAgent(t, plain)
		r := request("ADD", "c1")
		change(&r)
		_, err := a.serve(r)
		g.Expect(code(g, err)).To(BeElementOf(uint(cni.CodeEnvironment), uint(cni.CodeInvalidConfig)), name)
		g.Expect(a.held()).To(BeEmpty())
	}
}

// Leases whose names would be refused now are deleted under these names.
func TestLeasesUnderNamesThatAreRefusedNow(t *testing.T) {
	for _, k := range []ledger.Key{
		{Network: "pods", ContainerID: "c\ufffd", IfName: "eth0"},
		{Network: "pods", ContainerID: strings.Repeat("x", 1000), IfName: "eth0"},
		{Network: "my pods", ContainerID: "a/b", IfName: "a name that is far too long"},
	} {
		g := NewWithT(t)
		a := newAgent(t, plain)
		_, _, err := a.leases.Claim(context.Background(), ledger.Request{Pool: ipam.PodPool, Key: k})
		g.Expect(err).NotTo(HaveOccurred())
		r := cni.Request{Command: "CHECK", Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
		_, err = a.serve(r)
		g.Expect(err).NotTo(HaveOccurred())
		r.Command = "DEL"
		for range 2 {
			_, err = a.serve(r)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.held()).To(BeEmpty())
		}
	}
}
