// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// aDatabase returns the bytes of a database with several pages of records, and the size of a page.
func aDatabase(t *testing.T) (whole []byte, pageSize int) {
	t.Helper()
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	f := openNoSync(t, path)
	s := openStore(t, f)
	for i := range 400 {
		put(t, s, fmt.Sprintf("key/%04d", i), "value of a record")
	}
	pageSize = f.db.Info().PageSize
	g.Expect(f.Close()).To(Succeed())
	whole, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	return whole, pageSize
}

// openBytes opens a file with these bytes.
func openBytes(t *testing.T, data []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "damaged.db")
	NewWithT(t).Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
	f, err := OpenFile(path, FileOptions{})
	if err != nil {
		return err
	}
	return f.Close()
}

// newest returns the newer meta page.
func newest(whole []byte, pageSize int) []byte {
	txid := func(meta []byte) uint64 { return binary.NativeEndian.Uint64(meta[64:]) }
	if a, b := whole[:pageSize], whole[pageSize:2*pageSize]; txid(a) < txid(b) {
		return b
	}
	return whole[:pageSize]
}

// A page that is in use and on the list of free pages would be overwritten. A page that
// is on the list twice would get two uses, and a long list would take all memory. A page
// that is missing says that the list, which has no checksum, is damaged.
func TestTheListOfFreePages(t *testing.T) {
	whole, size := aDatabase(t)
	root, list := binary.NativeEndian.Uint64(newest(whole, size)[32:]), int(binary.NativeEndian.Uint64(newest(whole, size)[metaFreelist:]))*size
	first, last := binary.NativeEndian.Uint64(whole[list+pageHeader:]), pageHeader+8*(int(binary.NativeEndian.Uint16(whole[list+10:]))-1)
	for name, damage := range map[string]func(page []byte){
		"a page in use":              func(page []byte) { binary.NativeEndian.PutUint64(page[pageHeader:], root) },
		"a page twice":               func(page []byte) { binary.NativeEndian.PutUint64(page[pageHeader+8:], first) },
		"a page outside of the file": func(page []byte) { binary.NativeEndian.PutUint64(page[last:], 1<<40) },
		"a page that is missing": func(page []byte) {
			binary.NativeEndian.PutUint16(page[10:], binary.NativeEndian.Uint16(page[10:])-1)
		},
		"it goes on for ever":         func(page []byte) { binary.NativeEndian.PutUint32(page[12:], 1<<31) },
		"more pages than it has room": func(page []byte) { binary.NativeEndian.PutUint16(page[10:], 0xfff0) },
	} {
		t.Run(name, func(t *testing.T) {
			data := bytes.Clone(whole)
			damage(data[list:])
			NewWithT(t).Expect(openBytes(t, data)).To(MatchError(ErrDamaged))
		})
	}
	NewWithT(t).Expect(openBytes(t, whole)).To(Succeed())
}

// A key of a branch leads to another page than the one that has the record.
func TestKeysOutOfOrder(t *testing.T) {
	g := NewWithT(t)
	whole, size := aDatabase(t)
	found := 0
	for start := 2 * size; start < len(whole); start += size {
		page := whole[start : start+size]
		if binary.NativeEndian.Uint16(page[8:]) != branchPage || binary.NativeEndian.Uint16(page[10:]) < 2 {
			continue
		}
		for _, by := range []byte{1, 0xff} { // the second key comes later, or earlier
			data := bytes.Clone(whole)
			e := data[start+pageHeader+pageElement:]
			e[binary.NativeEndian.Uint32(e)+binary.NativeEndian.Uint32(e[4:])-1] += by
			if err := openBytes(t, data); err != nil {
				g.Expect(err).To(MatchError(errOrder))
				found++
			}
		}
	}
	g.Expect(found).To(BeNumerically(">=", 2))
}

// A position or a page number that leads out of the file is an error. bbolt would
// follow it, in a goroutine whose fault ends the process.
func TestElementsOutsideOfTheFile(t *testing.T) {
	g := NewWithT(t)
	whole, pageSize := aDatabase(t)

	damaged := map[uint16]int{}
	for start := 2 * pageSize; start < len(whole); start += pageSize {
		flags, count := binary.NativeEndian.Uint16(whole[start+8:]), binary.NativeEndian.Uint16(whole[start+10:])
		if flags != branchPage && flags != leafPage || count == 0 {
			continue
		}
		for name, at := range map[string]int{"position": pageHeader, "length of the key": pageHeader + 4, "further pages": 12} {
			if at != 12 && flags == leafPage {
				at += 4 // behind the flags of the element
			}
			data := bytes.Clone(whole)
			binary.NativeEndian.PutUint32(data[start+at:], 0x00a00000)
			err := openBytes(t, data)
			if err == nil { // a page that is free, or that an earlier transaction has left
				continue
			}
			g.Expect(err).To(MatchError(ErrDamaged), name)
			damaged[flags]++
		}
	}
	g.Expect(damaged).To(And(HaveKeyWithValue(uint16(branchPage), BeNumerically(">=", 3)), HaveKeyWithValue(uint16(leafPage), BeNumerically(">=", 3))))
}
