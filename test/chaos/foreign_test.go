// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
)

// foreign changes the database of a running agent as another program would.
func foreign() map[string]func(g *WithT, db, backup string) {
	cut := func(size int64) func(g *WithT, db, _ string) {
		return func(g *WithT, db, _ string) { g.Expect(os.Truncate(db, size)).To(Succeed()) }
	}
	return map[string]func(g *WithT, db, backup string){
		"a backup copied over it": func(g *WithT, db, backup string) {
			data, err := os.ReadFile(backup)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(os.WriteFile(db, data, 0o600)).To(Succeed()) // as cp does: cut off, then written
		},
		"a backup moved over it": func(g *WithT, db, backup string) { g.Expect(os.Rename(backup, db)).To(Succeed()) },
		"removed":                func(g *WithT, db, _ string) { g.Expect(os.Remove(db)).To(Succeed()) },
		"renamed":                func(g *WithT, db, _ string) { g.Expect(os.Rename(db, db+".away")).To(Succeed()) },
		"cut to nothing":         cut(0),
		"cut below what it uses": cut(16 << 10),
	}
}

// mustEndInOneSentence waits until the agent has ended by itself, and looks at
// what it said.
func (a *agent) mustEndInOneSentence(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	said := a.mustEnd(t)
	g.Expect(strings.Count(said, "level=ERROR")).To(Equal(1), said)
	g.Expect(said).To(ContainSubstring(a.db()))
	for _, s := range []string{"panic", "goroutine ", "SIG", "unexpected fault"} {
		g.Expect(said).NotTo(ContainSubstring(s))
	}
}

// prepareForeign lets an agent lease some addresses before and after a backup.
func prepareForeign(t *testing.T, n *node) (a *agent, backup string, told map[string]Key) {
	t.Helper()
	g := NewWithT(t)
	a = n.start(t, "--check-database-every", "50ms")
	told = map[string]Key{}
	add := func(prefix string) {
		for i := range 20 {
			k, addr := n.mustAdd(t, fmt.Sprint(prefix, i))
			told[addr] = k
		}
	}
	add("before")
	backup = filepath.Join(n.dir, "backup.db")
	out, err := n.cli("backup", backup)
	g.Expect(err).NotTo(HaveOccurred(), out)
	add("after")
	return a, backup, told
}

// expectNothingNew starts an agent on what is left: it refuses the database, or
// allocates nothing new.
func (n *node) expectNothingNew(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	a := n.launch(t)
	if a.awaitServing() != nil {
		a.mustEndInOneSentence(t)
		g.Expect(a.log()).To(ContainSubstring("cadastre restore"))
		return
	}
	suspended, err := (&past{node: n}).suspended("new")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(suspended).To(BeTrue(), "an address may be in use that the database does not know:\n%s", a.log())
	g.Expect(a.log()).To(ContainSubstring("cadastre accept"))
	a.kill()
}

// TestForeignChangeEndsTheAgent changes the database of an agent without traffic.
func TestForeignChangeEndsTheAgent(t *testing.T) {
	for what, change := range foreign() {
		t.Run(what, func(t *testing.T) {
			attack.Begin(t, attack.Foreign).Add(1)
			n := newNode(t, roomyConf)
			a, backup, _ := prepareForeign(t, n)
			change(NewWithT(t), n.db(), backup)
			a.mustEndInOneSentence(t)
			n.expectNothingNew(t)
		})
	}
}

