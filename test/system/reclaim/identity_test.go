// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// place is a path that names one network namespace after another.
type place struct {
	path string
	set  func(ns *netlab.Namespace) // nil: the path names none
}

// mount is a file with the mount of a namespace, as "ip netns add" makes.
func (l *lab) mount(name string) place {
	path := filepath.Join(l.agent.Dir, name)
	l.g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
	clear := func() { _ = unix.Unmount(path, unix.MNT_DETACH) }
	l.t.Cleanup(clear)
	return place{path, func(ns *netlab.Namespace) {
		clear()
		if ns != nil {
			l.g.Expect(unix.Mount(ns.Path(), path, "", unix.MS_BIND, "")).To(Succeed())
		}
	}}
}

// link is a symbolic link to the namespace of a process, which stands for /proc/PID/ns/net
// with a PID that the kernel has given to another process.
func (l *lab) link(name string) place {
	path := filepath.Join(l.agent.Dir, name)
	stop := func() {}
	l.t.Cleanup(func() { stop() })
	return place{path, func(ns *netlab.Namespace) {
		stop()
		stop = func() {}
		_ = os.Remove(path)
		if ns == nil {
			return
		}
		process := exec.Command("sleep", "3600")
		l.g.Expect(ns.Do(process.Start)).To(Succeed())
		stop = func() { _ = process.Process.Kill(); _ = process.Wait() }
		l.g.Expect(os.Symlink(fmt.Sprintf("/proc/%d/ns/net", process.Process.Pid), path)).To(Succeed())
	}}
}

// wire answers an ADD of a main plugin for a namespace at a path.
func (l *lab) wire(name, path string) netip.Addr {
	l.t.Helper()
	reply, failure := l.request(l.wireRequest("ADD", name, path))
	l.g.Expect(failure).To(BeNil())
	prefix, err := netip.ParsePrefix(reply.IPs[0].Address)
	l.g.Expect(err).NotTo(HaveOccurred())
	return prefix.Addr()
}

func (l *lab) wireRequest(command, name, path string) cni.Request {
	req := l.requestFor(command, name)
	req.Main, req.Netns = true, path
	return req
}

// addresses returns what "ip address" shows in a namespace.
func (l *lab) addresses(ns *netlab.Namespace) string {
	l.t.Helper()
	text, err := ns.Show("address")
	l.g.Expect(err).NotTo(HaveOccurred())
	return text
}

// repairsNow makes the agent compare all wires with the kernel: it removes the link of a further
// pod and waits until that one is repaired.
func (l *lab) repairsNow(witness *netlab.Namespace) {
	l.t.Helper()
	l.g.Expect(witness.IP("link del eth0")).To(Succeed())
	l.g.Eventually(func() string { return l.addresses(witness) }).WithTimeout(time.Minute).Should(ContainSubstring("eth0"))
}

// The namespace of a pod ends without a DEL, and its path names another one at once. That one never gets the
// interface of the dead pod, whose lease ends after the rules, and its own container can be added.
func TestAStrangerAtThePathOfADeadPod(t *testing.T) {
	for name, at := range map[string]func(*lab, string) place{
		"a mount that is made again":      (*lab).mount,
		"a process ID that is used again": (*lab).link,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, settings{wired: true, undo: "2s"})
			pod, neighbour := l.namespace(), l.namespace()
			t.Cleanup(func() { _ = neighbour.Close() })
			path := at(l, "pod")
			path.set(pod)
			l.cri.Set(critest.Sandbox{ID: "dead", Namespace: "shop", Name: "dead"}, critest.Sandbox{ID: "neighbour", Namespace: "shop", Name: "neighbour"})
			l.wire("neighbour", neighbour.Path())
			a := l.wire("dead", path.path)
			l.g.Expect(l.addresses(pod)).To(ContainSubstring(a.String()))

			stranger := l.namespace()
			t.Cleanup(func() { _ = stranger.Close() })
			path.set(stranger)
			l.g.Expect(pod.Close()).To(Succeed())
			l.repairsNow(neighbour)
			l.rounds(10)
			l.g.Expect(l.addresses(stranger)).NotTo(Or(ContainSubstring("eth0"), ContainSubstring(a.String())))
			l.g.Expect(l.state("dead")).To(Equal("held"), "the runtime still has its sandbox")
			_, failure := l.request(l.wireRequest("CHECK", "dead", path.path))
			l.g.Expect(failure).NotTo(BeNil())
			l.g.Expect(failure.Msg).To(ContainSubstring("names another network namespace by now"))

			l.cri.Set(critest.Sandbox{ID: "alive", Namespace: "shop", Name: "alive"}, critest.Sandbox{ID: "neighbour", Namespace: "shop", Name: "neighbour"})
			b := l.wire("alive", path.path)
			l.g.Expect(b).NotTo(Equal(a))
			l.becomes("dead", "pending")
			l.kill()
			l.becomes("dead", "")
			l.g.Expect(l.addresses(stranger)).To(And(ContainSubstring("eth0"), ContainSubstring(b.String()), Not(ContainSubstring(a.String()))))
			_, failure = l.request(l.wireRequest("CHECK", "alive", path.path))
			l.g.Expect(failure).To(BeNil())
			l.g.Expect(l.state("neighbour")).To(Equal("held"))
		})
	}
}

