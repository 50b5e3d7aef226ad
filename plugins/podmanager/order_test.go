// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// connection is one that the agent has accepted, and whose request has not come yet.
type connection struct {
	a    *agent
	ctx  context.Context
	gone bool // the caller has hung up
	left func()
}

func (a *agent) accept() *connection {
	c := &connection{a: a}
	c.ctx, c.left = a.Accept(context.Background(), func() bool { return c.gone })
	return c
}

// send sends a request, whose answer is delivered.
func (c *connection) send(r cni.Request) (cni.Reply, error) {
	reply, err := c.a.Serve(c.ctx, r)
	c.a.Delivered(r, reply, nil)
	return reply, err
}

// A DEL was accepted before an ADD, and its request is read after the ADD is answered: the
// caller of the ADD uses the address.
func TestADelThatIsReadAfterALaterADD(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	del, add := a.accept(), a.accept()
	_, err := add.send(request("ADD", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = del.send(request("DEL", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.held()).To(Equal([]string{"c1"}))
	a.del("c1")
	g.Expect(a.held()).To(BeEmpty(), "a later DEL frees it")
}

// The same with an ADD that repeats an earlier one: its caller uses the address, too.
func TestADelThatIsReadAfterARepeatedADD(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	del, add := a.accept(), a.accept()
	_, err := add.send(request("ADD", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = del.send(request("DEL", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.held()).To(Equal([]string{"c1"}))
}

// An ADD was accepted before a DEL, and its request is read when the DEL is done: no DEL
// would come for its lease.
func TestAnADDThatIsReadAfterALaterDEL(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	add := a.accept()
	a.del("c1")
	_, err := add.send(request("ADD", "c1"))
	g.Expect(err).To(MatchError(ContainSubstring("cancelled by a DEL")))
	g.Expect(a.held()).To(BeEmpty())
	a.add("c1")
	g.Expect(a.held()).To(Equal([]string{"c1"}), "a new attachment of the same container")
}

// A DEL that found no agent waits in a file. It began before an ADD that a restarted agent
// has answered, and it is found after that: it frees nothing. One that began later does.
func TestADELThatWaitedAndBeganBeforeTheADD(t *testing.T) {
	for name, c := range map[string]struct {
		began func(before, after time.Duration) cni.Began
		held  []string
	}{
		"before the ADD":        {func(before, _ time.Duration) cni.Began { return cni.Began{BootID: bootID, Uptime: before} }, []string{"c1"}},
		"in an earlier boot":    {func(_, after time.Duration) cni.Began { return cni.Began{BootID: "boot-0", Uptime: after} }, []string{"c1"}},
		"after the ADD":         {func(_, after time.Duration) cni.Began { return cni.Began{BootID: bootID, Uptime: after} }, []string{}},
		"in the future":         {func(_, after time.Duration) cni.Began { return cni.Began{BootID: bootID, Uptime: after + time.Hour} }, []string{}},
		"the time is not known": {func(_, _ time.Duration) cni.Began { return cni.Began{} }, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, plain)
			before := a.uptime()
			a.add("c1")
			after := a.uptime()
			in := cni.Intent{Network: "pods", ContainerID: "c1", IfName: "eth0", Began: c.began(before, after)}
			a.start(plain)
			g.Expect(in.Write(a.dir)).To(Succeed())
			g.Expect(a.Recover(context.Background())).To(Succeed())
			g.Expect(a.held()).To(Equal(c.held))
			g.Expect(in.Waiting(a.dir)).To(BeFalse())
		})
	}
}

func TestARequestDoesNothingIfItsCallerHasHungUp(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	add := a.accept()
	add.gone = true
	commits := a.journal.Commits()
	_, err := add.send(request("ADD", "c1"))
	g.Expect(err).To(MatchError(ContainSubstring("hung up")))
	g.Expect(a.held()).To(BeEmpty())
	g.Expect(a.journal.Commits()).To(Equal(commits))

	a.add("c1")
	del := a.accept()
	del.gone = true
	_, err = del.send(request("DEL", "c1"))
	g.Expect(err).To(MatchError(ContainSubstring("hung up")))
	g.Expect(a.held()).To(Equal([]string{"c1"}), "a runtime repeats a DEL that is not answered")
}

// A further request of a connection was not sent when the connection was accepted.
func TestAFurtherRequestOfAConnection(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	c := a.accept()
	_, err := c.send(request("ADD", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	a.del("c1")
	a.add("c1")
	_, err = c.send(request("DEL", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.held()).To(BeEmpty())
}
