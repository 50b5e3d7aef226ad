// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"
)

func loaded(g Gomega, r *Records) map[string]string {
	all := map[string]string{}
	g.Expect(r.Load(context.Background(), func(key string, value []byte) error { all[key] = string(value); return nil })).To(Succeed())
	return all
}

func TestRecordsOutliveTheProcess(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	f, err := OpenFile(path, FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	r := f.Records("docker")
	g.Expect(loaded(g, r)).To(BeEmpty())
	g.Expect(r.Commit(t.Context(), map[string][]byte{"a": []byte("1"), "b": []byte("2"), "c": nil}, nil)).To(Succeed())
	g.Expect(r.Commit(t.Context(), map[string][]byte{"a": []byte("3")}, []string{"b", "never there"})).To(Succeed())
	g.Expect(f.Records("another").Commit(t.Context(), map[string][]byte{"a": []byte("4")}, nil)).To(Succeed())
	ended, end := context.WithCancel(t.Context())
	end()
	g.Expect(r.Commit(ended, map[string][]byte{"a": []byte("5")}, nil)).To(MatchError(context.Canceled))
	g.Expect(f.Close()).To(Succeed())
	f, err = OpenFile(path, FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	g.Expect(loaded(g, f.Records("docker"))).To(Equal(map[string]string{"a": "3", "c": ""}))
}

func TestADamagedRecordIsNotRead(t *testing.T) {
	g := NewWithT(t)
	f, err := OpenFile(filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	r := f.Records("docker")
	g.Expect(r.Commit(t.Context(), map[string][]byte{"a": []byte("1")}, nil)).To(Succeed())
	g.Expect(f.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("records-docker"))
		return b.Put([]byte("a"), append(b.Get([]byte("a"))[:checksumLen:checksumLen], '2'))
	})).To(Succeed())
	g.Expect(r.Load(t.Context(), func(string, []byte) error { return nil })).To(MatchError(ErrDamaged))
}
