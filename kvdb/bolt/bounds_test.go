// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// A position or a page number that leads out of the file is an error. bbolt would
// follow it, in a goroutine whose fault ends the process.
func TestElementsOutsideOfTheFile(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	f := openNoSync(t, path)
	s := openStore(t, f)
	for i := range 400 { // more than one page of records
		put(t, s, fmt.Sprintf("key/%04d", i), "value of a record")
	}
	pageSize := f.db.Info().PageSize
	g.Expect(f.Close()).To(Succeed())
	whole, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())

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
			data := append([]byte{}, whole...)
			binary.NativeEndian.PutUint32(data[start+at:], 0x00a00000)
			other := filepath.Join(t.TempDir(), "damaged.db")
			g.Expect(os.WriteFile(other, data, 0o600)).To(Succeed())
			f, err := OpenFile(other, FileOptions{})
			if err == nil { // a page that is free, or that an earlier transaction has left
				g.Expect(f.Close()).To(Succeed())
				continue
			}
			g.Expect(err).To(MatchError(ErrDamaged), name)
			damaged[flags]++
		}
	}
	g.Expect(damaged).To(And(HaveKeyWithValue(uint16(branchPage), BeNumerically(">=", 3)), HaveKeyWithValue(uint16(leafPage), BeNumerically(">=", 3))))
}
