// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
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

// accept runs cadastre accept, first without --yes, which shows and changes nothing.
func (n *node) accept(t *testing.T) (shown string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(n.awaitResync()).To(Succeed(), "before it the agent does not know its blocks")
	out, err := n.acceptance()
	var exit *exec.ExitError
	g.Expect(errors.As(err, &exit)).To(BeTrue(), out)
	g.Expect(exit.ExitCode()).To(Equal(1))
	g.Expect(out).To(And(ContainSubstring("nothing was changed"), ContainSubstring("--yes")))
	_, f, err := ask(n.socket(), Key{"net", "not-yet", "eth0"}.request(Add), leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f).To(Equal(Refused))
	yes, err := n.acceptance("--yes")
	g.Expect(err).NotTo(HaveOccurred(), yes)
	return out
}

// acceptance runs "cadastre accept" until all witnesses can be read: namespaces that other
// tests of this machine make and end may be hidden for a moment.
func (n *node) acceptance(args ...string) (out string, err error) {
	for limit := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		out, err = n.cli(append([]string{"accept"}, args...)...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 4 || time.Now().After(limit) {
			return out, err
		}
	}
}

// cli runs the command line against the agent.
func (n *node) cli(args ...string) (string, error) {
	cmd := exec.Command(program("cadastre"), append(args, "--socket", n.socket())...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestOlderStore puts an older copy of the database in the place of the newer
// one, within the same boot. The agent serves what the copy knows. It allocates
// nothing new, also after further restarts, until an operator accepts that.
func TestOlderStore(t *testing.T) {
	tried := attack.Begin(t, attack.Older)
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
		tried.Add(1)
		a = n.start(t)
		suspended, err := p.suspended(fmt.Sprint("new", i))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(suspended).To(BeTrue(), "start %d on the older database:\n%s", i+1, a.log())
		g.Expect(a.log()).To(ContainSubstring("cadastre accept"), "it says what to do")
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
	a = n.start(t)
	n.accept(t)
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
	tried := attack.Begin(t, attack.Older)
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	n.mustAdd(t, "first")
	a.kill()
	p := &past{node: n}
	for i := range 24 {
		tried.Add(1)
		before, err := os.ReadFile(n.db())
		g.Expect(err).NotTo(HaveOccurred())
		a := n.start(t)
		n.mustAdd(t, fmt.Sprint("later", i))
		a.kill()
		now, err := os.ReadFile(n.db())
		g.Expect(err).NotTo(HaveOccurred())
		notes := n.readNotes(g)

		if i%8 == 7 {
			g.Expect(os.Remove(n.db())).To(Succeed())
		} else {
			g.Expect(os.WriteFile(n.db(), before, 0o600)).To(Succeed())
		}
		a = n.launch(t)
		if a.awaitServing() == nil { // to refuse a file that is gone is as good
			suspended, err := p.suspended("new")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(suspended).To(BeTrue(), "%q was noted:\n%s", notes, a.log())
		}
		a.kill()
		g.Expect(os.WriteFile(n.db(), now, 0o600)).To(Succeed())
		n.writeNotes(g, notes)
	}
}
