// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/engines/containerd"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/internal/testkit/stage/stagetest"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

// newPod is a pod that runs.
func newPod(name, ip string) (p pod) {
	p.Metadata.Namespace, p.Metadata.Name = "default", name
	p.Spec.NodeName = "node-1"
	p.Status.Phase, p.Status.PodIP = "Running", ip
	return p
}

// good is a scene in which everything fits.
func good() scene {
	lease := func(name, ip string) localapi.Lease {
		return localapi.Lease{IP: ip, State: "held", Purpose: "pod", PodNamespace: "default", PodName: name}
	}
	return scene{
		pods:   []pod{newPod("a", "10.1.1.2"), newPod("b", "10.1.1.3")},
		leases: []localapi.Lease{lease("b", "10.1.1.3"), lease("a", "10.1.1.2")},
		links:  []wire{{"node-1", "10.1.1.2", "cada"}, {"node-1", "10.1.1.3", "cadb"}},
	}
}

func TestCompare(t *testing.T) {
	g := NewWithT(t)
	g.Expect(good().compare()).To(Succeed())
	g.Expect(scene{}.compare()).To(Succeed())
	for what, x := range map[string]struct {
		change func(*scene)
		want   string
	}{
		"leaked":              {func(s *scene) { s.pods = s.pods[:1] }, "10.1.1.3 is held for default/b, which is not there"},
		"of a namespace":      {func(s *scene) { s.leases[0].PodNamespace = "other" }, "10.1.1.3 is held for other/b, which is not there"},
		"not leased":          {func(s *scene) { s.leases = s.leases[:1] }, "default/a has 0 leases"},
		"twice":               {func(s *scene) { s.leases = append(s.leases, s.leases[0]) }, "default/b has 2 leases"},
		"another address":     {func(s *scene) { s.pods[0].Status.PodIP = "10.1.1.9" }, "default/a has the address 10.1.1.9 and a lease of 10.1.1.2"},
		"another's address":   {func(s *scene) { s.pods[0].Status.PodIP = "10.1.1.3" }, "default/a has the address 10.1.1.3"},
		"not yet":             {func(s *scene) { s.pods[1].Status.Phase = "Pending" }, `default/b is Pending`},
		"no address":          {func(s *scene) { s.pods[1].Status.PodIP = "" }, `default/b is Running with address ""`},
		"cooling of a pod":    {func(s *scene) { s.leases[1].State = "cooling" }, "10.1.1.2 of default/a is cooling"},
		"cooling of no pod":   {func(s *scene) { s.leases[0].State, s.pods = "cooling", s.pods[:1] }, "10.1.1.3 is cooling for default/b"},
		"no link":             {func(s *scene) { s.links[0].link = "" }, "default/a has no link to 10.1.1.2 on node-1"},
		"link elsewhere":      {func(s *scene) { s.links[0].node = "node-2" }, "default/a has no link to 10.1.1.2 on node-1"},
		"link left":           {func(s *scene) { s.links = append(s.links, wire{node: "node-1", link: "cadc"}) }, `node-1 has a link "cadc"`},
		"an ADD that is over": {func(s *scene) { s.leases[0].State, s.leases[0].PodName = "pending", "" }, "10.1.1.3 is pending for default/"},
	} {
		s := good()
		x.change(&s)
		g.Expect(s.compare()).To(MatchError(ContainSubstring(x.want)), what)
	}
}

func TestChanged(t *testing.T) {
	g := NewWithT(t)
	g.Expect(changed(good().leases, good().leases)).To(Succeed())
	g.Expect(changed(good().leases, good().leases[1:])).To(MatchError("10.1.1.3 of b is gone or has changed"))
	g.Expect(changed(good().leases[1:], good().leases)).To(MatchError("10.1.1.3 of b is new or has changed"))
	other := good().leases
	other[0].ContainerID = "another"
	g.Expect(changed(good().leases, other)).To(HaveOccurred())
}

