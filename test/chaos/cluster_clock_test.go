// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

// clockSource is the file from which the agent gets the time.
const clockSource = "../../agent/clock.go"

// skewed replaces time.Now in a build for these tests. It changes the wall clock by the
// number of seconds in a file, and the monotonic one runs on, as if the clock of a
// machine was set.
const skewed = `
func skewed() time.Time {
	now := time.Now()
	text, _ := os.ReadFile(os.Getenv("CHAOS_CLOCK"))
	seconds, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		panic(err)
	}
	*(*uint64)(unsafe.Pointer(&now)) += uint64(seconds) << 30 // the wall clock's seconds are above its nanoseconds
	return now
}
`

// buildSkewed builds an agent whose clock can be set.
func buildSkewed(t *testing.T) (program string) {
	t.Helper()
	g := NewWithT(t)
	text, err := os.ReadFile(clockSource)
	g.Expect(err).NotTo(HaveOccurred())
	const asked, imports = "now: time.Now,", "import ("
	g.Expect(strings.Count(string(text), asked)).To(Equal(1), "%s gets the time in another way: change this test", clockSource)
	changed := strings.Replace(string(text), asked, "now: skewed,", 1)
	changed = strings.Replace(changed, imports, imports+"\n\t\"strconv\"\n\t\"unsafe\"", 1) + skewed
	dir := t.TempDir()
	source, overlay := filepath.Join(dir, "clock.go"), filepath.Join(dir, "overlay.json")
	g.Expect(os.WriteFile(source, []byte(changed), 0o600)).To(Succeed())
	original, err := filepath.Abs(clockSource)
	g.Expect(err).NotTo(HaveOccurred())
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: source}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(overlay, replace, 0o600)).To(Succeed())
	program = filepath.Join(dir, "skewed-agent")
	build := exec.Command("go", "build", "-overlay", overlay, "-o", program, "../../cmd/cadastre-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	return program
}

// wear gives a member a clock of its own, and answers what sets it.
func (m *member) wear(t *testing.T, program string) (set func(ahead time.Duration)) {
	t.Helper()
	path := filepath.Join(m.dir, "clock")
	m.program, m.env = program, []string{"CHAOS_CLOCK=" + path}
	set = func(ahead time.Duration) {
		next := path + ".new"
		g := NewWithT(t)
		g.Expect(os.WriteFile(next, fmt.Append(nil, int64(ahead/time.Second)), 0o600)).To(Succeed())
		g.Expect(os.Rename(next, path)).To(Succeed())
	}
	set(0)
	return set
}

// Clocks that are set are about the times that are stored: everything else is
// measured by clocks that cannot be set.
func TestClocksThatAreSet(t *testing.T) {
	attack.Begin(t, attack.Clock).Add(7)
	t.Parallel()
	program := buildSkewed(t)
	const far = 2 * time.Hour // more than an ID is confirmed for
	t.Run("while the agent runs", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		server := etcdtest.Start(t)
		a := newMember(t, "a", server)
		set := a.wear(t, program)
		a.join(t)
		b := newMembers(t, "b", server)[0]
		was := leases(t, []*member{a, b})
		store := newRegistry(t, server.Endpoint())
		busy := keepAllocating(t, a, b)
		for _, ahead := range []time.Duration{far, -far, 0} {
			set(ahead)
			g.Eventually(func() time.Duration { // the clock is that of what is stored
				all, err := store.list()
				g.Expect(err).NotTo(HaveOccurred())
				return time.Until(time.Unix(0, all[0].Beat.At))
			}, healing, 20*time.Millisecond).Should(BeNumerically("~", ahead, time.Minute))
			g.Consistently(a.follows, 3*refresh, 20*time.Millisecond).Should(Succeed(), "%s", ahead)
			g.Expect(b.follows()).To(Succeed())
			a.cut()
			g.Eventually(a.alone, healing, 20*time.Millisecond).Should(Succeed())
			a.pass()
			a.awaitFollowing(t)
		}
		g.Expect(busy.end()).To(Succeed())
		store.mustHold(t, map[*member]uint32{a: 1, b: 2})
		kept(t, was)
	})
	for name, ahead := range map[string]time.Duration{"forward": far, "back": -far} {
		t.Run(name+" while the agent is down", func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			server := etcdtest.Start(t)
			a := newMember(t, "a", server)
			set := a.wear(t, program)
			a.join(t)
			was := leases(t, []*member{a})
			a.kill()
			a.cut()
			set(ahead)
			a.run(t)
			g.Eventually(a.doubts, healing, 20*time.Millisecond).Should(Succeed(), "the clock does not say how long it was away")
			g.Expect(a.agent.awaitServing()).To(Succeed())
			kept(t, was)
			g.Expect(a.ask(t, Add, "new")).To(ContainSubstring("allocates no new address: node ID 1"))
			a.pass()
			a.awaitFollowing(t)
			g.Expect(a.ask(t, Add, "new")).To(HavePrefix("10.1.0."))
			kept(t, was)
		})
	}
	t.Run("of a second machine of the same name", func(t *testing.T) {
		t.Parallel()
		g := NewWithT(t)
		server := etcdtest.Start(t)
		first := newMembers(t, "a", server)[0]
		was := leases(t, []*member{first})
		second := twin(t, first, server)
		set := second.wear(t, program)
		set(-far)
		second.run(t)
		g.Expect(second.agent.mustEnd(t)).To(ContainSubstring("another instance has this node's name"), "to it the first is from the future")
		set(far)
		second.join(t) // to it the first is long gone
		g.Eventually(first.doubts, healing, 20*time.Millisecond).Should(Succeed(), "and it is told")
		newRegistry(t, server.Endpoint()).mustHold(t, map[*member]uint32{second: 2})
		g.Expect(first.ask(t, Add, "new")).To(ContainSubstring("allocates no new address: node ID 1"))
		was[second] = second.ask(t, Add, "pod")
		kept(t, was)
	})
}
