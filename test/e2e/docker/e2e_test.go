// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage/stagetest"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

// good is a scene in which everything fits.
func good() scene {
	lease := func(ip, purpose, pool, ifName string) localapi.Lease {
		return localapi.Lease{IP: ip, State: "held", Purpose: purpose, Pool: pool, IfName: ifName}
	}
	return scene{
		inside: map[string][]string{"web": {"10.50.0.2/24", "fd00::2/64"}, "db": {"10.50.0.3/24"}},
		endpoints: []endpoint{
			{"web", "blue", "02:42:00:00:00:02", "10.50.0.2/24"}, {"web", "blue", "02:42:00:00:00:02", "fd00::2/64"}, {"db", "blue", "02:42:00:00:00:03", "10.50.0.3/24"},
		},
		gateways: map[string]string{"10.50.0.1": "blue"},
		aux:      map[string]string{"10.50.0.9": "blue"},
		leases: []localapi.Lease{
			lease("10.50.0.1", "infra", "docker/LocalDefault/10.50.0.0/24", "gateway#1"),
			lease("10.50.0.2", "docker", "docker/LocalDefault/10.50.0.0/24", "02:42:00:00:00:02#2"),
			lease("10.50.0.3", "docker", "docker/LocalDefault/10.50.0.0/24", "02:42:00:00:00:03#10.50.0.3"),
			lease("10.50.0.9", "docker", "docker/LocalDefault/10.50.0.0/24", "#10.50.0.9"),
			lease("fd00::2", "docker", "docker/LocalDefault/fd00::/64", "02:42:00:00:00:02#4"),
			lease("10.1.1.1", "infra", "default", "gateway"), lease("10.1.1.2", "pod", "default", "eth0"),
		},
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
		"leaked":           {func(s *scene) { s.endpoints, s.inside["db"] = s.endpoints[:2], nil }, "10.50.0.3 is leased to"},
		"a leaked gateway": {func(s *scene) { s.gateways = nil }, `10.50.0.1 is leased to "gateway#1"`},
		"a leaked aux":     {func(s *scene) { s.aux = nil }, "10.50.0.9 is leased to"},
		"not leased":       {func(s *scene) { s.leases = s.leases[2:] }, "10.50.0.2 of web in blue has 0 leases"},
		"twice":            {func(s *scene) { s.leases = append(s.leases, s.leases[1]) }, "10.50.0.2 of web in blue has 2 leases"},
		"two endpoints":    {func(s *scene) { s.endpoints[2].address = "10.50.0.2/24" }, "10.50.0.2 of db in blue has 0 leases"},
		"of a pod":         {func(s *scene) { s.leases[1].Purpose, s.leases[1].Pool = "pod", "default" }, "is leased to a pod"},
		"another's MAC":    {func(s *scene) { s.leases[1].IfName = "02:42:00:00:00:03#2" }, `is leased to "02:42:00:00:00:03#2"`},
		"cooling":          {func(s *scene) { s.leases[2].State = "cooling" }, "10.50.0.3 is cooling"},
		"another address":  {func(s *scene) { s.inside["db"] = []string{"10.50.0.4/24"} }, "db has the addresses [10.50.0.4/24], the engine says [10.50.0.3/24]"},
		"another length":   {func(s *scene) { s.inside["db"] = []string{"10.50.0.3/16"} }, "db has the addresses"},
		"no address":       {func(s *scene) { s.inside["db"] = nil }, "db has the addresses []"},
		"a stray endpoint": {func(s *scene) { delete(s.inside, "db") }, "db has the addresses [10.50.0.3/24] and does not run"},
		"a shared gateway": {func(s *scene) { s.leases[0].IfName = "02:42:00:00:00:05#1" }, "the gateway of blue is leased to"},
	} {
		s := good()
		x.change(&s)
		g.Expect(s.compare()).To(MatchError(ContainSubstring(x.want)), what)
	}
}