// fake is a machine on which these packages are missing.
func fake(lack ...string) machine {
	return machine{
		root: true, namespaces: func() error { return nil }, missing: func() []string { return lack }, aptGet: true,
		apt: func(context.Context, ...string) error { return errors.New("apt-get was called") },
	}
}

func TestNeeds(t *testing.T) {
	g := NewWithT(t)
	g.Expect(fake().need(t.Context(), io.Discard)).To(Succeed())
	nobody, walled, systemd, other := fake(), fake(), fake("containerd"), fake("iptables")
	nobody.root, other.aptGet = false, false
	walled.namespaces = func() error { return errors.New("it is not permitted") }
	systemd.systemd = true
	for why, m := range map[string]machine{
		"this user is not root": nobody, "it is not permitted": walled, "no apt-get to install them with: iptables": other,
		"would start one for the whole machine": systemd, "cannot be installed: containerd, iptables: apt-get was called": fake("containerd", "iptables"),
	} {
		g.Expect(m.need(t.Context(), io.Discard)).To(MatchError(ContainSubstring(why)))
		var stdout, stderr bytes.Buffer
		g.Expect(run(t.Context(), m, nil, &stdout, &stderr)).To(BeZero(), "it is not a failure")
		g.Expect(stdout.String()).To(And(HavePrefix(firstLine+"\n"), ContainSubstring("\nNOT RUN: "), ContainSubstring(why)))
		g.Expect(stderr.Len()).To(BeZero())
	}
}

func TestInstall(t *testing.T) {
	g := NewWithT(t)
	for failures, want := range [][]string{{"install"}, {"install", "update", "install"}, {"install", "update", "install"}} {
		lack, calls, m := []string{"iptables", "conntrack"}, []string{}, fake()
		m.missing = func() []string { return lack }
		m.systemd = true // it starts nothing of these
		m.apt = func(_ context.Context, args ...string) error {
			calls = append(calls, args[0])
			if args[0] == "install" && strings.Count(strings.Join(calls, " "), "install") <= failures {
				return errors.New("404")
			}
			if args[0] == "install" {
				g.Expect(args).To(Equal([]string{"install", "--yes", "--no-install-recommends", "iptables", "conntrack"}))
				lack = nil
			}
			return nil
		}
		err := m.need(t.Context(), io.Discard)
		g.Expect(calls).To(Equal(want))
		if failures < 2 {
			g.Expect(err).NotTo(HaveOccurred())
		} else {
			g.Expect(err).To(MatchError(ContainSubstring("404")))
		}
	}
	m := fake("iptables")
	m.apt = func(context.Context, ...string) error { return nil }
	g.Expect(m.need(t.Context(), io.Discard)).To(MatchError(ContainSubstring("have not what they should: iptables")))
}

