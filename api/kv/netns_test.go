// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
)

func TestNetNSIDIs(t *testing.T) {
	one := kv.NetNSID{Boot: "a", Dev: 4, Inode: 100, Cookie: 7}
	with := func(change func(*kv.NetNSID)) kv.NetNSID { x := one; change(&x); return x }
	noCookie := with(func(x *kv.NetNSID) { x.Cookie = 0 })
	for name, c := range map[string]struct {
		x, y          kv.NetNSID
		same, certain bool
	}{
		"the same":                          {one, one, true, true},
		"a later one with the same inode":   {one, with(func(x *kv.NetNSID) { x.Cookie = 8 }), false, true},
		"the same cookie, of another boot":  {one, with(func(x *kv.NetNSID) { x.Boot = "b" }), false, true},
		"another inode":                     {one, with(func(x *kv.NetNSID) { x.Inode++ }), false, true},
		"another inode, without cookies":    {noCookie, with(func(x *kv.NetNSID) { x.Inode, x.Cookie = 101, 0 }), false, true},
		"the same inode, without cookies":   {noCookie, noCookie, false, false},
		"the same inode, one has no cookie": {one, noCookie, false, false},
		"one is not known":                  {one, kv.NetNSID{}, false, false},
		"a boot that is not known":          {one, with(func(x *kv.NetNSID) { x.Boot = "" }), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			same, certain := c.x.Is(c.y)
			g.Expect([]bool{same, certain}).To(Equal([]bool{c.same, c.certain}))
			same, certain = c.y.Is(c.x)
			g.Expect([]bool{same, certain}).To(Equal([]bool{c.same, c.certain}))
			if c.x.Known() {
				g.Expect(c.x.Message().ID()).To(Equal(c.x))
			}
		})
	}
	g := NewWithT(t)
	g.Expect(kv.NetNSID{}.Message()).To(BeNil())
	g.Expect((*kv.NetworkNamespace)(nil).ID()).To(Equal(kv.NetNSID{}))
}