func TestChanged(t *testing.T) {
	g := NewWithT(t)
	g.Expect(changed(good().leases, good().leases)).To(Succeed())
	g.Expect(changed(good().leases, good().leases[1:])).To(MatchError(`10.50.0.1 of "gateway#1" is gone or has changed`))
	g.Expect(changed(good().leases[1:], good().leases)).To(MatchError(`10.50.0.1 of "gateway#1" is new or has changed`))
	other := good().leases
	other[0].Generation = 7
	g.Expect(changed(good().leases, other)).To(HaveOccurred())
}

// fake is a machine on which everything is there.
func fake(programs ...string) machine {
	return machine{
		root: true, namespaces: func() error { return nil }, systemd: func() bool { return false },
		find: func(program string) (string, error) {
			for _, p := range programs {
				if p == program {
					return "/bin/" + p, nil
				}
			}
			return "", exec.ErrNotFound
		},
		apt: func(context.Context, ...string) error { return errors.New("apt-get was called") },
	}
}

func TestNeeds(t *testing.T) {
	g := NewWithT(t)
	path, err := fake("dockerd", "docker").need(t.Context(), io.Discard)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(path).To(Equal("/bin/dockerd"))
	nobody, walled, systemd := fake("dockerd", "docker"), fake("dockerd", "docker"), fake("docker", "apt-get")
	nobody.root = false
	walled.namespaces = func() error { return errors.New("it is not permitted") }
	systemd.systemd = func() bool { return true }
	for why, m := range map[string]machine{
		"this user is not root": nobody, "it is not permitted": walled, "no docker to speak to it": fake("dockerd"),
		"no apt-get to install it with": fake("docker"), "would start one for the whole machine": systemd, "cannot be installed: apt-get was called": fake("apt-get"),
	} {
		_, err := m.need(t.Context(), io.Discard)
		g.Expect(err).To(MatchError(ContainSubstring(why)))
		var stdout, stderr bytes.Buffer
		g.Expect(run(t.Context(), m, nil, &stdout, &stderr)).To(BeZero(), "it is not a failure")
		g.Expect(stdout.String()).To(And(HavePrefix(firstLine+"\n"), ContainSubstring("\nNOT RUN: "), ContainSubstring(why)))
		g.Expect(stderr.Len()).To(BeZero())
	}
}

func TestInstall(t *testing.T) {
	g := NewWithT(t)
	for _, failures := range []int{0, 1, 2} {
		m, calls, there := fake("apt-get", "docker"), []string{}, []string{"apt-get", "docker"}
		m.find = func(program string) (string, error) { return fake(there...).find(program) }
		m.apt = func(_ context.Context, args ...string) error {
			calls = append(calls, args[0])
			if args[0] == "install" && strings.Count(strings.Join(calls, " "), "install") <= failures {
				return errors.New("404")
			}
			if args[0] == "install" {
				g.Expect(args).To(ContainElements("--no-install-recommends", "docker.io"))
				there = append(there, "dockerd")
			}
			return nil
		}
		_, err := m.need(t.Context(), io.Discard)
		switch failures {
		case 0:
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(calls).To(Equal([]string{"install"}))
		case 1:
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(calls).To(Equal([]string{"install", "update", "install"}), "the lists were old")
		default:
			g.Expect(err).To(MatchError(ContainSubstring("404")))
		}
	}
}

func TestCommandLine(t *testing.T) {
	g := NewWithT(t)
	for _, args := range []string{"jump", "--no-such-flag", "--namespaces=user"} {
		var stderr bytes.Buffer
		g.Expect(run(t.Context(), fake("dockerd", "docker"), strings.Fields(args), io.Discard, &stderr)).To(Equal(2), args)
		g.Expect(stderr.Len()).NotTo(BeZero(), args)
	}
	g.Expect(run(t.Context(), fake(), []string{"--help"}, io.Discard, io.Discard)).To(BeZero())
	g.Expect(run(t.Context(), fake(), []string{roomVerb}, io.Discard, io.Discard)).To(Equal(1), "it is for the program itself")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(run(ctx, fake("apt-get"), nil, io.Discard, io.Discard)).To(Equal(1), "interrupted")
}