// TestForeignChangeBeforeAnADD changes the database and asks for an address at
// once: no answer comes from the wrong file.
func TestForeignChangeBeforeAnADD(t *testing.T) {
	for what, change := range foreign() {
		t.Run(what, func(t *testing.T) {
			attack.Begin(t, attack.Foreign).Add(1)
			g := NewWithT(t)
			n := newNode(t, roomyConf)
			a, backup, _ := prepareForeign(t, n)
			change(g, n.db(), backup)
			_, f, err := ask(n.socket(), Key{"net", "one-more", "eth0"}.request(Add), leaving{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(f).NotTo(Equal(Answered))
			a.mustEndInOneSentence(t)
			n.expectNothingNew(t)
		})
	}
}

// TestForeignChangeUnderLoad does so while many clients ask.
func TestForeignChangeUnderLoad(t *testing.T) {
	for what, change := range foreign() {
		t.Run(what, func(t *testing.T) {
			attack.Begin(t, attack.Foreign).Add(1)
			g := NewWithT(t)
			n := newNode(t, roomyConf)
			a, backup, told := prepareForeign(t, n)
			var mu sync.Mutex
			var clients sync.WaitGroup
			begun := make(chan struct{}, 8)
			for c := range cap(begun) {
				clients.Go(func() {
					for i := 0; ; i++ {
						k := Key{"net", fmt.Sprintf("load%d-%d", c, i), "eth0"}
						r, f, err := ask(n.socket(), k.request(Add), leaving{})
						if err != nil || f != Answered {
							return // the agent is gone
						}
						mu.Lock()
						if other, taken := told[r.IPs[0].Address]; taken {
							t.Errorf("%s was told to %s and to %s", r.IPs[0].Address, other, k)
						}
						told[r.IPs[0].Address] = k
						mu.Unlock()
						if i == 3 {
							begun <- struct{}{}
						}
					}
				})
			}
			for range cap(begun) {
				<-begun
			}
			change(g, n.db(), backup)
			a.mustEndInOneSentence(t)
			clients.Wait()
			n.expectNothingNew(t)
		})
	}
}

// TestOlderWithoutNotes keeps, removes or spoils each of the two notes of the newest
// commit, in every combination, and puts an older database in the place of the newer one.
func TestOlderWithoutNotes(t *testing.T) {
	spoils := map[string]func(g *WithT, path string){
		"kept":    func(*WithT, string) {},
		"removed": func(g *WithT, path string) { g.Expect(os.Remove(path)).To(Succeed()) },
		"emptied": func(g *WithT, path string) { g.Expect(os.Truncate(path, 0)).To(Succeed()) },
		"cut off": func(g *WithT, path string) { g.Expect(os.Truncate(path, 100)).To(Succeed()) },
		"overwritten": func(g *WithT, path string) {
			g.Expect(os.WriteFile(path, []byte(strings.Repeat("text ", 300)), 0o600)).To(Succeed())
		},
	}
	n := newNode(t, roomyConf)
	a, backup, _ := prepareForeign(t, n)
	a.kill()
	g := NewWithT(t)
	old, err := os.ReadFile(backup)
	g.Expect(err).NotTo(HaveOccurred())
	notes, paths := n.readNotes(g), n.notePaths()
	for run, spoilRun := range spoils {
		for state, spoilState := range spoils {
			t.Run(run+" in the run directory, "+state+" in the state directory", func(t *testing.T) {
				attack.Begin(t, attack.Older).Add(1)
				g := NewWithT(t)
				n.writeNotes(g, notes)
				spoilRun(g, paths[0])
				spoilState(g, paths[1])
				g.Expect(os.WriteFile(n.db(), old, 0o600)).To(Succeed())
				n.expectNothingNew(t)
			})
		}
	}
}

// TestALostRunDirectoryIsNoDoubt removes the run directory between two starts
// within one boot, as compose and kind do.
func TestALostRunDirectoryIsNoDoubt(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	for i := range 3 {
		_, was := n.mustAdd(t, "first")
		a.kill()
		g.Expect(os.RemoveAll(n.runDir)).To(Succeed())
		a = n.start(t)
		_, still := n.mustAdd(t, "first")
		g.Expect(still).To(Equal(was))
		n.mustAdd(t, fmt.Sprint("new", i))
	}
}

// TestRestoredBackupIsInDoubt restores a backup, accepts it, and then the database
// that it replaced, which is another one since.
func TestRestoredBackupIsInDoubt(t *testing.T) {
	attack.Begin(t, attack.Older).Add(2)
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a, backup, _ := prepareForeign(t, n)
	g.Expect(a.stop()).To(Succeed())
	restore := func(from string) {
		out, err := n.cli("restore", from, "--state-dir", n.stateDir)
		g.Expect(err).NotTo(HaveOccurred(), out)
	}
	restore(backup)
	n.expectNothingNew(t)
	a = n.start(t)
	g.Expect(n.accept(t)).To(And(ContainSubstring("older than it was"), ContainSubstring("20 leases")))
	n.mustAdd(t, "accepted")
	g.Expect(a.stop()).To(Succeed())
	kept, err := filepath.Glob(n.db() + ".replaced-*")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kept).To(HaveLen(1))
	restore(kept[0])
	n.expectNothingNew(t)
}
