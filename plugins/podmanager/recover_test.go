// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// leaves is a DEL that found no agent.
func (a *agent) leaves(container string) cni.Intent {
	in := cni.Intent{Network: "pods", ContainerID: container, IfName: "eth0"}
	a.g.Expect(in.Write(a.dir)).To(Succeed())
	return in
}

// waiting are the containers whose DELs wait.
func (a *agent) waiting() []string {
	intents, _, err := cni.ReadIntents(a.dir, os.Geteuid())
	a.g.Expect(err).NotTo(HaveOccurred())
	all := []string{}
	for _, in := range intents {
		all = append(all, in.ContainerID)
	}
	return all
}

func TestDelsThatWaitAreApplied(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	for _, c := range []string{"c1", "c2", "c3"} {
		a.add(c)
	}
	a.leaves("c1")
	a.leaves("c3")
	a.leaves("unknown")
	a.start(plain)
	g.Expect(a.Recover(context.Background())).To(Succeed())
	g.Expect(a.held()).To(Equal([]string{"c2"}))
	g.Expect(a.waiting()).To(BeEmpty())
	commits := a.memory.Commits()
	g.Expect(a.Recover(context.Background())).To(Succeed())
	g.Expect(a.memory.Commits()).To(Equal(commits), "once is enough")
}

func TestNoDelsWait(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.dir = filepath.Join(a.dir, "was never made")
	a.start(plain)
	g.Expect(a.Recover(context.Background())).To(Succeed())
}

// A file that is not a DEL does not stop the remaining ones, frees nothing, and is set
// aside for people to look at.
func TestFilesThatAreNotDels(t *testing.T) {
	for name, plant := range map[string]func(g Gomega, path string){
		"garbage": func(g Gomega, path string) { g.Expect(os.WriteFile(path, []byte("{"), 0o600)).To(Succeed()) },
		"a pipe":  func(g Gomega, path string) { g.Expect(syscall.Mkfifo(path, 0o666)).To(Succeed()) },
		"another user's": func(g Gomega, path string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			g.Expect(os.Chown(path, 65534, 65534)).To(Succeed())
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, plain)
			a.add("c1")
			a.add("victim")
			a.leaves("c1")
			path := filepath.Join(a.dir, a.leaves("victim").Name())
			if name != "another user's" {
				g.Expect(os.Remove(path)).To(Succeed())
			}
			plant(g, path)
			g.Expect(a.Recover(context.Background())).To(Succeed())
			g.Expect(a.held()).To(Equal([]string{"victim"}))
			entries, err := os.ReadDir(a.dir)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(entries).To(HaveLen(1))
			g.Expect(entries[0].Name()).To(HavePrefix("refused-"))
		})
	}
}

// A DEL that cannot be applied is not forgotten.
func TestADelThatCannotBeAppliedYet(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	a.leaves("c1")
	a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
	g.Expect(a.Recover(context.Background())).To(MatchError(ContainSubstring("injected")))
	g.Expect(a.waiting()).To(Equal([]string{"c1"}))
	g.Expect(a.held()).To(Equal([]string{"c1"}))
	a.loop.closed = controller.ErrClosedController
	g.Expect(a.Recover(context.Background())).To(MatchError(controller.ErrClosedController))
	g.Expect(a.waiting()).To(Equal([]string{"c1"}))
	a.loop.closed = nil
	g.Expect(a.Recover(context.Background())).To(Succeed())
	g.Expect(a.waiting()).To(BeEmpty())
	g.Expect(a.held()).To(BeEmpty())
}

// An ADD comes after the DELs of its attachment that wait, and only those.
func TestAnAddAppliesTheDelThatWaitsForIt(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	old := a.add("c1")
	a.add("c2")
	a.leaves("c1")
	a.leaves("c2")
	g.Expect(a.add("c1")).NotTo(Equal(old), "a new attachment")
	g.Expect(a.waiting()).To(Equal([]string{"c2"}))
	g.Expect(a.add("c1")).To(Equal("10.1.5.4/24"), "and now it is that one")
	a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
	_, err := a.serve(request("ADD", "c2"))
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain), "not before its DEL is applied")
	g.Expect(a.waiting()).To(Equal([]string{"c2"}))
}

// A DEL that is served makes the one that waits pointless.
func TestADelForgetsTheOneThatWaits(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	a.leaves("c1")
	a.leaves("c2")
	a.del("c1")
	g.Expect(a.held()).To(BeEmpty())
	g.Expect(a.waiting()).To(Equal([]string{"c2"}))
}

// A DEL that comes to wait while the agent runs is applied soon.
func TestADelThatComesToWaitMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, plain)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		a.add("c1")
		a.leaves("c1")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.g.Expect(a.waiting()).To(BeEmpty())
		a.g.Expect(a.held()).To(BeEmpty())
	})
}

// Many ADDs and the sweep at once: each DEL that waits is applied before the
// ADD of its attachment, and never after it.
func TestDelsThatWaitAndAddsAtTheSameTime(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		for i := range 4 {
			a.begin(request("ADD", fmt.Sprint("c", i)))
			a.leaves(fmt.Sprint("c", i))
		}
		a.drain()
		recovered := make(chan error, 1)
		go func() { recovered <- a.Recover(context.Background()) }()
		synctest.Wait()
		var calls []*call
		for i := range 4 {
			calls = append(calls, a.begin(request("ADD", fmt.Sprint("c", i))))
		}
		a.drain()
		g.Expect(<-recovered).To(Succeed())
		g.Expect(a.waiting()).To(BeEmpty())
		for i, c := range calls {
			g.Expect(c.err).NotTo(HaveOccurred())
			g.Expect(a.leases.ByKey(key(fmt.Sprint("c", i)))[0].Prefix().String()).To(Equal(c.reply.IPs[0].Address))
		}
		g.Expect(a.held()).To(HaveLen(4))
	})
}
