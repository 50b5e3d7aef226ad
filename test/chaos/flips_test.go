// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
)

// dockerConf has a Docker part beside roomyConf.
func (n *node) dockerConf() string {
	return roomyConf[:strings.LastIndex(roomyConf, "}")] + fmt.Sprintf(", witnesses: {engine: none}, docker: {enabled: true, socket: %s}}\n", filepath.Join(n.dir, "docker.sock"))
}

// records returns what is stored in each bucket of a database: a key followed by
// its value, as bbolt has them on a page.
func (p *past) records(g *WithT) map[string][][]byte {
	copied := filepath.Join(p.dir, "records.db")
	g.Expect(os.WriteFile(copied, p.data, 0o600)).To(Succeed())
	db, err := bbolt.Open(copied, 0o600, &bbolt.Options{ReadOnly: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer db.Close()
	all := map[string][][]byte{}
	var walk func(path string, b *bbolt.Bucket) error
	walk = func(path string, b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return walk(path+"/"+string(k), b.Bucket(k))
			}
			all[path] = append(all[path], append(bytes.Clone(k), v...))
			return nil
		})
	}
	g.Expect(db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error { return walk(string(name), b) })
	})).To(Succeed())
	return all
}

// flip returns the database with one bit of a record flipped, wherever the file
// has that record.
func (p *past) flip(record []byte, bit int) []byte {
	flipped := bytes.Clone(record)
	flipped[bit/8] ^= 1 << (bit % 8)
	return bytes.ReplaceAll(p.data, record, flipped)
}

// TestBitFlipsInEveryBucket flips bits of records of each bucket: the agent
// refuses the file, or holds what was held. It never answers something else.
func TestBitFlipsInEveryBucket(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	g.Expect(os.WriteFile(n.conf, []byte(n.dockerConf()), 0o600)).To(Succeed())
	p := newPast(t, n, 20)
	rnd := random(effort.Seed(t), 0)
	all := p.records(g)
	g.Expect(slices.Sorted(maps.Keys(all))).To(ContainElements("kvdb/keys", "kvdb/meta", "ledger", "local", "meta"))
	for _, bucket := range slices.Sorted(maps.Keys(all)) {
		t.Run(bucket, func(t *testing.T) {
			tried := attack.Begin(t, attack.Flip)
			for i := range effort.Times(t, 4) {
				tried.Add(1)
				p.flipOne(t, rnd, all[bucket], fmt.Sprint(bucket, i))
			}
		})
	}
}

func (p *past) flipOne(t *testing.T, rnd *rand.Rand, records [][]byte, id string) {
	t.Helper()
	g := NewWithT(t)
	record := records[rnd.IntN(len(records))]
	bit := rnd.IntN(8 * len(record))
	data := p.flip(record, bit)
	g.Expect(data).NotTo(Equal(p.data))
	p.restore(g, data)
	outcome, err := p.judge(t, data, strings.ReplaceAll(id, "/", "-"))
	g.Expect(err).NotTo(HaveOccurred(), "bit %d of record %q", bit, record)
	g.Expect(outcome).To(Equal("refused"))
}

// TestFlippedNodeID flips each bit of the digit of the node ID that the node
// remembers: it takes no other node's ID.
func TestFlippedNodeID(t *testing.T) {
	g := NewWithT(t)
	p := newPast(t, newNode(t, roomyConf), 5)
	var remembered []byte
	for _, record := range p.records(g)["local"] {
		if bytes.HasPrefix(record, []byte("node-id")) {
			remembered = record
		}
	}
	at := bytes.Index(remembered, []byte(`"id":1`)) + len(`"id":`)
	g.Expect(at).To(BeNumerically(">", len(`"id":`)), "%q", remembered)
	for bit := range 8 {
		t.Run(fmt.Sprint("bit ", bit), func(t *testing.T) {
			attack.Begin(t, attack.Flip).Add(1)
			g := NewWithT(t)
			data := p.flip(remembered, 8*at+bit)
			g.Expect(data).NotTo(Equal(p.data))
			p.restore(g, data)
			a := p.launch(t)
			g.Expect(a.awaitServing()).NotTo(Succeed())
			g.Expect(p.refused(a, data)).To(Succeed())
			g.Expect(a.log()).To(And(ContainSubstring("the database is damaged"), ContainSubstring("cadastre restore FILE")))
		})
	}
}
