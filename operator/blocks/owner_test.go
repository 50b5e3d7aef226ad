// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestOwnersAreToldApart(t *testing.T) {
	g := NewWithT(t)
	uids := []string{
		"3f2a7c1e-0b9d-4d5e-8f6a-000000000001", "3f2a7c1e-0b9d-4d5e-8f6a-000000000002", // UUIDs
		"3F2A7C1E-0B9D-4D5E-8F6A-000000000001",                                        // not as the API server writes them
		"3f2a7c1e00b9d-4d5e-8f6a-00000000001", "3f2a7c1e-0b9d-4d5e-8f6a-00000000000g", // nearly
		"a", "name/a", "0", "00000000-0000-0000-0000-000000000000", "{3f2a7c1e-0b9d-4d5e-8f6a-0000000000}",
	}
	seen := map[ID]string{}
	for _, uid := range uids {
		id := NewOwner("a", uid).ID
		g.Expect(seen).NotTo(HaveKey(id), uid)
		seen[id] = uid
		g.Expect(NewOwner("b", uid).ID).To(Equal(id), "the name does not matter where there is a UID")
	}
	g.Expect(NewOwner("a", "").ID).NotTo(Equal(NewOwner("b", "").ID))
	g.Expect(NewOwner("a", uids[0]).ID).To(Equal(ID{0x3f, 0x2a, 0x7c, 0x1e, 0x0b, 0x9d, 0x4d, 0x5e, 0x8f, 0x6a, 15: 1}))
}

// Every character at every place is read as the standard library reads it, and
// those that the API server does not write are not taken for others.
func TestUUIDsAreReadExactly(t *testing.T) {
	g := NewWithT(t)
	const form = "3f2a7c1e-0b9d-4d5e-8f6a-0123456789ab"
	for at := range form {
		for c := range 256 {
			text := []byte(form)
			text[at] = byte(c)
			var got ID
			ok := parse(&got, string(text))
			want, err := hex.DecodeString(strings.ReplaceAll(string(text), "-", ""))
			dashes := strings.Count(string(text), "-") == 4 && form[at] == '-' == (c == '-')
			g.Expect(ok).To(Equal(err == nil && dashes && (c < 'A' || c > 'F')), "%q at %d", c, at)
			if ok {
				g.Expect(got[:]).To(Equal(want))
			}
		}
	}
}

// TestTable compares the table with a Go map, with IDs that nobody made random.
func TestTable(t *testing.T) {
	for what, id := range map[string]func(n int) ID{
		"low bits":  func(n int) ID { return ID{0: byte(n), 1: byte(n >> 8)} },
		"high bits": func(n int) ID { return ID{14: byte(n >> 8), 15: byte(n)} },
		"both":      func(n int) ID { return ID{7: byte(n), 8: byte(n >> 8)} },
		"random":    func(n int) ID { return NewOwner(fmt.Sprint(n), "").ID },
	} {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(1, 2))
		var table table
		want := map[ID]*holding{}
		far := 0
		for range 20000 {
			o := Owner{ID: id(rnd.IntN(3000))}
			if h := want[o.ID]; h == nil {
				g.Expect(table.find(o.ID)).To(BeNil(), what)
				h = table.take(o)
				table.put(h)
				want[o.ID] = h
			} else {
				g.Expect(table.find(o.ID)).To(BeIdenticalTo(h), what)
				table.remove(h)
				delete(want, o.ID)
			}
			if table.count != len(want) {
				t.Fatalf("%s: %d owners, not %d", what, table.count, len(want))
			}
		}
		n := 0
		mask := uint32(len(table.slots) - 1)
		for i, s := range table.slots {
			if s.number != 0 {
				far = max(far, int((uint32(i)-s.hash)&mask))
			}
		}
		for h := range table.all() {
			g.Expect(want[h.owner.ID]).To(BeIdenticalTo(h), what)
			n++
		}
		g.Expect(n).To(Equal(len(want)))
		g.Expect(far).To(BeNumerically("<", 40), "%s: an owner is far from its place", what)
		g.Expect(table.made).To(BeNumerically("<=", 3000), "%s: holdings are used again", what)
	}
}
