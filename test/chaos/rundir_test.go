// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// delWith runs cadastre-cni DEL with a socket.
func delWith(g Gomega, socket string, k Key) (said string, ok bool) {
	out, ok, err := plugin(socket, k, Del, nil)
	g.Expect(err).NotTo(HaveOccurred())
	return string(out), ok
}

// A DEL succeeds only if an agent will learn of it. It succeeds in the directory
// where one has been, not in another one, and not after a reboot before an agent
// has started.
func TestADELIsKeptWhereAnAgentReadsIt(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNode(t, smallConf)
	a := n.start(t)
	one, _ := n.mustAdd(t, "one")
	two, _ := n.mustAdd(t, "two")
	a.kill()

	elsewhere := n.sibling("elsewhere")
	g.Expect(os.MkdirAll(elsewhere.intentDir(), 0o700)).To(Succeed())
	said, ok := delWith(g, elsewhere.socket(), one)
	g.Expect(ok).To(BeFalse(), "no agent reads that directory")
	g.Expect(said).To(And(ContainSubstring(elsewhere.intentDir()), ContainSubstring(`"code": 11`)))

	said, ok = delWith(g, n.socket(), one)
	g.Expect(ok).To(BeTrue(), said)
	a = n.start(t)
	book, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(HaveLen(1))

	a.kill()
	g.Expect(os.RemoveAll(n.runDir)).To(Succeed()) // as a reboot does
	said, ok = delWith(g, n.socket(), two)
	g.Expect(ok).To(BeFalse(), "the runtime has to repeat it")
	g.Expect(said).To(ContainSubstring(n.intentDir()))
	n.start(t)
	said, ok = delWith(g, n.socket(), two)
	g.Expect(ok).To(BeTrue(), said)
	book, _, err = readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(BeEmpty())
}

// An agent gets another run directory: the DELs that wait in the old one are applied,
// and later ones with the old path fail.
func TestARunDirectoryIsMoved(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNode(t, smallConf)
	a := n.start(t)
	one, _ := n.mustAdd(t, "one")
	two, _ := n.mustAdd(t, "two")
	a.kill()
	old := *n
	said, ok := delWith(g, old.socket(), one)
	g.Expect(ok).To(BeTrue(), said)
	n.runDir = filepath.Join(n.dir, "moved")
	a = n.start(t)
	book, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(HaveLen(1))
	g.Expect(book[0].Key).To(Equal(two))
	for range 2 {
		said, ok = delWith(g, old.socket(), two)
		g.Expect(ok).To(BeFalse(), "no agent reads it there")
		g.Expect(said).To(ContainSubstring(old.intentDir()))
		a.kill()
	}
	said, ok = delWith(g, n.socket(), two)
	g.Expect(ok).To(BeTrue(), said)

	other := n.sibling("other") // an agent of its own in the directory that was left
	g.Expect(os.Mkdir(other.dir, 0o700)).To(Succeed())
	other.runDir = old.runDir
	other.start(t)
	n.start(t)
	book, _, err = readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(BeEmpty())
}

// Another user has put files among the DELs that wait while the run directory was
// open to all users. The agent is not started there; nor do the files free a lease,
// stop the agent or fill its memory once the directory is closed.
func TestPlantedDELs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	g := NewWithT(t)
	n := newNode(t, smallConf)
	a := n.start(t)
	victim, _ := n.mustAdd(t, "victim")
	gone, _ := n.mustAdd(t, "gone")
	a.kill()
	said, ok := delWith(g, n.socket(), gone)
	g.Expect(ok).To(BeTrue(), said)

	in := cni.Intent{Network: victim.Network, ContainerID: victim.ContainerID, IfName: victim.IfName}
	text, err := json.Marshal(in)
	g.Expect(err).NotTo(HaveOccurred())
	planted := filepath.Join(n.intentDir(), in.Name())
	g.Expect(os.WriteFile(planted, text, 0o666)).To(Succeed())
	g.Expect(os.Chown(planted, 65534, 65534)).To(Succeed())
	g.Expect(syscall.Mkfifo(filepath.Join(n.intentDir(), "pipe.json"), 0o666)).To(Succeed())
	huge := filepath.Join(n.intentDir(), "huge.json")
	g.Expect(os.WriteFile(huge, text, 0o600)).To(Succeed())
	g.Expect(os.Truncate(huge, 3<<30)).To(Succeed())

	for _, dir := range []string{n.runDir, n.intentDir()} {
		g.Expect(os.Chmod(dir, 0o777)).To(Succeed())
		g.Expect(n.launch(t).mustEnd(t)).To(And(ContainSubstring(dir+" is owned by user 0"), ContainSubstring("0777"), ContainSubstring("0700")))
		g.Expect(os.Chmod(dir, 0o700)).To(Succeed())
	}

	a = n.start(t)
	g.Expect(n.awaitDELs()).To(Succeed())
	book, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(HaveLen(1), "the victim keeps its address, and the DEL of the other one was applied")
	g.Expect(book[0].Key).To(Equal(victim))
	entries, err := os.ReadDir(n.intentDir())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(HaveLen(3))
	for _, e := range entries {
		g.Expect(e.Name()).To(HavePrefix("refused-"))
		g.Expect(a.log()).To(ContainSubstring(e.Name()))
	}
	g.Expect(a.stop()).To(Succeed())
}
