// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

// place holds the paths of a database and its notes.
type place struct {
	t          *testing.T
	path       string
	run, state string
	boot       string
}

func newPlace(t *testing.T) *place {
	dir := t.TempDir()
	return &place{
		t: t, path: filepath.Join(dir, "s", "cadastre.db"),
		run: filepath.Join(dir, "r", "db.note"), state: filepath.Join(dir, "s", "cadastre.db.note"), boot: "boot-1",
	}
}

func (p *place) options() FileOptions {
	return FileOptions{Notes: []string{p.run, p.state}, BootID: p.boot}
}

func (p *place) open() *File { return openFile(p.t, p.path, p.options()) }

// use opens the database, lets f use it, and closes it.
func (p *place) use(f func(g Gomega, file *File)) {
	p.t.Helper()
	file := p.open()
	f(NewWithT(p.t), file)
	NewWithT(p.t).Expect(file.Close()).To(Succeed())
}

func (p *place) commit(n int) {
	p.t.Helper()
	p.use(func(g Gomega, file *File) {
		for i := range n {
			g.Expect(file.Journal().Commit(p.t.Context(), []kvdb.Op{kvdb.Put(fmt.Sprint(i), nil)})).To(Succeed())
		}
	})
}

// doubt opens the database and returns why it is in doubt.
func (p *place) doubt() (why string) {
	p.t.Helper()
	p.use(func(_ Gomega, file *File) {
		if d := file.Doubt(); d != nil {
			why = d.Reason
		}
	})
	return why
}

func (p *place) read(path string) []byte {
	p.t.Helper()
	data, err := os.ReadFile(path)
	NewWithT(p.t).Expect(err).NotTo(HaveOccurred())
	return data
}

func (p *place) write(path string, data []byte) {
	p.t.Helper()
	NewWithT(p.t).Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
}

func TestAnOlderCopyIsInDoubtUntilItIsAccepted(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	p.commit(15)
	old := p.read(p.path)
	p.commit(3)
	newer := p.read(p.path)
	g.Expect(p.doubt()).To(BeEmpty(), "a restart")
	p.write(p.path, old)
	for range 2 {
		g.Expect(p.doubt()).To(And(ContainSubstring("older than it was: commit 19 of "), ContainSubstring("was noted")))
		p.commit(9) // by what is released of it, say
	}
	p.boot = "boot-2"
	g.Expect(p.doubt()).To(ContainSubstring("commit 19 of "), "a reboot does not end it")
	p.use(func(g Gomega, file *File) {
		known := file.Doubt().Known
		g.Expect(known.Sequence).To(Equal(uint64(19)))
		before := file.Last()
		g.Expect(known.Lineage).To(Equal(before.Lineage))
		g.Expect(file.Accept(t.Context())).To(Succeed())
		g.Expect(file.Doubt()).To(BeNil())
		g.Expect(file.Last().Lineage).NotTo(Equal(before.Lineage), "it is another database from now on")
		g.Expect(file.Accept(t.Context())).To(Succeed(), "again")
	})
	g.Expect(p.doubt()).To(BeEmpty())
	p.write(p.path, newer)
	g.Expect(p.doubt()).To(ContainSubstring("another one"), "what was given up does not come back unnoticed")
}

// The newest copy ends the doubt when it comes back, as the cure says: the database in doubt
// has committed meanwhile, and what it noted does not count.
func TestTheNewestCopyEndsTheDoubt(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	p.commit(15)
	old := p.read(p.path)
	p.commit(3)
	newest := filepath.Join(t.TempDir(), "newest.db")
	p.write(newest, p.read(p.path))
	p.write(p.path, old)
	p.commit(20)
	g.Expect(p.doubt()).NotTo(BeEmpty())
	none := func(context.Context, *File) (int, error) { return 0, nil }
	p.write(newest+".old", old)
	report, err := Restore(t.Context(), newest+".old", p.path, none)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(report.Older).To(BeTrue())
	report, err = Restore(t.Context(), newest, p.path, none)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(report.Older).To(BeFalse())
	g.Expect(p.doubt()).To(BeEmpty())
	p.write(p.path, old)
	g.Expect(p.doubt()).To(ContainSubstring("older"), "from then on it is the one that counts")
}