// A living pod keeps its lease and its interface while its path names another namespace.
func TestAnotherNamespaceAtThePathOfALivingPod(t *testing.T) {
	l := newLab(t, settings{wired: true, undo: "1s"})
	pod, stranger := l.namespace(), l.namespace()
	t.Cleanup(func() { _, _ = pod.Close(), stranger.Close() })
	path := l.mount("pod")
	path.set(pod)
	a := l.wire("c1", path.path)
	l.rounds(3)
	path.set(stranger)
	l.cri.Set()
	l.rounds(12)
	l.kill()
	l.rounds(12)
	l.g.Expect(l.state("c1")).To(Equal("held"))
	l.g.Expect(l.addresses(pod)).To(ContainSubstring(a.String()))
	l.g.Expect(l.addresses(stranger)).NotTo(ContainSubstring("eth0"))
}

// The runtime makes the sandbox again and repeats the ADD: the interface and the lease are those of the new namespace.
func TestTheADDIsRepeatedWithANewNamespace(t *testing.T) {
	l := newLab(t, settings{wired: true, undo: "1s"})
	first, second := l.namespace(), l.namespace()
	t.Cleanup(func() { _ = second.Close() })
	path := l.mount("pod")
	path.set(first)
	a := l.wire("c1", path.path)
	path.set(second)
	l.g.Expect(first.Close()).To(Succeed())
	l.g.Expect(l.wire("c1", path.path)).To(Equal(a))
	l.g.Expect(l.addresses(second)).To(ContainSubstring(a.String()))
	l.cri.Set()
	l.kill()
	l.rounds(12)
	l.g.Expect(l.state("c1")).To(Equal("held"))
	_, failure := l.request(l.wireRequest("CHECK", "c1", path.path))
	l.g.Expect(failure).To(BeNil())
}

// The agent does not take a vanished namespace for a failure: it stays ready, logs that once, and waits for the end of the lease.
func TestAVanishedNamespaceLeavesTheAgentQuiet(t *testing.T) {
	l := newLab(t, settings{wired: true, undo: "1h"})
	pod, neighbour := l.namespace(), l.namespace()
	t.Cleanup(func() { _ = neighbour.Close() })
	path := l.mount("pod")
	path.set(pod)
	l.cri.Set(critest.Sandbox{ID: "c1", Namespace: "shop", Name: "c1"})
	l.wire("neighbour", neighbour.Path())
	l.wire("c1", path.path)
	path.set(nil)
	l.g.Expect(pod.Close()).To(Succeed())
	log := func() string {
		text, err := os.ReadFile(l.agent.Log())
		l.g.Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	l.g.Eventually(log).WithTimeout(time.Minute).Should(ContainSubstring("a value waits for its release"))
	l.repairsNow(neighbour)
	l.cli("resync")
	l.repairsNow(neighbour)
	l.g.Expect(strings.Count(log(), "a value waits for its release")).To(Equal(1))
	l.g.Expect(log()).NotTo(Or(ContainSubstring("ealing"), MatchRegexp("level=WARN.*c1/eth0"), ContainSubstring("keys=[pod/pods/c1/eth0")))
	l.g.Expect(l.state("c1")).To(Equal("held"))
}
