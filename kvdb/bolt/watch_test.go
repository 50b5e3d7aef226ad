// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// attacks returns what another program may do to an open file.
func attacks() map[string]func(g Gomega, path, backup string) {
	read := func(g Gomega, path string) []byte {
		data, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		return data
	}
	cut := func(part int64) func(g Gomega, path, _ string) {
		return func(g Gomega, path, _ string) {
			info, err := os.Stat(path)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(os.Truncate(path, info.Size()*part/4)).To(Succeed())
		}
	}
	return map[string]func(g Gomega, path, backup string){
		"a backup copied over it": func(g Gomega, path, backup string) {
			g.Expect(os.WriteFile(path, read(g, backup), 0o600)).To(Succeed())
		},
		"a backup moved over it": func(g Gomega, path, backup string) { g.Expect(os.Rename(backup, path)).To(Succeed()) },
		"text written over it":   func(g Gomega, path, _ string) { g.Expect(os.WriteFile(path, make([]byte, 1<<20), 0o600)).To(Succeed()) },
		"removed":                func(g Gomega, path, _ string) { g.Expect(os.Remove(path)).To(Succeed()) },
		"renamed":                func(g Gomega, path, _ string) { g.Expect(os.Rename(path, path+".away")).To(Succeed()) },
		"cut to nothing":         cut(0),
		"cut to a quarter":       cut(1),
		"cut to half":            cut(2),
	}
}

func fillJournal(t *testing.T, f *File, n int) {
	t.Helper()
	var ops []kvdb.Op
	for i := range n {
		ops = append(ops, kvdb.Put(fmt.Sprintf("%06d", i), make([]byte, 100)))
	}
	NewWithT(t).Expect(f.Journal().Commit(t.Context(), ops)).To(Succeed())
}

func TestAFileThatAnotherProgramChangesFails(t *testing.T) {
	uses := map[string]func(f *File) error{
		"commit": func(f *File) error { return f.SetLocal("a", "1") },
		"check":  (*File).check,
		"read": func(f *File) error {
			return errors.Join(f.Journal().Load(context.Background(), func(kvdb.KeyValue) error { return nil }), f.check())
		},
		"watch": func(f *File) error { return f.Watch(context.Background(), time.Millisecond) },
		"many": func(f *File) error {
			var all sync.WaitGroup
			errs := make([]error, 20)
			for i := range errs {
				all.Go(func() {
					for n := 0; errs[i] == nil && n < 1e6; n++ {
						errs[i] = f.Journal().Commit(context.Background(), []kvdb.Op{kvdb.Put(fmt.Sprint(i), fmt.Append(nil, n))})
					}
				})
			}
			all.Wait()
			return errors.Join(errs...)
		},
	}
	for attack, change := range attacks() {
		for what, use := range uses {
			t.Run(attack+", "+what, func(t *testing.T) {
				g := NewWithT(t)
				path := filepath.Join(t.TempDir(), "cadastre.db")
				told := make(chan error, 10)
				f := openFile(t, path, FileOptions{Fail: func(err error) { told <- err }, tune: func(o *bbolt.Options) { o.NoSync = true }})
				fillJournal(t, f, 2000)
				g.Expect(f.copyTo(path + ".bak")).To(Succeed())
				fillJournal(t, f, 4000)
				change(g, path, path+".bak")
				err := use(f)
				g.Expect(err).To(Or(MatchError(errForeign), MatchError(ErrDamaged)))
				g.Expect(<-told).To(MatchError(ContainSubstring("database " + path + ": ")))
				g.Expect(f.SetLocal("a", "2")).To(Or(MatchError(errForeign), MatchError(ErrDamaged)))
				_, err = f.Local("a")
				g.Expect(err).To(HaveOccurred())
				g.Expect(f.Health()).To(HaveOccurred())
				g.Expect(f.Close()).To(Succeed(), "and does not wait")
				g.Expect(told).To(BeEmpty(), "the owner is told once")
			})
		}
	}
}

func TestHealthFailsWithACommitAndRecoversWithoutTraffic(t *testing.T) {
	g := NewWithT(t)
	f := openFile(t, filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{tune: func(o *bbolt.Options) { o.NoSync, o.MaxSize = true, 1<<20 }})
	g.Expect(f.Health()).To(Succeed())
	g.Expect(f.Records("a").Commit(t.Context(), map[string][]byte{"big": make([]byte, 4<<20)}, nil)).NotTo(Succeed())
	g.Expect(f.SetLocal("a", "1")).To(Succeed())
	g.Expect(f.Health()).To(HaveOccurred(), "one that succeeds is not enough")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Watch(ctx, time.Millisecond) }()
	g.Eventually(f.Health, 5*time.Minute, time.Millisecond).Should(Succeed(), "without other traffic")
	before := f.Last()
	g.Expect(f.check()).To(Succeed())
	cancel()
	g.Expect(<-ended).To(Succeed())
	g.Expect(f.Last()).To(Equal(before), "a healthy file is not written to")
}

// TestReadersSeeCommitsOfThisProcess reads while another goroutine commits as fast
// as it can: no commit of this process looks like one of another.
func TestReadersSeeCommitsOfThisProcess(t *testing.T) {
	g := NewWithT(t)
	f := openFile(t, filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{tune: func(o *bbolt.Options) { o.NoSync = true }})
	var all sync.WaitGroup
	stop := make(chan struct{})
	errs := make([]error, 4)
	for i := range errs {
		all.Go(func() {
			for errs[i] == nil {
				select {
				case <-stop:
					return
				default:
					_, errs[i] = f.Local("n")
				}
			}
		})
	}
	for i := range 2000 {
		g.Expect(f.SetLocal("n", fmt.Sprint(i))).To(Succeed())
	}
	close(stop)
	all.Wait()
	g.Expect(errors.Join(errs...)).To(Succeed())
}
