// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// disk holds the files of a node's database.
type disk struct {
	*WithT
	path  string
	notes []string
}

func newDisk(t *testing.T, dir string) *disk {
	path := filepath.Join(dir, "cadastre.db")
	return &disk{NewWithT(t), path, []string{filepath.Join(dir, "db.note"), path + ".note"}}
}

func (d *disk) open(t *testing.T) (*bolt.File, *ledger.Ledger, error) {
	file, err := bolt.OpenFile(d.path, bolt.FileOptions{BootID: "boot", Notes: d.notes})
	if err != nil {
		return nil, nil, err
	}
	leases, err := ledger.Open(t.Context(), file.Journal(), ledger.Options{
		BootID: "boot",
		Now:    func() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) },
	})
	return file, leases, err
}

func (d *disk) claim(t *testing.T, l *ledger.Ledger, container string) {
	_, _, err := l.Claim(t.Context(), ledger.Request{Pool: "default", Key: ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}})
	d.Expect(err).NotTo(HaveOccurred())
}

// read returns the database and its notes.
func (d *disk) read() [][]byte {
	var all [][]byte
	for _, path := range append([]string{d.path}, d.notes...) {
		data, err := os.ReadFile(path)
		d.Expect(err).NotTo(HaveOccurred())
		all = append(all, data)
	}
	return all
}

func (d *disk) write(all [][]byte) {
	for i, path := range append([]string{d.path}, d.notes...) {
		d.Expect(os.WriteFile(path, all[i], 0o600)).To(Succeed())
	}
}

func holdersOf(l *ledger.Ledger) string {
	text := ""
	for _, x := range l.Leases() {
		text += fmt.Sprintln(x.Addr, x.Key.ContainerID, x.State)
	}
	return text
}

// cuts returns the files as they are when the power fails while a commit is written. A
// database writes its pages in their order, and the page that makes them count last. step
// is the number of changed bytes between two cuts of pages; the last page is cut at each of
// its changed bytes.
func cuts(before, after []byte, step int) (all [][]byte) {
	const page = 4096
	image := append(bytes.Clone(before), make([]byte, max(0, len(after)-len(before)))...)
	changed := 0
	for _, meta := range []bool{false, true} {
		for i := range after {
			if (i < 2*page) != meta || image[i] == after[i] {
				continue
			}
			if changed++; meta || changed%step == 0 {
				all = append(all, bytes.Clone(image))
			}
			image[i] = after[i]
		}
	}
	return append(all, image)
}

// Scenario 1: the power fails at any byte of a commit. The database is the one before the
// commit or the one after it, and new addresses are allocated from it at once.
func TestThePowerFailsAtAnyByteOfACommit(t *testing.T) {
	d := newDisk(t, t.TempDir())
	file, l, err := d.open(t)
	d.Expect(err).NotTo(HaveOccurred())
	st := l.Begin()
	d.Expect(st.SetPool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true})).To(Succeed())
	d.Expect(st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")})).To(Succeed())
	d.Expect(st.Commit(t.Context())).To(Succeed())
	for i := range 5 {
		d.claim(t, l, fmt.Sprint("c", i))
	}
	before, held := d.read(), holdersOf(l)
	d.claim(t, l, "last")
	after, heldAfter := d.read(), holdersOf(l)
	d.Expect(file.Close()).To(Succeed())

	images := cuts(before[0], after[0], max(1, 200/effort.Times(t, 100)))
	d.Expect(len(images)).To(BeNumerically(">", 10))
	old := 0
	for i, image := range images {
		d := newDisk(t, t.TempDir())
		d.write(append([][]byte{image}, before[1:]...))
		file, l, err := d.open(t)
		d.Expect(err).NotTo(HaveOccurred(), "cut %d of %d", i, len(images))
		d.Expect(file.Doubt()).To(BeNil())
		got := holdersOf(l)
		d.Expect(got).To(BeElementOf(held, heldAfter), "cut %d of %d", i, len(images))
		if got == held {
			old++
		}
		d.claim(t, l, "next")
		findings, err := l.Check(t.Context())
		d.Expect(err).NotTo(HaveOccurred())
		d.Expect(findings).To(BeEmpty())
		d.Expect(file.Close()).To(Succeed())
	}
	d.Expect(old).To(BeNumerically(">", len(images)/2), "most cuts come before the commit counts")
	d.Expect(old).To(BeNumerically("<", len(images)), "the last image is the whole commit")
}
