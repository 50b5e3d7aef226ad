// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/kvdb"
)

func openMirror(t *testing.T) (*File, *Mirror) {
	t.Helper()
	f, err := OpenFile(filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = f.Close() })
	return f, f.Mirror()
}

func TestAMirrorThatWasNeverWritten(t *testing.T) {
	g := NewWithT(t)
	_, m := openMirror(t)
	kvs, rev, err := m.Load(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(BeEmpty())
	g.Expect(rev).To(BeZero())
}

// Whatever is replaced and applied, what is loaded is what a map would have.
func TestMirrorProperty(t *testing.T) {
	_, m := openMirror(t)
	g := NewWithT(t)
	rev := int64(0)
	rapid.Check(t, func(rt *rapid.T) {
		keys, values := rapid.SampledFrom([]string{"a", "b", "b/c", "d"}), rapid.SliceOfN(rapid.Byte(), 0, 3)
		rev++
		model := rapid.MapOf(keys, values).Draw(rt, "replace")
		var kvs []kvdb.KeyValue
		for _, k := range slices.Sorted(maps.Keys(model)) {
			kvs = append(kvs, kvdb.KeyValue{Key: k, Value: model[k]})
		}
		g.Expect(m.Replace(t.Context(), kvs, rev)).To(Succeed())
		for range rapid.IntRange(0, 3).Draw(rt, "batches") {
			rev++
			ev := kvdb.Event{KeyValue: kvdb.KeyValue{Key: keys.Draw(rt, "key")}, Deleted: rapid.Bool().Draw(rt, "deleted")}
			delete(model, ev.Key)
			if !ev.Deleted {
				ev.Value = values.Draw(rt, "value")
				model[ev.Key] = ev.Value
			}
			g.Expect(m.Apply(t.Context(), []kvdb.Event{ev}, rev)).To(Succeed())
		}
		loaded, at, err := m.Load(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(at).To(Equal(rev))
		have := map[string]string{}
		for _, x := range loaded {
			have[x.Key] = string(x.Value)
		}
		want := map[string]string{}
		for k, v := range model {
			want[k] = string(v)
		}
		g.Expect(have).To(Equal(want))
	})
}

func TestADamagedMirrorIsRefused(t *testing.T) {
	g := NewWithT(t)
	f, m := openMirror(t)
	g.Expect(m.Replace(t.Context(), []kvdb.KeyValue{{Key: "a", Value: []byte("1")}}, 7)).To(Succeed())
	g.Expect(f.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(mirrorBucket))
		v := slices.Clone(b.Get([]byte("a")))
		v[len(v)-1] ^= 1
		return b.Put([]byte("a"), v)
	})).To(Succeed())
	g.Expect(f.Close()).To(Succeed())
	f = openFile(t, f.path, FileOptions{})
	m = f.Mirror()
	g.Expect(m.Damage()).To(MatchError(ErrDamaged), "found at open, which it does not prevent")
	_, _, err := m.Load(t.Context())
	g.Expect(err).To(MatchError(ErrDamaged))
	g.Expect(m.Replace(t.Context(), []kvdb.KeyValue{{Key: "a", Value: []byte("1")}}, 8)).To(Succeed(), "a damaged one can be written anew")
	kvs, rev, err := m.Load(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kvs).To(HaveLen(1))
	g.Expect(rev).To(Equal(int64(8)))
	g.Expect(f.Close()).To(Succeed())
	g.Expect(openFile(t, f.path, FileOptions{}).Mirror().Damage()).NotTo(HaveOccurred())
}
