// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package k8s tests what every mode's manifests grant the agent's pod.
package k8s

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/plugins/contivconf"
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
	SeccompProfile           struct{ Type string }
}

type container struct {
	Name            string
	Command, Args   []string
	SecurityContext securityContext
	Resources       struct{ Limits map[string]string }
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

// hostPaths returns the folders of the node by the names of their volumes.
func (s podSpec) hostPaths() map[string]string {
	all := map[string]string{}
	for _, v := range s.Volumes {
		if v.HostPath != nil {
			all[v.Name] = v.HostPath.Path
		}
	}
	return all
}

// mounts returns the mounts of a container by their paths.
func (c container) mounts() map[string]mount {
	all := map[string]mount{}
	for _, m := range c.VolumeMounts {
		all[m.MountPath] = m
	}
	return all
}

// built returns the pod of a DaemonSet of a kustomization, as kubectl applies it.
func built(t *testing.T, name, kustomization string) podSpec {
	t.Helper()
	if _, err := exec.LookPath("kubectl"); err != nil {
		t.Skip("NOT RUN: this machine has no kubectl, which builds kustomizations")
	}
	g := NewWithT(t)
	dir, err := os.MkdirTemp(".", ".test-") // kustomize takes paths below one root
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(os.RemoveAll(dir)).To(Succeed()) })
	g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600)).To(Succeed())
	manifests, err := filepath.Glob("*/*/*.yaml") // go test repeats a test if a file that it has opened differs
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range manifests {
		_, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
	}
	var stderr strings.Builder
	build := exec.CommandContext(t.Context(), "kubectl", "kustomize", dir)
	build.Stderr = &stderr
	text, err := build.Output()
	g.Expect(err).NotTo(HaveOccurred(), stderr.String())
	for object := range strings.SplitSeq(string(text), "\n---\n") {
		var set struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct{ Template struct{ Spec podSpec } }
		}
		g.Expect(yaml.Unmarshal([]byte(object), &set)).To(Succeed())
		if set.Kind == "DaemonSet" && set.Metadata.Name == name {
			return set.Spec.Template.Spec
		}
	}
	t.Fatalf("no DaemonSet %s in %s", name, kustomization)
	return podSpec{}
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
		g.Expect(s.SeccompProfile.Type).To(Equal("RuntimeDefault"), c.Name)
		g.Expect(c.Resources.Limits).To(And(HaveKey("memory"), Not(HaveKey("cpu"))), c.Name)
	}
	g.Expect(spec.InitContainers[0].SecurityContext.Capabilities.Add).To(BeEmpty())
	g.Expect(spec.Containers[0].SecurityContext.Capabilities.Add).To(Equal([]string{"NET_ADMIN", "SYS_ADMIN", "NET_RAW"}))
}

// TestDataplane: each mode makes links and tunnels, and its agent can reach what it needs
// for them at the paths that its configuration names.
func TestDataplane(t *testing.T) {
	g := NewWithT(t)
	spec := agent(g)
	paths, mounts := spec.hostPaths(), spec.Containers[0].mounts()
	modes, err := filepath.Glob("*/contiv.conf")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(modes).To(HaveLen(11))
	for _, mode := range modes {
		conf, unused, err := contivconf.Load(mode)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(unused).To(BeEmpty(), mode)
		g.Expect(conf.Notes).To(BeEmpty(), mode)
		c := conf.Cadastre
		plane := map[bool]contivconf.Dataplane{true: contivconf.DataplaneVPP, false: contivconf.DataplaneLinux}
		g.Expect(c.Dataplane).To(Equal(plane[filepath.Dir(mode) == "vpp"]), mode)
		g.Expect(c.Transport).To(Equal(transportOf(filepath.Dir(mode))), mode)
		for path, readOnly := range map[string]bool{c.CNI.ConfDir: false, c.CNI.BinDir: true} {
			m, ok := mounts[path]
			g.Expect(ok).To(BeTrue(), "%s: %s is not mounted", mode, path)
			g.Expect(m.ReadOnly).To(Equal(readOnly), path)
			g.Expect(paths[m.Name]).To(Equal(path))
		}
	}
	settings := mounts["/host/proc/sys/net"]
	g.Expect(paths[settings.Name]).To(Equal("/proc/sys/net"))
	g.Expect(settings.ReadOnly).To(BeFalse())
	bin := spec.InitContainers[0].mounts()["/host/opt/cni/bin"]
	g.Expect(paths[bin.Name]).To(Equal("/opt/cni/bin"))
	g.Expect(spec.InitContainers[0].Args).To(Equal([]string{"/cadastre-cni=/host/opt/cni/bin/cadastre-cni"}))
}

