// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// countOf opens a copy and returns the number of records in its journal.
func countOf(t *testing.T, copied []byte) (n int) {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "copy.db")
	g.Expect(os.WriteFile(path, copied, 0o600)).To(Succeed())
	f := openFile(t, path, FileOptions{})
	g.Expect(f.Journal().Load(t.Context(), func(kvdb.KeyValue) error { n++; return nil })).To(Succeed())
	g.Expect(f.Close()).To(Succeed())
	return n
}

func TestConcurrentBackups(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	const before = 100
	for i := range before {
		g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put(fmt.Sprint("L", i), nil)})).To(Succeed())
	}
	var all sync.WaitGroup
	copies, errs := make([]bytes.Buffer, 240), make([]error, 240)
	for i := range copies {
		all.Go(func() { _, errs[i] = f.Backup(&copies[i]) })
	}
	for i := range before {
		g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put(fmt.Sprint("Lmore", i), nil)})).To(Succeed())
	}
	all.Wait()
	g.Expect(errors.Join(errs...)).To(Succeed())
	for i := range copies {
		if i%16 == 0 {
			g.Expect(countOf(t, copies[i].Bytes())).To(BeNumerically(">=", before))
		}
	}
}

// reader takes a copy, and does something else after the first part.
type reader struct {
	bytes.Buffer
	meanwhile func()
}

func (r *reader) Write(p []byte) (int, error) {
	if r.meanwhile != nil {
		r.meanwhile()
		r.meanwhile = nil
	}
	return r.Buffer.Write(p)
}

// A reader that takes its time gets the state of its begin, and no commit waits for it:
// not even one for which the file grows beyond what was mapped.
func TestASlowBackupHoldsNoCommitUp(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put("L", nil)})).To(Succeed())
	slow := &reader{}
	slow.meanwhile = func() {
		for i := range 20 {
			g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put(fmt.Sprint("L", i), make([]byte, 1<<17))})).To(Succeed())
		}
	}
	_, err := f.Backup(slow)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(countOf(t, slow.Bytes())).To(Equal(1))
}

// The pages of a reader that is too slow are given up, before the disk is full of them.
func TestABackupThatIsTooSlow(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	slow := &reader{}
	slow.meanwhile = func() {
		for i := 0; f.size.Load() <= 2*backupRoom; i++ {
			g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put(fmt.Sprint("L", i), make([]byte, 1<<20))})).To(Succeed())
		}
	}
	n, err := f.Backup(slow)
	g.Expect(err).To(MatchError(ContainSubstring("want a faster reader")))
	g.Expect(n).To(BeEquivalentTo(slow.Len()))
}

// A disk on which nothing can be written does not prevent a backup.
func TestABackupOfADeadDisk(t *testing.T) {
	g := NewWithT(t)
	path, dead := filepath.Join(t.TempDir(), "cadastre.db"), false
	f := openFile(t, path, FileOptions{tune: func(o *bbolt.Options) {
		o.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
			if dead {
				return nil, syscall.EIO
			}
			return os.OpenFile(name, flag, mode)
		}
	}})
	g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put("L", nil)})).To(Succeed())
	g.Expect(os.Mkdir(path+".backup", 0o700)).To(Succeed()) // no file beside the database can be made
	dead = true
	var copied bytes.Buffer
	_, err := f.Backup(&copied)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(countOf(t, copied.Bytes())).To(Equal(1))
}

// What is read from a file that cannot be synced may be newer than the disk.
func TestAFileThatCannotBeSyncedIsNotOpened(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	synced := ""
	sync := func(err error) FileOptions {
		return FileOptions{sync: func(file *os.File) error { synced = file.Name(); return err }}
	}
	_, err := OpenFile(path, sync(syscall.EIO))
	g.Expect(err).To(MatchError(syscall.EIO))
	g.Expect(err).NotTo(MatchError(ErrDamaged))
	g.Expect(err).To(MatchError(HaveSuffix("make it durable before it is used: input/output error")))
	openFile(t, path, sync(nil))
	g.Expect(synced).To(Equal(path))
}
