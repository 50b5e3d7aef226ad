// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// sibling is another node with the same configuration: with directories of its
// own, which the caller may change.
func (n *node) sibling(name string) *node {
	s := *n
	s.name, s.dir = name, filepath.Join(n.dir, name)
	s.stateDir, s.runDir = filepath.Join(s.dir, "s"), filepath.Join(s.dir, "r")
	return &s
}

// mustEnd returns the output of an agent that ends with 1.
func (a *agent) mustEnd(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	g.Expect(a.await()).NotTo(Succeed())
	g.Expect(a.hasEnded()).To(BeTrue(), "it goes on:\n%s", a.log())
	g.Expect(a.cmd.ProcessState.ExitCode()).To(Equal(1))
	g.Expect(a.log()).NotTo(ContainSubstring("goroutine "))
	return a.log()
}

func TestTwoAgentsOnOneStateDirectory(t *testing.T) {
	attack.Begin(t, attack.SameDir).Add(1)
	g := NewWithT(t)
	one := newNode(t, roomyConf)
	a := one.start(t)
	_, was := one.mustAdd(t, "x")
	two := one.sibling("n2")
	g.Expect(os.Mkdir(two.dir, 0o700)).To(Succeed())
	two.stateDir = one.stateDir
	said := two.launch(t).mustEnd(t)
	g.Expect(said).To(ContainSubstring(fmt.Sprintf("cadastre-agent of node %s (pid %d)", one.name, a.cmd.Process.Pid)), "it names the holder")
	_, still := one.mustAdd(t, "x")
	g.Expect(still).To(Equal(was))
	one.mustAdd(t, "y")
	g.Expect(a.stop()).To(Succeed())
	two.start(t)
	two.mustAdd(t, "z")
}

