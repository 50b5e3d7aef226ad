// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger/journaltest"
)

func TestHistory(t *testing.T) {
	journaltest.RunHistory(t, func(t *testing.T) journaltest.HistoryJournal {
		f := openFile(t, filepath.Join(t.TempDir(), "db"), FileOptions{})
		t.Cleanup(func() { _ = f.Close() })
		return f.Journal()
	})
}

// TestADamagedHistoryIsNoticed damages an entry of the open file, and then opens the file
// again: the reader refuses the entry, and the next start the file.
func TestADamagedHistoryIsNoticed(t *testing.T) {
	g, ctx, path := NewWithT(t), context.Background(), filepath.Join(t.TempDir(), "db")
	f := openFile(t, path, FileOptions{})
	value := bytes.Repeat([]byte("history"), 3)
	g.Expect(f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("H00000001", value)})).To(Succeed())
	data, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	at := int64(bytes.LastIndex(data, value))
	g.Expect(at).To(BeNumerically(">", 0))
	out, err := os.OpenFile(path, os.O_WRONLY, 0)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = out.WriteAt([]byte("H"), at)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out.Close()).To(Succeed())
	_, err = f.Journal().ReadHistory(ctx, "H~", 9)
	g.Expect(err).To(MatchError(ErrDamaged))
	_ = f.Close()
	_, err = OpenFile(path, FileOptions{})
	g.Expect(err).To(MatchError(ErrDamaged))
}

// TestBackupAndRestoreCopyTheHistory restores a backup in the place of another database.
func TestBackupAndRestoreCopyTheHistory(t *testing.T) {
	g, ctx, dir := NewWithT(t), context.Background(), t.TempDir()
	f := openFile(t, filepath.Join(dir, "db"), FileOptions{})
	g.Expect(f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("H00000001", []byte("x"))})).To(Succeed())
	backup, err := os.Create(filepath.Join(dir, "backup"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = f.Backup(backup)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(backup.Close()).To(Succeed())
	g.Expect(f.Close()).To(Succeed())
	count := func(context.Context, *File) (int, error) { return 0, nil }
	_, err = Restore(ctx, filepath.Join(dir, "backup"), filepath.Join(dir, "other"), count)
	g.Expect(err).NotTo(HaveOccurred())
	other := openFile(t, filepath.Join(dir, "other"), FileOptions{})
	defer other.Close()
	found, err := other.Journal().ReadHistory(ctx, "H~", 9)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(1))
	g.Expect(found[0].Value).To(BeEquivalentTo("x"))
}