// A database in doubt whose notes are lost does not become its own witness, however often the
// agent starts with it.
func TestADoubtWithoutANoteStays(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	p.commit(5)
	g.Expect(os.Remove(p.run)).To(Succeed())
	g.Expect(os.Remove(p.state)).To(Succeed())
	for range 5 {
		g.Expect(p.doubt()).To(ContainSubstring("neither of its notes is readable"))
	}
}

// The longest note fits its slot.
func TestTheLongestNote(t *testing.T) {
	g := NewWithT(t)
	long := identity(bytes.Repeat([]byte{255}, len(identity{})))
	k := &known{long, math.MaxUint64, math.MinInt64, long}
	_, err := note{math.MaxUint64, long, math.MaxUint64, long, math.MinInt64, "12345678-1234-1234-1234-123456789012", doubtLineage, k, &known{Lineage: long, Sequence: k.Sequence, At: k.At}}.encode()
	g.Expect(err).NotTo(HaveOccurred())
}

// The agent commits to a database in doubt as well. What it lacks is counted from the commit
// that it had when the doubt began, also after further starts.
func TestADoubtKnowsTheCommitAtWhichItBegan(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	p.commit(15)
	old := p.read(p.path)
	p.commit(3)
	p.write(p.path, old)
	for range 3 {
		p.use(func(g Gomega, file *File) {
			g.Expect(file.Doubt().Known.Sequence - file.Doubt().Opened.Sequence).To(Equal(uint64(3)))
			g.Expect(file.Doubt().Opened.Lineage).To(Equal(file.Doubt().Known.Lineage))
		})
		p.commit(9)
	}
	g.Expect(os.Remove(p.path)).To(Succeed())
	p.use(func(g Gomega, file *File) { g.Expect(file.Accept(t.Context())).To(Succeed()) })
	g.Expect(p.doubt()).To(BeEmpty())
	g.Expect(os.Remove(p.path)).To(Succeed())
	for range 2 {
		p.use(func(g Gomega, file *File) { g.Expect(file.Doubt().Opened.Sequence).To(BeZero(), "it was removed") })
		p.commit(9)
	}
}

// A commit of the journal with the op of the ledger accepts the database, or fails with all
// that it has.
func TestACommitOfTheJournalAcceptsTheDatabase(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	p.commit(5)
	g.Expect(os.Remove(p.path)).To(Succeed())
	accept, record := kvdb.Put(ledger.AcceptKey, nil), kvdb.Put("L", []byte("quarantined"))
	p.use(func(g Gomega, file *File) {
		g.Expect(file.Doubt()).NotTo(BeNil())
		tooLong := kvdb.Put(strings.Repeat("x", 1<<16), nil)
		g.Expect(file.Journal().Commit(t.Context(), []kvdb.Op{record, accept, tooLong})).NotTo(Succeed())
		g.Expect(file.Doubt()).NotTo(BeNil())
		g.Expect(file.Journal().Commit(t.Context(), []kvdb.Op{record})).To(Succeed())
		g.Expect(file.Doubt()).NotTo(BeNil(), "a later commit does not accept")
		before := file.Last()
		g.Expect(file.Journal().Commit(t.Context(), []kvdb.Op{record, accept})).To(Succeed())
		g.Expect(file.Doubt()).To(BeNil())
		g.Expect(file.Last().Sequence).To(Equal(before.Sequence + 1))
		var keys []string
		g.Expect(file.Journal().Load(t.Context(), func(kv kvdb.KeyValue) error { keys = append(keys, kv.Key); return nil })).To(Succeed())
		g.Expect(keys).To(Equal([]string{"L"}), "the op leaves no record")
		g.Expect(file.Journal().Commit(t.Context(), []kvdb.Op{accept})).To(Succeed(), "again")
	})
	g.Expect(p.doubt()).To(BeEmpty())
}