func TestCommandLine(t *testing.T) {
	g := NewWithT(t)
	for _, args := range []string{"jump", "--no-such-flag", "--namespaces=user"} {
		var stderr bytes.Buffer
		g.Expect(run(t.Context(), fake(), strings.Fields(args), io.Discard, &stderr)).To(Equal(2), args)
		g.Expect(stderr.Len()).NotTo(BeZero(), args)
	}
	g.Expect(run(t.Context(), fake(), []string{"--help"}, io.Discard, io.Discard)).To(BeZero())
	var stderr bytes.Buffer
	g.Expect(run(t.Context(), fake(), []string{"--dir=" + t.TempDir(), derived}, io.Discard, &stderr)).To(Equal(1), "it would furnish the whole machine")
	g.Expect(stderr.String()).To(ContainSubstring("start it without a verb"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(run(ctx, fake("iptables"), nil, io.Discard, io.Discard)).To(Equal(1), "interrupted")
}

// TestRestore: that a setting has changed is told, even though it is put back.
func TestRestore(t *testing.T) {
	was, err := saved()
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("NOT RUN: this kernel has not the settings: %v", err)
	}
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(slices.Collect(maps.Keys(was))).To(ConsistOf(slices.Collect(maps.Keys(settings()))))
	g.Expect(restore(was)).To(Succeed())
	file := filepath.Join(t.TempDir(), "setting")
	g.Expect(os.WriteFile(file, []byte("1\n"), 0o600)).To(Succeed())
	g.Expect(put(file, []byte("0\n"), []byte("1\n"))).To(MatchError(ContainSubstring("was 0 and has become 1")))
	g.Expect(os.ReadFile(file)).To(Equal([]byte("0\n")))
	g.Expect(put(file, []byte("0\n"), []byte("0\n"))).To(Succeed())
}

// TestGroups: what is below a group goes with it.
func TestGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: this user is not root")
	}
	g := NewWithT(t)
	groups, err := newGroups(fmt.Sprintf("cadastre-e2e-test-%d", os.Getpid()))
	if err != nil {
		t.Skipf("NOT RUN: root may not make control groups: %v", err)
	}
	g.Expect(groups.dirs).NotTo(BeEmpty())
	g.Expect(groups.divide("node-1", "node-2")).To(Succeed())
	g.Expect(filepath.Join(groups.dirs[0], "node-2")).To(BeADirectory())
	for _, dir := range groups.dirs {
		g.Expect(os.MkdirAll(filepath.Join(dir, "kubepods", "pod"), 0o755)).To(Succeed())
	}
	g.Expect(groups.remove()).To(Succeed())
	for _, dir := range groups.dirs {
		g.Expect(dir).NotTo(BeAnExistingFile())
	}
	g.Expect(groups.remove()).To(Succeed(), "again")
}

// TestOurImages: the images of the DaemonSet are those of a release, or there are none.
func TestOurImages(t *testing.T) {
	if _, err := containerd.StaticBusybox(); err != nil {
		t.Skipf("NOT RUN: this machine has no static busybox: %v", err)
	}
	g := NewWithT(t)
	place := stage.Place{Bin: t.TempDir()}
	var set daemonSet
	_, err := images(place, set)
	g.Expect(err).To(MatchError(ContainSubstring("has 0 containers and 0 init containers")))
	of := func(name string) []struct{ Image string } { return []struct{ Image string }{{name}} }
	set.Spec.Template.Spec.Containers, set.Spec.Template.Spec.InitContainers = of("cadastre-agent:1"), of("cadastre-cni:2")
	put := func(name string) string {
		path := filepath.Join(imageDir(place), name)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
		return path
	}
	agent := put("cadastre-agent_1.oci.tar")
	put("cadastre-cni_1.oci.tar")
	_, err = images(place, set)
	g.Expect(err).To(MatchError(ContainSubstring("find the image cadastre-cni:2 of the DaemonSet")))
	installer := put("cadastre-cni_2.oci.tar")
	g.Expect(os.WriteFile(place.Program("inside"), nil, 0o600)).To(Succeed())
	g.Expect(images(place, set)).To(Equal([]string{agent, installer, filepath.Join(imageDir(place), "scenario.tar")}))
}

