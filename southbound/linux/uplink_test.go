// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// TestPodsUseTheUplinkOfTheirAddress: two nodes with two uplinks each.
func TestPodsUseTheUplinkOfTheirAddress(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 2)
	var pods []*cloudPod
	for _, n := range l.nodes {
		own := []*cloudPod{n.pod(1, 1), n.pod(1, 2), n.pod(2, 1)}
		l.Expect(n.resync(slices.Concat(n.own(1, 2), podValues(own...))...)).To(Succeed())
		pods = append(pods, own...)
	}
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			for _, a := range to.ip {
				l.Expect(echo(from.Namespace, a.String(), 1000)).To(Succeed(), "from %s", from.ip)
			}
		}
		l.Expect(echo(from.Namespace, outside4, 1000)).To(Succeed(), "from %s", from.ip)
		l.Expect(echo(from.Namespace, outside6, 1000)).To(Succeed(), "from %s", from.ip)
	}
	for _, p := range pods {
		l.onlyPort(p)
		for _, a := range p.ip {
			l.Expect(echo(l.outside, a.String(), 1000)).To(Succeed())
		}
	}
	for _, n := range l.nodes {
		l.Expect(echo(n.host, outside4, 1000)).To(Succeed())
		l.Expect(echo(n.host, outside6, 1000)).To(Succeed())
	}
}
