// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// TestModeVPP: the agent with VPP reaches the folder of VPP's socket at the path that the
// configuration names, and has no more rights than that of the kernel.
func TestModeVPP(t *testing.T) {
	g := NewWithT(t)
	all := workloads(t, "vpp")
	g.Expect(all).To(HaveLen(2))
	g.Expect(all["cadastre-agent"].Spec.Template.Spec.Containers[0].Image).To(Equal("cadastre-agent-vpp:0.1.0-dev"))
	g.Expect(all["cadastre-operator"].Spec.Template.Spec.Containers[0].Image).To(Equal("cadastre-operator:0.1.0-dev"))

	conf, _, err := contivconf.Load("vpp/contiv.conf")
	g.Expect(err).NotTo(HaveOccurred())
	spec := built(t, "cadastre-agent", "resources: [../vpp]\n")
	paths, mounts := spec.hostPaths(), spec.Containers[0].mounts()
	v := conf.Cadastre.VPP
	dir := filepath.Dir(v.Socket)
	g.Expect(mounts).To(HaveKey(dir))
	g.Expect(paths[mounts[dir].Name]).To(Equal(dir))
	g.Expect(conf.VPPNode("any").Main).NotTo(BeEmpty(), "VPP needs a link to the other nodes")
	base := built(t, "cadastre-agent", "resources: [../derived-kubernetes]\n")
	g.Expect(spec.Containers[0].SecurityContext).To(Equal(base.Containers[0].SecurityContext))
	g.Expect(spec.Containers[0].Args).To(Equal(base.Containers[0].Args))
}
