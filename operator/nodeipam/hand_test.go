// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// A node may write its own annotations, also that of what it is about to get: what
// another node has, or what no node gets. The next leader gives it something else,
// and the other node stays as it is.
func TestAnIntentForWhatIsNotFree(t *testing.T) {
	for name, intent := range map[string]string{"another node's": "10.0.0.0/28", "reserved": "10.0.0.240/28"} {
		for _, kind := range []nodeipam.CIDRAllocatorType{nodeipam.RangeAllocatorType, fromCluster} {
			t.Run(name+", "+string(kind), func(t *testing.T) {
				g := NewWithT(t)
				cloud := memcloud.New(memcloud.Config{})
				for _, machine := range []string{"victim", "liar"} {
					cloud.AddMachine(machine, "mem://"+machine)
				}
				settings := nodeipam.RangesOf(kind, "10.0.0.0/24 28")
				settings.Reserved = prefixes("10.0.0.240/28")
				withCloud := func(d *nodeipam.Deps) { d.Cloud = cloud }
				b := nodeipam.NewBench(t, settings, withCloud)
				b.Put("victim", "10.0.0.0/28")
				b.Put("liar")
				b.Edit("liar", func(n *v1.Node) { n.Annotations = map[string]string{nodeipam.IntentAnnotation: intent} })
				next := b.Another(t, withCloud)
				g.Expect(next.Look(t.Context(), "victim", "liar")).To(Succeed())
				g.Expect(next.CIDRs()).To(Equal(map[string][]string{"victim": {"10.0.0.0/28"}, "liar": {"10.0.0.16/28"}}))
				g.Expect(next.Status().Problems).To(BeEmpty())
			})
		}
	}
}
