// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// box is a container with the rights and mounts of the agent's, and a program in it.
type box struct {
	Gomega
	t         *testing.T
	spec      container
	hostPaths map[string]string
	id        string // of the container, and of its files
}

func newBox(t *testing.T) *box {
	t.Helper()
	for _, program := range []string{"runc", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: this machine has no %s", program)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: a container needs root")
	}
	g := NewWithT(t)
	g.Expect(stage.LookAtSources("..")).To(Succeed())
	spec := agent(g)
	return &box{g, t, spec.Containers[0], spec.hostPaths(), fmt.Sprintf("cadastre-rights-%d", os.Getpid())}
}

// namespace makes a network namespace below /var/run/netns, as a runtime does.
func (b *box) namespace(name string) string {
	b.t.Helper()
	name = b.id + "-" + name
	b.command("ip", "netns", "add", name)
	b.t.Cleanup(func() { b.command("ip", "netns", "delete", name) })
	return name
}

func (b *box) command(program string, args ...string) string {
	b.t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput() //nolint:noctx // also during the cleanup
	b.Expect(err).NotTo(HaveOccurred(), "%s %v: %s", program, args, out)
	return string(out)
}

// run runs the program of testdata/wire in a container on the node's network namespace.
func (b *box) run(node, pod string) (output string, err error) {
	b.t.Helper()
	bundle := b.t.TempDir()
	root := filepath.Join(bundle, "rootfs")
	build := exec.CommandContext(b.t.Context(), "go", "build", "-o", filepath.Join(root, "wire"), "./testdata/wire")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	b.Expect(err).NotTo(HaveOccurred(), string(out))
	b.Expect(os.Mkdir(filepath.Join(root, "proc"), 0o755)).To(Succeed())

	type object = map[string]any
	mounts := []object{{"destination": "/proc", "type": "proc", "source": "proc"}}
	for _, m := range b.spec.VolumeMounts {
		source := b.hostPaths[m.Name]
		if source != "/proc/sys/net" && source != "/var/run/netns" {
			continue // what a wire does not need
		}
		b.Expect(os.MkdirAll(filepath.Join(root, m.MountPath), 0o755)).To(Succeed())
		access, propagation := "rw", "rprivate"
		if m.ReadOnly {
			access = "ro"
		}
		if m.MountPropagation == "HostToContainer" {
			propagation = "rslave"
		}
		mounts = append(mounts, object{
			"destination": m.MountPath, "type": "bind", "source": source, "options": []string{"rbind", propagation, access},
		})
	}
	security, rights := b.spec.SecurityContext, []string{}
	for _, c := range security.Capabilities.Add {
		rights = append(rights, "CAP_"+c)
	}
	text, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "args": []string{"/wire", "/var/run/netns/" + pod}, "cwd": "/",
			"noNewPrivileges": !*security.AllowPrivilegeEscalation,
			"capabilities":    object{"bounding": rights, "effective": rights, "permitted": rights},
		},
		"root":   object{"path": "rootfs", "readonly": security.ReadOnlyRootFilesystem},
		"mounts": mounts,
		"linux": object{
			"namespaces": []object{
				{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
				{"type": "network", "path": "/var/run/netns/" + node},
			},
			// as containerd and CRI-O have it
			"readonlyPaths": []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	})
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)).To(Succeed())
	runc := exec.CommandContext(b.t.Context(), "runc", "--root", filepath.Join(bundle, "state"), "run", "--bundle", bundle, b.id)
	out, err = runc.CombinedOutput()
	return string(out), err
}

// without returns the box without a capability.
func (b *box) without(capability string) *box {
	less := *b
	less.spec.SecurityContext.Capabilities.Add = nil
	for _, c := range b.spec.SecurityContext.Capabilities.Add {
		if c != capability {
			less.spec.SecurityContext.Capabilities.Add = append(less.spec.SecurityContext.Capabilities.Add, c)
		}
	}
	return &less
}

// node makes the network namespace of a node, with an interface of a cloud.
func (b *box) node(name string) string {
	b.t.Helper()
	name = b.namespace(name)
	b.command("ip", "-n", name, "link", "add", "ens1", "address", "02:77:00:00:01:01", "type", "veth", "peer", "name", "cloud")
	b.command("ip", "-n", name, "link", "set", "cloud", "up")
	b.command("ip", "-n", name, "address", "add", "10.77.1.5/24", "dev", "ens1")
	return name
}

// TestRightsMakeAWire: the rights of the agent's pod make a wire, also into a namespace
// where IPv6 is turned off, which takes a setting. They also put an address on an interface
// of a cloud. None of the pod's capabilities is too many.
func TestRightsMakeAWire(t *testing.T) {
	b := newBox(t)
	for _, capability := range b.spec.SecurityContext.Capabilities.Add {
		_, err := b.without(capability).run(b.node("node-"+capability), b.namespace("pod-"+capability))
		b.Expect(err).To(HaveOccurred(), "%s is not needed", capability)
	}
	node, pod := b.node("node"), b.namespace("pod")
	b.command("ip", "netns", "exec", pod, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")
	output, err := b.run(node, pod)
	b.Expect(err).NotTo(HaveOccurred(), output)
	b.Expect(b.command("ip", "-n", pod, "-6", "addr", "show", "dev", "eth0")).To(ContainSubstring("fd01::2/128"))
	b.Expect(b.command("ip", "-n", node, "route")).To(ContainSubstring("10.1.5.2 dev cad0123456789ab proto 202"))
}