// transportOf returns the transport of a mode: a cloud routes to the addresses of its
// interfaces, and to the prefixes that it lets pass in its own subnet.
func transportOf(mode string) contivconf.Transport {
	switch mode {
	case "external-openstack":
		return contivconf.TransportNodeIP
	case "interfaces-ec2", "interfaces-openstack", "netresource-ec2", "netresource-openstack":
		return contivconf.TransportNone
	}
	return contivconf.TransportVXLAN
}

// TestFoldersOfDistributions: a component changes the folders of the node, never the paths
// in the pod, so that the configuration is the same everywhere.
func TestFoldersOfDistributions(t *testing.T) {
	for component, c := range map[string]struct{ bin, conf string }{
		"k3s": {"/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d"},
		"gke": {path.Join("/", "home", "kubernetes", "bin"), "/etc/cni/net.d"},
	} {
		t.Run(component, func(t *testing.T) {
			g := NewWithT(t)
			spec := built(t, "cadastre-agent", "resources: [../derived-kubernetes]\ncomponents: [../components/"+component+"]\n")
			paths, mounts := spec.hostPaths(), spec.Containers[0].mounts()
			g.Expect(paths[mounts["/opt/cni/bin"].Name]).To(Equal(c.bin))
			g.Expect(paths[mounts["/etc/cni/net.d"].Name]).To(Equal(c.conf))
			g.Expect(paths[spec.InitContainers[0].mounts()["/host/opt/cni/bin"].Name]).To(Equal(c.bin))
			if component == "k3s" { // what the links in the folder of plugins lead to
				data := mounts["/var/lib/rancher/k3s/data"]
				g.Expect(paths[data.Name]).To(Equal("/var/lib/rancher/k3s/data"))
				g.Expect(data.ReadOnly).To(BeTrue())
			}
		})
	}
}

// TestBridge: with this component the init container installs the list, after the program.
func TestBridge(t *testing.T) {
	g := NewWithT(t)
	spec := built(t, "cadastre-agent", "resources: [../derived-kubernetes]\ncomponents: [../components/bridge]\n")
	install := spec.InitContainers[0]
	g.Expect(install.Args).To(Equal([]string{
		"/cadastre-cni=/host/opt/cni/bin/cadastre-cni",
		"/etc/cadastre-cni/10-cadastre.conflist=/host/etc/cni/net.d/10-cadastre.conflist",
	}))
	g.Expect(spec.hostPaths()[install.mounts()["/host/etc/cni/net.d"].Name]).To(Equal("/etc/cni/net.d"))
	g.Expect(install.mounts()).To(HaveKey("/etc/cadastre-cni"))
}

// TestUninstallWithK3s: the same folders as with the agents' component.
func TestUninstallWithK3s(t *testing.T) {
	g := NewWithT(t)
	ours := built(t, "cadastre-agent", "resources: [../derived-kubernetes]\ncomponents: [../components/k3s]\n").hostPaths()
	uninstall := built(t, "cadastre-uninstall", "resources: [../uninstall-k3s]\n")
	mounts := uninstall.InitContainers[0].mounts()
	for path, volume := range map[string]string{"/opt/cni/bin": "cni-bin", "/etc/cni/net.d": "cni-conf"} {
		g.Expect(uninstall.hostPaths()[mounts[path].Name]).To(Equal(ours[volume]))
	}
}

// TestUninstall: the pods reach the folders that the agent writes, and may change links.
func TestUninstall(t *testing.T) {
	g := NewWithT(t)
	spec := built(t, "cadastre-uninstall", "resources: [../uninstall]\n")
	g.Expect(spec.HostNetwork).To(BeTrue())
	c := spec.InitContainers[0]
	g.Expect(c.Command).To(Equal([]string{"/cadastre", "uninstall", "--yes"}))
	g.Expect(c.SecurityContext.Privileged).To(BeFalse())
	g.Expect(c.SecurityContext.Capabilities.Add).To(Equal([]string{"NET_ADMIN"}))
	ours := agent(g)
	paths := ours.hostPaths()
	for _, path := range []string{"/run/cadastre", "/opt/cni/bin", "/etc/cni/net.d"} {
		m := c.mounts()[path]
		g.Expect(m.ReadOnly).To(BeFalse(), path)
		g.Expect(spec.hostPaths()[m.Name]).To(Equal(path))
		g.Expect(paths[ours.Containers[0].mounts()[path].Name]).To(Equal(path))
	}
}

// TestWitnessesAreMounted: the readers' defaults are paths of the node, and of the pod.
func TestWitnessesAreMounted(t *testing.T) {
	g := NewWithT(t)
	spec := agent(g)
	hostPath, mounted := spec.hostPaths(), spec.Containers[0].mounts()
	types := map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			types[v.HostPath.Path] = v.HostPath.Type
		}
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
