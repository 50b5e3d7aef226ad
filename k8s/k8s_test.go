// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package k8s tests what every mode's manifests grant the agent's pod.
package k8s

import (
	"os"
	"path"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/witness/kernel"
	"github.com/cadastre/cadastre/witness/runtime"
)

type mount struct {
	Name, MountPath, MountPropagation string
	ReadOnly                          bool
}

type securityContext struct {
	ReadOnlyRootFilesystem   bool
	AllowPrivilegeEscalation *bool
	Privileged               bool
	Capabilities             struct{ Add, Drop []string }
}

type container struct {
	Name            string
	SecurityContext securityContext
	VolumeMounts    []mount
}

type podSpec struct {
	HostNetwork, HostPID, HostIPC bool
	InitContainers, Containers    []container
	Volumes                       []struct {
		Name     string
		HostPath *struct{ Path, Type string }
	}
}

func agent(g *WithT) podSpec {
	var set struct {
		Spec struct{ Template struct{ Spec podSpec } }
	}
	text, err := os.ReadFile("base/agent.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.Unmarshal(text, &set)).To(Succeed())
	return set.Spec.Template.Spec
}

// TestPrivileges: each right more needs a reason, and a change here.
func TestPrivileges(t *testing.T) {
	g := NewWithT(t)
	spec := agent(g)
	g.Expect(spec.HostNetwork).To(BeTrue())
	g.Expect(spec.HostPID || spec.HostIPC).To(BeFalse())
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		s := c.SecurityContext
		g.Expect(s.Privileged).To(BeFalse(), c.Name)
		g.Expect(s.ReadOnlyRootFilesystem).To(BeTrue(), c.Name)
		g.Expect(s.AllowPrivilegeEscalation).To(HaveValue(BeFalse()), c.Name)
		g.Expect(s.Capabilities.Drop).To(Equal([]string{"ALL"}), c.Name)
	}
	g.Expect(spec.InitContainers[0].SecurityContext.Capabilities.Add).To(BeEmpty())
	g.Expect(spec.Containers[0].SecurityContext.Capabilities.Add).To(Equal([]string{"NET_ADMIN"}))
}

// TestWitnessesAreMounted: the readers' defaults are paths of the node, and of the pod.
func TestWitnessesAreMounted(t *testing.T) {
	g := NewWithT(t)
	spec := agent(g)
	hostPath, types := map[string]string{}, map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			hostPath[v.Name], types[v.HostPath.Path] = v.HostPath.Path, v.HostPath.Type
		}
	}
	mounted := map[string]mount{}
	for _, m := range spec.Containers[0].VolumeMounts {
		mounted[m.MountPath] = m
	}
	elsewhere := []string{
		"/var/run/cri-dockerd.sock", // in the folder of the whole system
		"/var/run/docker/netns",     // of nodes with Docker's driver
	}
	wanted := slices.Clone(kernel.DefaultDirs())
	for _, socket := range runtime.DefaultSockets() {
		if !slices.Contains(elsewhere, socket) {
			g.Expect(types).To(HaveKeyWithValue(path.Dir(socket), ""), "the kubelet makes no folder")
			wanted = append(wanted, path.Dir(socket))
		}
	}
	for _, dir := range wanted {
		if slices.Contains(elsewhere, dir) {
			continue
		}
		m, ok := mounted[dir]
		g.Expect(ok).To(BeTrue(), "%s is not mounted", dir)
		g.Expect(hostPath[m.Name]).To(Equal(dir), "another path in the pod than on the node")
		g.Expect(m.ReadOnly).To(BeTrue(), dir)
		g.Expect(m.MountPropagation).To(Equal("HostToContainer"), dir)
	}
}