// TestRoom: what is done in it is not seen outside, and ends with it.
func TestRoom(t *testing.T) {
	m := thisMachine()
	if err := m.namespaces(); !m.root || err != nil {
		t.Skipf("NOT RUN: this needs root and its namespaces: %v", err)
	}
	g := NewWithT(t)
	dir := t.TempDir()
	r, err := openRoom(t.Context(), dir)
	g.Expect(err).NotTo(HaveOccurred())
	log := filepath.Join(dir, "log")
	script := `echo $$ > /run/first; mkdir /run/mnt; mount -t tmpfs none /run/mnt; echo x > /run/mnt/x; (sleep 1000 &) ; ls /proc/1/exe && ls /run/mnt; cat /proc/net/dev | grep -c :`
	p, err := r.start(exec.Command("sh", "-c", script), log)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(p.Done(), "20s").Should(BeClosed())
	said, err := os.ReadFile(log)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.Ended()).To(MatchError(ContainSubstring("exit code 0")), "%s", said)
	g.Expect(strings.Fields(string(said))).To(Equal([]string{"/proc/1/exe", "x", "1"}), "one interface, its own mount")
	g.Expect(filepath.Join(runDir(dir), "first")).To(BeAnExistingFile(), "its /run is there")
	g.Expect(filepath.Join(runDir(dir), "mnt", "x")).NotTo(BeAnExistingFile(), "its mounts are not")

	sleeper, err := r.start(exec.Command("sleep", "1000"), log)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sleeper.Kill()).To(Succeed())
	sleeper, err = r.start(exec.Command("sleep", "1000"), log)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.close()).To(Succeed())
	g.Eventually(sleeper.Done(), "20s").Should(BeClosed(), "all ends with the room")
	g.Expect(sleeper.Stop(0)).To(MatchError(ContainSubstring("ended by itself")))
}

func TestCrowd(t *testing.T) {
	g := NewWithT(t)
	var calls, most, now atomic.Int64
	g.Expect(crowd(t.Context(), 100, 7, func(context.Context, int) error {
		most.Store(max(most.Load(), now.Add(1)))
		calls.Add(1)
		now.Add(-1)
		return nil
	})).To(Succeed())
	g.Expect(calls.Load()).To(BeEquivalentTo(100))
	g.Expect(most.Load()).To(BeNumerically("<=", 7))
	calls.Store(0)
	g.Expect(together(t.Context(), 1000, func(_ context.Context, i int) error {
		calls.Add(1)
		return fmt.Errorf("number %d", i)
	})).To(MatchError(HavePrefix("number ")))
	g.Expect(calls.Load()).To(BeNumerically("<", 1000), "it stops at the first error")
}

// TestInside: the program of the image tells the addresses of this machine.
func TestInside(t *testing.T) {
	g := NewWithT(t)
	program := filepath.Join(t.TempDir(), "inside")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./inside").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	out, err = exec.CommandContext(t.Context(), program).CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	g.Expect(string(out)).NotTo(ContainSubstring("127.0.0.1"))
}

// TestStageOf: an image needs no registry, only the programs that its stage names.
func TestStageOf(t *testing.T) {
	g := NewWithT(t)
	whole, err := os.ReadFile(filepath.Join("..", "..", "..", "docker", "Dockerfile"))
	g.Expect(err).NotTo(HaveOccurred())
	for name, want := range map[string][]string{
		"agent": {"cadastre-agent", "cadastre"}, "cni": {"cadastre-cni", "cni-installer"}, "operator": {"cadastre-operator"},
	} {
		text, programs, err := stageOf(string(whole), name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(programs).To(Equal(want))
		g.Expect(text).To(And(HavePrefix("FROM scratch\n"), ContainSubstring("\nCOPY "+strings.Join(want, " ")+" /\n"), Not(ContainSubstring("--from"))))
	}
	_, _, err = stageOf("FROM scratch\n", "agent")
	g.Expect(err).To(HaveOccurred())
}
