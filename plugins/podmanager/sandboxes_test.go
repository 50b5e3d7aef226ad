// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// sandbox is a container of the pod "web".
func (a *agent) sandbox(container string) {
	r := request("ADD", container)
	r.Pod.Name = "web"
	_, err := a.serve(r)
	a.g.Expect(err).NotTo(HaveOccurred())
}

// newest is the container of the newest sandbox of the pod "web", "" if there is none.
func (a *agent) newest() string {
	k, found := a.NewestSandbox(pod("web"))
	a.g.Expect(found).To(Equal(k.ContainerID != ""))
	return k.ContainerID
}

func TestTheNewestSandbox(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, dual)
	g.Expect(a.newest()).To(BeEmpty())
	for _, c := range []string{"old", "middle", "new"} {
		a.sandbox(c)
		g.Expect(a.newest()).To(Equal(c))
	}
	a.sandbox("old")
	g.Expect(a.newest()).To(Equal("new"), "a repeated ADD makes no sandbox newer")
	a.del("new")
	g.Expect(a.newest()).To(Equal("middle"))
	a.del("old")
	a.del("unknown")
	g.Expect(a.newest()).To(Equal("middle"))
	a.del("middle")
	g.Expect(a.newest()).To(BeEmpty())
}

func TestASandboxWithoutAPod(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	r := request("ADD", "c1")
	r.Pod.Name, r.Pod.Namespace = "", ""
	_, err := a.serve(r)
	g.Expect(err).NotTo(HaveOccurred())
	_, found := a.NewestSandbox(pod(""))
	g.Expect(found).To(BeFalse())
}

// A restart finds the sandboxes that have leases.
func TestSandboxesAfterARestart(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, dual)
	now := time.Now()
	a.now = func() time.Time { now = now.Add(time.Second); return now }
	for _, c := range []string{"z-old", "m-middle", "a-new"} {
		a.sandbox(c)
	}
	a.del("a-new")
	a.add("of-another-pod")
	a.start(dual)
	g.Expect(a.newest()).To(Equal("m-middle"))
	a.resync()
	g.Expect(a.newest()).To(Equal("m-middle"), "a second resync changes nothing")
	a.del("m-middle")
	g.Expect(a.newest()).To(Equal("z-old"))
}

// A resync removes the sandboxes without a lease.
func TestSandboxesWithoutLeases(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.sandbox("old")
	a.sandbox("new")
	_, err := a.leases.Release(t.Context(), ledger.Selector{Key: key("new")})
	g.Expect(err).NotTo(HaveOccurred())
	a.resync()
	g.Expect(a.newest()).To(Equal("old"))
}

// claim claims a lease of a container of the pod "web" behind the plugin's back.
func (a *agent) claim(container string) {
	lease := ledger.Request{Pool: "default", Key: key(container), Pod: ledger.Pod{Namespace: "ns", Name: "web"}}
	_, _, err := a.leases.Claim(context.Background(), lease)
	a.g.Expect(err).NotTo(HaveOccurred())
}

func (a *agent) release(container string) {
	_, err := a.leases.Release(context.Background(), ledger.Selector{Key: key(container)})
	a.g.Expect(err).NotTo(HaveOccurred())
}

// A resync follows leases that changed without an event.
func TestResyncFollowsLeases(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, dual)
	a.sandbox("old")
	a.sandbox("new")
	for range 2 {
		a.resync()
		g.Expect(a.newest()).To(Equal("new"))
	}
	a.release("old")
	a.claim("old")
	a.resync()
	g.Expect(a.newest()).To(Equal("old"), "its claim is newer")
	a.claim("other")
	a.resync()
	g.Expect(a.newest()).To(Equal("other"))
	a.release("other")
	a.resync()
	g.Expect(a.newest()).To(Equal("old"))
	a.del("new")
	a.sandbox("new")
	a.resync()
	g.Expect(a.newest()).To(Equal("new"))

	a.release("old")
	a.claim("old")
	a.sandbox("old") // a repeated ADD finds another lease
	a.resync()
	g.Expect(a.newest()).To(Equal("old"))
	a.claim("early")
	a.sandbox("late")
	a.sandbox("early") // a repeated ADD of an older lease without a sandbox
	g.Expect(a.newest()).To(Equal("early"))
	a.resync()
	g.Expect(a.newest()).To(Equal("late"))
}

// An ADD that fails makes no sandbox, and ends none.
func TestSandboxesOfAddsThatFail(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.sandbox("c1")
	for _, container := range []string{"c2", "c1"} {
		r := request("ADD", container)
		r.Pod.Name, r.Wanted = "web", []string{"192.0.2.1"}
		_, err := a.serve(r)
		g.Expect(err).To(HaveOccurred())
		g.Expect(a.newest()).To(Equal("c1"))
	}
	a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
	r := request("ADD", "c3")
	r.Pod.Name = "web"
	_, err := a.serve(r)
	g.Expect(err).To(HaveOccurred())
	g.Expect(a.newest()).To(Equal("c1"))
}

// A DEL of one claim leaves the sandbox of another alone.
func TestADelOfAnotherClaim(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.sandbox("c1")
	old := a.leases.ByKey(key("c1"))[0]
	a.del("c1")
	a.sandbox("c1")
	g.Expect(a.Delete(t.Context(), old)).To(Succeed())
	g.Expect(a.newest()).To(Equal("c1"))
}

func TestEventsThatAreHandled(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	for event, want := range map[controller.Event]bool{
		&controller.DBResync{}: true, &controller.HealingResync{Type: controller.AfterError}: true, &controller.Shutdown{}: false,
		&controller.KubeStateChange{Resource: kubestate.Pods}: false,
	} {
		g.Expect(a.HandlesEvent(event)).To(Equal(want), event.String())
	}
	g.Expect(a.String()).To(Equal("podmanager"))
	g.Expect(a.Init()).To(Succeed())
	g.Expect(a.AfterInit()).To(Succeed())
	g.Expect(a.Close()).To(Succeed())
}
