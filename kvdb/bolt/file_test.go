// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger/journaltest"
)

func openFile(t *testing.T, path string, opt FileOptions) *File {
	t.Helper()
	f, err := OpenFile(path, opt)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { f.Close() })
	return f
}

func TestJournal(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) journaltest.Journal {
		return openFile(t, filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{}).Journal()
	})
}

func TestASecondProcessIsToldWhoHasTheFile(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "state", "cadastre.db")
	f := openFile(t, path, FileOptions{Holder: "cadastre-agent of node-a"})
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	_, err = OpenFile(path, FileOptions{wait: 10 * time.Millisecond})
	g.Expect(err).To(MatchError(errHeld))
	g.Expect(err).To(MatchError(MatchRegexp(`in use by cadastre-agent of node-a \(pid \d+\): stop it`)))
	g.Expect(f.Close()).To(Succeed())
	openFile(t, path, FileOptions{})
}

func TestDamagedFilesAreRefusedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.db")
	f := openFile(t, good, FileOptions{})
	var ops []kvdb.Op
	for i := range 3000 {
		ops = append(ops, kvdb.Put(string(rune('a'+i%26))+time.Duration(i).String(), bytes.Repeat([]byte{1}, 200)))
	}
	if err := f.Journal().Commit(context.Background(), ops); err != nil {
		t.Fatal(err)
	}
	f.Close()
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"no database at all": []byte("hello, I am not a database, but long enough to be looked at"),
		"cut in half":        data[:len(data)/64],
		"cut to two pages":   data[:8192],
		"both metas zero":    append(make([]byte, 8192), data[8192:]...),
		"all zero":           make([]byte, len(data)),
		"a page of garbage":  append(append(append([]byte{}, data[:8192]...), bytes.Repeat([]byte{0xff}, 40960)...), data[8192+40960:]...),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), "cadastre.db")
			g.Expect(os.WriteFile(path, bad, 0o600)).To(Succeed())
			f, err := OpenFile(path, FileOptions{})
			if err == nil { // the damage is in a page that opening does not read
				err = f.Journal().Load(context.Background(), func(kvdb.KeyValue) error { return nil })
				f.Close()
			}
			g.Expect(err).To(MatchError(ErrDamaged))
			after, _ := os.ReadFile(path)
			g.Expect(bytes.Equal(after, bad)).To(BeTrue())
		})
	}
}

// A file of another format is refused and left as it is.
func TestFormats(t *testing.T) {
	for number, want := range map[uint64]string{
		Format + 4: "its format is 5, this program knows 1: install the newer program again",
		0:          "its format number 0 is not known",
	} {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "cadastre.db")
		f := openFile(t, path, FileOptions{})
		g.Expect(f.db.Update(func(tx *bbolt.Tx) error { return writeFormat(tx, number) })).To(Succeed())
		g.Expect(f.Close()).To(Succeed())
		before, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = OpenFile(path, FileOptions{})
		g.Expect(err).To(MatchError(ContainSubstring(want)))
		g.Expect(errors.Is(err, errNewer)).To(Equal(number > Format))
		g.Expect(os.ReadFile(path)).To(Equal(before))
	}
}

func TestLocal(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	f := openFile(t, path, FileOptions{})
	g.Expect(f.Local("instance")).To(BeEmpty())
	g.Expect(f.SetLocal("instance", "uuid")).To(Succeed())
	f.Close()
	g.Expect(openFile(t, path, FileOptions{}).Local("instance")).To(Equal("uuid"))
}

func TestStoreAndJournalShareTheFile(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	f := openFile(t, filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{})
	store, err := f.Store()
	g.Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	_, err = store.Txn(ctx, nil, []kvdb.Op{kvdb.Put("a", []byte("1"))})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("b", nil)})).To(Succeed())
	kvs, _, err := store.List(ctx, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(HaveLen(1))
}

func TestRestore(t *testing.T) {
	g := NewWithT(t)
	ctx, dir := context.Background(), t.TempDir()
	path, backup := filepath.Join(dir, "cadastre.db"), filepath.Join(dir, "backup")
	count := func(ctx context.Context, f *File) (n int, err error) {
		err = f.Journal().Load(ctx, func(kvdb.KeyValue) error { n++; return nil })
		return n, err
	}
	f := openFile(t, path, FileOptions{})
	g.Expect(f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("a", nil)})).To(Succeed())
	g.Expect(f.copyTo(backup)).To(Succeed())
	g.Expect(f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("b", nil)})).To(Succeed())
	_, err := Restore(ctx, backup, path, count)
	g.Expect(err).To(MatchError(errHeld), "not while an agent has it")
	f.Close()

	report, err := Restore(ctx, backup, path, count)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(report.Leases).To(Equal(1))
	g.Expect(report.Older).To(BeTrue())
	g.Expect(report.Kept).To(BeAnExistingFile())
	again, err := Restore(ctx, report.Kept, path, count)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Leases).To(Equal(2))
	g.Expect(again.Older).To(BeFalse())

	before, _ := os.ReadFile(path)
	g.Expect(os.WriteFile(backup, []byte("not a database, whatever its name says"), 0o600)).To(Succeed())
	_, err = Restore(ctx, backup, path, count)
	g.Expect(err).To(MatchError(ErrDamaged))
	_, err = Restore(ctx, filepath.Join(dir, "missing"), path, count)
	g.Expect(err).To(MatchError(os.ErrNotExist))
	_, err = Restore(ctx, again.Kept, path, func(context.Context, *File) (int, error) { return 0, errors.New("no") })
	g.Expect(err).To(HaveOccurred())
	after, _ := os.ReadFile(path)
	g.Expect(bytes.Equal(before, after)).To(BeTrue(), "a backup that does not verify replaces nothing")
	g.Expect(path + ".restoring").NotTo(BeAnExistingFile())
}
