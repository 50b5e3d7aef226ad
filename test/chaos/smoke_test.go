// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"

	. "github.com/onsi/gomega"
)

// TestSmoke has the first promise in a few seconds, for make test: an address that was
// answered is still there after a kill, and is free after the DEL. All else is in make ci SUITE=system.
func TestSmoke(t *testing.T) {
	g, n := NewWithT(t), newNode(t, tightConf)
	k, other := Key{"net", "smoke", "eth0"}, Key{"net", "other", "eth0"}
	address := func(k Key) string {
		r, f, err := run(n.socket(), k, Add, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f).To(Equal(Answered), "%v", r.Error)
		return r.IPs[0].Address
	}
	a := n.start(t)
	first := address(k)
	a.kill()
	a = n.start(t)
	g.Expect(address(k)).To(Equal(first), "a repeated ADD")
	g.Expect(address(other)).NotTo(Equal(first))
	for _, k := range []Key{k, other} {
		r, f, err := run(n.socket(), k, Del, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f).To(Equal(Answered), "%v", r.Error)
	}
	a.kill()
	n.start(t)
	book, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(BeEmpty())
}