// TestOverlay: the configuration is the shipped one, with some settings more.
func TestOverlay(t *testing.T) {
	g := NewWithT(t)
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	g.Expect(err).NotTo(HaveOccurred())
	for _, mode := range []string{derived, external} {
		p := plane{dir: t.TempDir()}
		place := stage.Place{Root: root}
		g.Expect(p.writeOverlay(place, mode)).To(Succeed())
		shipped, err := os.ReadFile(filepath.Join(manifests(place, mode), "contiv.conf"))
		g.Expect(err).NotTo(HaveOccurred())
		text, err := os.ReadFile(p.path("overlay/contiv.conf"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(text)).To(And(HavePrefix(string(shipped)), ContainSubstring("kubernetes\n  nodeIDs: {quarantine: 0s}\n  coolDown: 0s\n")))
		g.Expect(string(shipped)).To(And(ContainSubstring("\ncadastre:\n"), HaveSuffix("    type: kubernetes\n")), "or the settings are not below cadastre:")
		g.Expect(strings.Contains(string(text), "useExternalIPAM: true")).To(Equal(mode == external))
		list, err := os.ReadFile(p.path("overlay/kustomization.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		base := regexp.MustCompile(`(?m)^resources: \[(.*)\]$`).FindStringSubmatch(string(list))
		g.Expect(base).To(HaveLen(2))
		g.Expect(filepath.Join(p.path("overlay"), base[1], "kustomization.yaml")).To(BeAnExistingFile())
	}
}

// TestLoseDELs: without a DEL that waits, the step would show nothing.
func TestLoseDELs(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(loseDELs(dir)).To(MatchError(ContainSubstring("no DEL waits")))
	g.Expect(loseDELs(dir + "/none")).To(MatchError(ContainSubstring("no DEL waits")))
	g.Expect(os.WriteFile(filepath.Join(dir, "1"), nil, 0o600)).To(Succeed())
	g.Expect(loseDELs(dir)).To(Succeed())
	g.Expect(os.ReadDir(dir)).To(BeEmpty())
}

// TestMountedContainers: a file system of the container is often mounted below its root.
func TestMountedContainers(t *testing.T) {
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "mountinfo")
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	g.Expect(os.WriteFile(file, []byte("1 0 0:1 / /run rw shared:1 - tmpfs t rw\n"+
		"2 1 0:1 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/"+a+"/rootfs rw - overlay o rw\n"+
		"3 2 0:1 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/"+a+"/rootfs/run/containerd/x/"+b+" rw - overlay o rw\n"+
		"4 1 0:1 / /run/other/"+b+"/rootfs rw - overlay o rw\n"), 0o600)).To(Succeed())
	g.Expect(mountedContainers(file)).To(Equal(map[string]bool{a: true}))
	_, err := mountedContainers(file + "-not")
	g.Expect(err).To(HaveOccurred())
}

// TestPlugins: the broken one fails each ADD, and only that.
func TestPlugins(t *testing.T) {
	g := NewWithT(t)
	n := node{dir: t.TempDir()}
	n.agent.Dir = n.path("agent")
	g.Expect(n.prepare()).To(Succeed())
	g.Expect(filepath.Glob(n.plugin("*"))).To(ConsistOf(n.plugin("loopback"), n.plugin("portmap")), "ours alone makes a network")
	path := n.plugin(brokenPlugin)
	g.Expect(n.breakPlugin()).To(Succeed())
	script, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(script)).To(And(HavePrefix("#!/bin/sh\n"), ContainSubstring(broken), ContainSubstring("exec "+pluginDir+brokenPlugin)))
	g.Expect(n.mendPlugin()).To(Succeed())
	g.Expect(os.Readlink(path)).To(Equal(pluginDir + brokenPlugin))
}

// TestLossless: one packet of one round is enough.
func TestLossless(t *testing.T) {
	g := NewWithT(t)
	const first = "1 packets transmitted, 1 packets received, 0% packet loss\nround-trip\n"
	g.Expect(lossless(first + flowLine + "\nround-trip\n\n" + flowLine + "\n")).To(Equal(2))
	for _, out := range []string{
		"", first, "cannot ping",
		first + flowLine + "\n50 packets transmitted, 49 packets received, 2% packet loss\n",
		first + "50 packets transmitted, 51 packets received, 1 duplicates, 0% packet loss\n",
	} {
		_, err := lossless(out)
		g.Expect(err).To(HaveOccurred(), out)
	}
}

// TestOutside: the server answers with the source, without its port.
func TestOutside(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.RemoteAddr = "192.0.2.11:4711"
	answerSource(w, r)
	NewWithT(t).Expect(w.Body.String()).To(Equal("192.0.2.11"))
}

// TestOperatorArgs: a Deployment of another shape is an error.
func TestOperatorArgs(t *testing.T) {
	g := NewWithT(t)
	var d deployment
	_, err := d.args()
	g.Expect(err).To(MatchError(ContainSubstring("0 containers")))
	d.Spec.Template.Spec.Containers = []struct{ Args []string }{{[]string{"--x"}}}
	g.Expect(d.args()).To(Equal([]string{"--x"}))
}
