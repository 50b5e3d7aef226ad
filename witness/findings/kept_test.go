// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// TestWhyKept: "cadastre repair C206 --all" releases only what no witness of the node can
// tell about, and what none contradicts.
func TestWhyKept(t *testing.T) {
	for name, c := range map[string]struct {
		change func(l *ledger.Lease, w *witness.World)
		want   string
	}{
		"nothing speaks for the pod": {func(*ledger.Lease, *witness.World) {}, ""},
		"Docker's lease":             {func(l *ledger.Lease, _ *witness.World) { l.Purpose = ledger.ForDocker }, "not of a pod"},
		"a runtime":                  {func(_ *ledger.Lease, w *witness.World) { state(w, witness.Runtime, witness.Present) }, "this node has a container runtime"},
		"a runtime that is away":     {func(_ *ledger.Lease, w *witness.World) { state(w, witness.Runtime, witness.Missing) }, "the runtime cannot be asked"},
		"no kernel":                  {func(_ *ledger.Lease, w *witness.World) { w.Kernel = nil }, "the kernel cannot be asked"},
		"its namespace":              {func(l *ledger.Lease, _ *witness.World) { l.NetNS = "/proc/1/ns/net" }, "still exists"},
		"its pod in the cluster": {func(_ *ledger.Lease, w *witness.World) {
			w.Cluster.Pods = []witness.ClusterPod{{Namespace: "default", Name: "web"}}
		}, "the cluster still has pod default/web"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := emptyNode()
			state(&n.world, witness.Runtime, witness.NotApplicable)
			l := ledger.Lease{Purpose: ledger.ForPod, NetNS: "/run/netns/gone", Pod: ledger.Pod{Namespace: "default", Name: "web"}}
			c.change(&l, &n.world)
			why := findings.WhyKept(&l, &n.world)
			if c.want == "" {
				g.Expect(why).To(BeEmpty())
			} else {
				g.Expect(why).To(ContainSubstring(c.want))
			}
		})
	}
}

// state sets the state of a witness.
func state(w *witness.World, name witness.Name, s witness.State) {
	for i := range w.Reports {
		if w.Reports[i].Name == name {
			w.Reports[i].State = s
		}
	}
}
