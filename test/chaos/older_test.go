// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// mustAdd leases an address for the attachment "net/<id>/eth0".
func (n *node) mustAdd(t *testing.T, id string) (k Key, addr string) {
	t.Helper()
	g := NewWithT(t)
	k = Key{"net", id, "eth0"}
	r, f, err := ask(n.socket(), k.request(Add), leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f).To(Equal(Answered), "%s: %v", k, r.Error)
	return k, r.IPs[0].Address
}

// TestOlderStore puts an older copy of the database in the place of the newer
// one, within the same boot: what it knows is served, nothing new is lent, also
// after further restarts, until somebody accepts that.
func TestOlderStore(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	first, was := n.mustAdd(t, "first")
	n.mustAdd(t, "second")
	a.kill()
	old, err := os.ReadFile(n.db())
	g.Expect(err).NotTo(HaveOccurred())
	a = n.start(t)
	later, _ := n.mustAdd(t, "later")
	a.kill()
	g.Expect(os.WriteFile(n.db(), old, 0o600)).To(Succeed())

	p := &past{node: n}
	for i := range 3 {
		a = n.start(t)
		suspended, err := p.suspended(fmt.Sprint("new", i))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(suspended).To(BeTrue(), "start %d on the older database:\n%s", i+1, a.log())
		g.Expect(a.log()).To(ContainSubstring("--accept-older-store"), "it says what to do")
		_, still := n.mustAdd(t, "first")
		g.Expect(still).To(Equal(was), "what the older database knows is served")
		r, f, err := ask(n.socket(), later.request(Add), leaving{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f).To(Equal(Refused))
		g.Expect(r.Error.Code).To(BeEquivalentTo(cni.CodeTryAgain))
		for _, id := range []string{"second", "later"} { // writes, or not
			_, f, err = ask(n.socket(), Key{"net", id, "eth0"}.request(Del), leaving{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(f).To(Equal(Answered))
		}
		if i == 1 {
			g.Expect(a.stop()).To(Succeed())
		} else {
			a.kill()
		}
	}
	a = n.start(t, "--accept-older-store")
	n.mustAdd(t, "accepted")
	a.kill()
	a = n.start(t)
	n.mustAdd(t, "and-later")
	_, f, err := ask(n.socket(), first.request(Check), leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f).To(Equal(Answered))
	g.Expect(a.stop()).To(Succeed())
}

// TestOlderByAnyNumber does so for many revisions, and for a file that is gone.
func TestOlderByAnyNumber(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	n.mustAdd(t, "first")
	a.kill()
	p := &past{node: n}
	for i := range 24 {
		before, err := os.ReadFile(n.db())
		g.Expect(err).NotTo(HaveOccurred())
		a := n.start(t)
		n.mustAdd(t, fmt.Sprint("later", i))
		a.kill()
		now, err := os.ReadFile(n.db())
		g.Expect(err).NotTo(HaveOccurred())
		level, err := os.ReadFile(n.levelPath())
		g.Expect(err).NotTo(HaveOccurred())

		if i%8 == 7 {
			g.Expect(os.Remove(n.db())).To(Succeed())
		} else {
			g.Expect(os.WriteFile(n.db(), before, 0o600)).To(Succeed())
		}
		a = n.launch(t)
		if a.awaitServing() == nil { // to refuse a file that is gone is as good
			suspended, err := p.suspended("new")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(suspended).To(BeTrue(), "%q was noted:\n%s", level, a.log())
		}
		a.kill()
		g.Expect(os.WriteFile(n.db(), now, 0o600)).To(Succeed())
		g.Expect(os.WriteFile(n.levelPath(), level, 0o600)).To(Succeed())
	}
}
