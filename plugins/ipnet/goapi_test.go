// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A lease of the Go API is not an attachment: neither an allocation nor a resync
// brings it southbound. What a sandbox has there goes with its DEL.
func TestTheGoAPIAndTheSouthbound(t *testing.T) {
	id := kv.PodID{Namespace: "default", Name: "web-0"}
	for _, c := range []struct {
		name string
		do   func(g Gomega, a *agent)
	}{
		{"an allocation", func(g Gomega, a *agent) {
			_, err := a.ipam.AllocatePodIP(id, "", "")
			g.Expect(err).NotTo(HaveOccurred())
		}},
		{"a release after a resync", func(g Gomega, a *agent) {
			_, err := a.ipam.AllocatePodIP(id, "", "")
			g.Expect(err).NotTo(HaveOccurred())
			a.resync()
			g.Expect(a.ipam.ReleasePodIP(id)).To(Succeed())
		}},
		{"a release of a sandbox's address, and its DEL", func(g Gomega, a *agent) {
			a.add("c1", "web-0")
			g.Expect(a.ipam.ReleasePodIP(id)).To(Succeed())
			_, err := a.serve(cni.Request{Command: "DEL", Network: "pods", ContainerID: "c1", IfName: "eth0"})
			g.Expect(err).NotTo(HaveOccurred())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			running(t, single, func(g Gomega, a *agent) {
				c.do(g, a)
				byUpdates := a.wanted()
				a.resync()
				g.Expect(a.wanted()).To(Equal(byUpdates))
			})
		})
	}
}

// A repeated ADD that names another pod does not change whose lease it is, so
// it must not change what is wanted southbound either.
func TestARepeatedAddThatNamesAnotherPod(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		a.add("c1", "web-0")
		a.add("c1", "web-1")
		byUpdates := a.wanted()
		a.resync()
		g.Expect(a.wanted()).To(Equal(byUpdates))
	})
}