func TestNotes(t *testing.T) {
	remove := func(p *place, paths ...string) {
		for _, path := range paths {
			NewWithT(p.t).Expect(os.Remove(path)).To(Succeed())
		}
	}
	spoil := map[string]func(p *place, path string){
		"removed":     func(p *place, path string) { remove(p, path) },
		"emptied":     func(p *place, path string) { p.write(path, nil) },
		"truncated":   func(p *place, path string) { p.write(path, p.read(path)[:noteSlot/2]) },
		"overwritten": func(p *place, path string) { p.write(path, bytes.Repeat([]byte("text "), 300)) },
	}
	for name, spoil := range spoil {
		for which, paths := range map[string]func(p *place) []string{
			"run":   func(p *place) []string { return []string{p.run} },
			"state": func(p *place) []string { return []string{p.state} },
			"both":  func(p *place) []string { return []string{p.run, p.state} },
		} {
			t.Run(which+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				p := newPlace(t)
				p.commit(5)
				old := p.read(p.path)
				p.commit(5)
				for _, path := range paths(p) {
					spoil(p, path)
				}
				if which == "both" {
					g.Expect(p.doubt()).To(ContainSubstring("neither of its notes is readable"))
				} else {
					g.Expect(p.doubt()).To(BeEmpty(), "the other note is enough")
					for _, path := range paths(p) {
						spoil(p, path)
					}
				}
				p.write(p.path, old)
				g.Expect(p.doubt()).NotTo(BeEmpty(), "an older copy")
			})
		}
	}
}

func TestATornNoteLeavesTheOneBefore(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "note")
	s, err := openNotes([]string{path}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	for i := range uint64(10) {
		g.Expect(s.write(note{Sequence: i + 1, Boot: "b", Known: &known{}})).To(Succeed())
		n, ok := readNote(path)
		g.Expect(ok).To(BeTrue())
		g.Expect(n.Sequence).To(Equal(i + 1))
		if i == 0 {
			continue
		}
		whole, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		torn := bytes.Clone(whole)
		at := int(s.count%noteSlots) * noteSlot
		copy(torn[at+100:at+noteSlot], bytes.Repeat([]byte{0}, noteSlot-100))
		g.Expect(os.WriteFile(path, torn, 0o600)).To(Succeed())
		n, ok = readNote(path)
		g.Expect(ok).To(BeTrue())
		g.Expect(n.Sequence).To(Equal(i))
		g.Expect(os.WriteFile(path, whole, 0o600)).To(Succeed())
	}
	g.Expect(s.close()).To(Succeed())
}

func TestANoteThatCannotBeWrittenFailsTheCommit(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	f := p.open()
	g.Expect(f.trust.notes.files[0].Close()).To(Succeed())
	g.Expect(f.SetLocal("a", "1")).To(Succeed(), "one of two is enough")
	g.Expect(f.trust.notes.files[1].Close()).To(Succeed())
	g.Expect(f.SetLocal("a", "2")).To(MatchError(os.ErrClosed))
	g.Expect(f.Health()).To(HaveOccurred())
}

func revisionOf(t *testing.T, path string) int {
	t.Helper()
	f, err := OpenFile(path, FileOptions{lockOnly: true})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	n, err := f.revision()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return n
}

// TestATornMetaPage spoils the page that bbolt writes last in a commit, as a crash
// in the middle of it does. The commit before that one counts, and is the one that was
// noted.
func TestATornMetaPage(t *testing.T) {
	g := NewWithT(t)
	p := newPlace(t)
	p.commit(4)
	run, state := p.read(p.run), p.read(p.state)
	p.commit(1)
	data := p.read(p.path)
	at := revisionOf(t, p.path) % 2 * os.Getpagesize()
	clear(data[at : at+512])
	p.write(p.path, data)
	p.write(p.run, run)
	p.write(p.state, state)
	g.Expect(p.doubt()).To(BeEmpty())
	p.commit(1)
	g.Expect(p.doubt()).To(BeEmpty())
}