func TestTwoAgentsOnOneRunDirectory(t *testing.T) {
	attack.Begin(t, attack.SameDir).Add(1)
	g := NewWithT(t)
	one := newNode(t, roomyConf)
	a := one.start(t)
	_, was := one.mustAdd(t, "x")
	k, _ := one.mustAdd(t, "waits")
	in := cni.Intent{Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
	g.Expect(in.Write(one.intentDir())).To(Succeed()) // of a DEL that the first was too busy for

	two := one.sibling("n2")
	g.Expect(os.Mkdir(two.dir, 0o700)).To(Succeed())
	two.runDir = one.runDir
	said := two.launch(t).mustEnd(t)
	g.Expect(said).To(ContainSubstring(one.socket()))

	_, still := one.mustAdd(t, "x")
	g.Expect(still).To(Equal(was))
	g.Expect(two.db()+".note").NotTo(BeAnExistingFile(), "the second one has noted nothing")
	g.Expect(in.Waiting(one.intentDir())).To(BeTrue(), "the first one's DEL waits for the first one")
	a.kill()
	one.start(t)
	_, f, err := ask(one.socket(), k.request(Check), leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f).To(Equal(Refused), "the DEL was applied")
}

// TestTwoAgentsAtOnce starts two at the same moment: one serves, one ends.
func TestTwoAgentsAtOnce(t *testing.T) {
	for _, shared := range []string{"state directory", "run directory"} {
		t.Run(shared, func(t *testing.T) {
			g := NewWithT(t)
			tried := attack.Begin(t, attack.SameDir)
			one := newNode(t, roomyConf)
			two := one.sibling("n2")
			g.Expect(os.Mkdir(two.dir, 0o700)).To(Succeed())
			if shared == "state directory" {
				two.stateDir, two.name = one.stateDir, one.name // under another name it would be a copied disk
			} else {
				two.runDir = one.runDir
			}
			for i := range effort.Times(t, 4) {
				tried.Add(1)
				if shared == "run directory" { // the other database is not an older one
					g.Expect(os.RemoveAll(one.runDir)).To(Succeed())
				}
				a, b := one.launch(t), two.launch(t)
				ended := func() int {
					n := 0
					for _, x := range []*agent{a, b} {
						if x.hasEnded() {
							n++
						}
					}
					return n
				}
				g.Eventually(ended, 5*time.Second, time.Millisecond).Should(Equal(1), "try %d: both go on", i)
				winner, loser := a, b
				if a.hasEnded() {
					winner, loser = b, a
				}
				g.Expect(loser.mustEnd(t)).To(ContainSubstring("ERROR"))
				g.Expect(winner.awaitServing()).To(Succeed())
				winner.mustAdd(t, fmt.Sprint("k", i))
				winner.kill()
			}
		})
	}
}

// TestDELsThatWait is about the DELs that cadastre-cni leaves for an agent.
func TestDELsThatWait(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	const held = 200
	var keys []Key
	for i := range held {
		k, _ := n.mustAdd(t, fmt.Sprint("k", i))
		keys = append(keys, k)
	}
	a.kill()
	for _, k := range keys[1:] {
		in := cni.Intent{Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
		g.Expect(in.Write(n.intentDir())).To(Succeed())
	}
	waiting := func() int {
		entries, err := os.ReadDir(n.intentDir())
		g.Expect(err).NotTo(HaveOccurred())
		return len(entries)
	}
	a = n.launch(t)
	g.Eventually(waiting, patience, 100*time.Microsecond).Should(BeNumerically("<", held-1), "the agent applies them")
	out, ok, err := plugin(n.socket(), keys[0], Del, nil) // while it is at it
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ok).To(BeTrue(), "%s", out)
	g.Expect(a.awaitServing()).To(Succeed())
	nothing := func() Book {
		book, _, err := readBook(n.socket())
		g.Expect(err).NotTo(HaveOccurred())
		return book
	}
	g.Eventually(nothing, 5*time.Second, 10*time.Millisecond).Should(BeEmpty(), "every DEL was answered")
	g.Eventually(waiting, 5*time.Second, 10*time.Millisecond).Should(BeZero(), "none waits any more")
	g.Expect(a.stop()).To(Succeed())
}

// TestManyDELsThatWait fills the place for them, and puts things there that
// are none.
func TestManyDELsThatWait(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	k, _ := n.mustAdd(t, "k")
	last, _ := n.mustAdd(t, "last")
	a.kill()
	del := func(k Key) (string, bool) {
		out, ok, err := plugin(n.socket(), k, Del, nil)
		g.Expect(err).NotTo(HaveOccurred())
		return string(out), ok
	}
	out, ok := del(k)
	g.Expect(ok).To(BeTrue(), out)
	for i := 1; i < cni.MaxIntents; i++ { // left by a cadastre-cni that was killed
		g.Expect(os.WriteFile(filepath.Join(n.intentDir(), fmt.Sprintf(".new-%d", i)), nil, 0o600)).To(Succeed())
	}
	out, ok = del(last)
	g.Expect(ok).To(BeTrue(), "files without a DEL are not counted as such: %s", out)
	for i := range cni.MaxIntents - 2 {
		in := cni.Intent{Network: "net", ContainerID: fmt.Sprint("gone", i), IfName: "eth0"}
		text := fmt.Sprintf(`{"network":%q,"containerID":%q,"ifName":%q}`, in.Network, in.ContainerID, in.IfName)
		g.Expect(os.WriteFile(filepath.Join(n.intentDir(), in.Name()), []byte(text), 0o600)).To(Succeed())
	}
	out, ok = del(Key{"net", "too-many", "eth0"})
	g.Expect(ok).To(BeFalse(), "%d wait", cni.MaxIntents)
	g.Expect(out).To(ContainSubstring(`"code": 11`))
	out, ok = del(k)
	g.Expect(ok).To(BeTrue(), "one that waits already: %s", out)
	for name, text := range map[string]string{"empty.json": "", "text.json": "text", strings.Repeat("0", 32) + ".json": `{"network":"net","containerID":"a","ifName":"eth0"}`} {
		g.Expect(os.WriteFile(filepath.Join(n.intentDir(), name), []byte(text), 0o600)).To(Succeed())
	}
	a = n.start(t)
	book, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(BeEmpty())
	intents, refused, err := cni.ReadIntents(n.intentDir(), os.Geteuid())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(intents).To(BeEmpty())
	g.Expect(refused).To(BeEmpty())
	aside, err := filepath.Glob(filepath.Join(n.intentDir(), "refused-*"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(aside).To(HaveLen(3), "a file that is not a DEL is set aside")
	out, ok = del(Key{"net", "too-many", "eth0"})
	g.Expect(ok).To(BeTrue(), out)
	g.Expect(a.stop()).To(Succeed())
}
