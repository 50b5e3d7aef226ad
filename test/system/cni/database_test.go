// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// lose kills the agent and removes its database.
func (l *lab) lose() {
	l.t.Helper()
	l.Expect(l.process.Kill()).To(Succeed())
	l.Expect(os.Remove(filepath.Join(l.dir, "state", "cadastre.db"))).To(Succeed())
}

// compared waits until the agent has compared the network with the kernel.
func (l *lab) compared() {
	l.t.Helper()
	l.await(func() error {
		s := l.status()
		if s.err == nil && (s.Southbound == nil || s.Southbound.Made == 0) {
			return errors.New("no value is made")
		}
		return s.err
	})
}

// resync lets the agent compare all wires with the kernel.
func (l *lab) resync() {
	l.t.Helper()
	out, err := l.cadastre("resync")
	l.Expect(err).NotTo(HaveOccurred(), out)
}

// The wires of running pods stay while the database, which does not know them, is in doubt. A
// person can accept it by force only, and then each wire stays until the DEL of its pod.
func TestWiresStayWhileTheDatabaseIsInDoubt(t *testing.T) {
	l := newLab(t, "")
	r := l.runtime()
	a, b := r.add("web"), r.add("db")
	l.lose()
	l.launch()
	l.compared()
	l.Expect(l.status().Suspended).NotTo(BeEmpty())
	l.resync()
	l.Expect(l.links()).To(HaveLen(2))
	for _, is4 := range []bool{true, false} {
		l.Expect(l.exchange(end("web", a.Namespace, a.addr(is4)), end("db", b.Namespace, b.addr(is4)))).To(Succeed())
	}
	out, err := l.cadastre("accept", "--yes")
	l.Expect(err).To(HaveOccurred())
	for _, s := range []*sandbox{a, b} {
		l.Expect(out).To(And(ContainSubstring(s.addr(true).String()+" is on eth0 of "), ContainSubstring(s.addr(false).String()+" is on eth0 of ")))
	}
	out, err = l.cadastre("accept", "--yes", "--force")
	l.Expect(err).NotTo(HaveOccurred(), out)
	for range 2 {
		l.resync()
		l.Expect(l.links()).To(HaveLen(2))
		for _, is4 := range []bool{true, false} {
			l.Expect(l.exchange(end("web", a.Namespace, a.addr(is4)), end("db", b.Namespace, b.addr(is4)))).To(Succeed())
		}
	}
	l.Expect(r.del(a)).To(Succeed())
	l.Eventually(l.links, patience, pace).Should(HaveLen(1))
	l.resync()
	l.Expect(l.links()).To(HaveLen(1))
}

// A database that is made again from the world has the wires of the pods.
func TestWiresOutliveARebuiltDatabase(t *testing.T) {
	l := newLab(t, "")
	l.Expect(l.process.Kill()).To(Succeed())
	l.Expect(os.RemoveAll(filepath.Join(l.dir, "state"))).To(Succeed())
	l.Expect(os.RemoveAll(filepath.Join(l.dir, "run"))).To(Succeed())
	// rebuild sees other pods of this machine: no other test has these addresses
	l.conf = strings.NewReplacer("10.1.0.0/16", "10.177.0.0/16", "fd00:1::/48", "fd00:177::/48").Replace(l.conf)
	l.start()
	r := l.runtime()
	a, b := r.add("web"), r.sandbox("db", map[string]any{"mac": "02:aa:00:00:00:07"})
	l.Expect(r.tryAdd(b)).To(Succeed())
	l.lose()
	cmd := exec.Command(filepath.Join(l.bin, "cadastre"), "rebuild", "--write", "--node-id", "1", "--config", filepath.Join(l.dir, "contiv.conf"),
		"--state-dir", filepath.Join(l.dir, "state"), "--run-dir", filepath.Join(l.dir, "run"), "--cni-results", filepath.Join(l.dir, "cache", "results"),
		"--runtime", "none", "--engine", "none", "--processes=false", "--netns", filepath.Join(l.dir, "no-netns"))
	var out []byte
	l.Expect(l.host.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})).To(Succeed(), "%s", out)
	l.launch()
	l.compared()
	if l.status().Suspended != "" { // this machine has other namespaces that cannot be read
		text, err := l.cadastre("accept", "--yes", "--force")
		l.Expect(err).NotTo(HaveOccurred(), text)
	}
	l.await(func() error { return l.status().ready() })
	l.resync()
	for _, s := range []*sandbox{a, b} {
		l.Expect(r.check(s)).To(Succeed(), "%s", out)
	}
	l.Expect(l.links()).To(HaveLen(2))
	l.Expect(l.exchange(end("web", a.Namespace, a.addr(true)), end("db", b.Namespace, b.addr(true)))).To(Succeed())
}
