// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// early runs f with an agent that has two leases of its last process, and whose loop
// waits for its first resync.
func early(t *testing.T, f func(g Gomega, a *agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, plain)
		a.add("c1")
		a.add("c2")
		a.open(plain)
		a.loop.manual = true
		a.ready = errors.New("the store does not answer")
		a.BeforeResync = func(f func() error) (bool, error) { return true, f() }
		f(a.g, a)
	})
}

// Every kind of release is done before the loop takes events, and leaves none behind. The
// address cools, as after any other release.
func TestReleasesBeforeTheFirstResync(t *testing.T) {
	for name, release := range map[string]func(a *agent) error{
		"DEL": func(a *agent) error { _, err := a.serve(request("DEL", "c1")); return err },
		"GC": func(a *agent) error {
			_, err := a.serve(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{{ContainerID: "c2", IfName: "eth0"}}})
			return err
		},
		"a DEL that waited": func(a *agent) error { a.leaves("c1"); return a.Recover(context.Background()) },
		"by hand":           func(a *agent) error { return a.Delete(context.Background(), a.leases.ByKey(key("c1"))[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			early(t, func(g Gomega, a *agent) {
				address := a.leases.ByKey(key("c1"))[0].Addr.String()
				g.Expect(release(a)).To(Succeed())
				g.Expect(a.held()).To(Equal([]string{"c2"}))
				g.Expect(a.cooling()).To(Equal([]string{address}))
				g.Expect(a.loop.waiting()).To(BeZero())
				_, found := a.NewestSandbox(pod("pod-c1"))
				g.Expect(found).To(BeFalse())
				a.del("c1") // again
			})
		})
	}
}

// cooling are the addresses that cool.
func (a *agent) cooling() (all []string) {
	for _, l := range a.leases.Leases() {
		if l.State == ledger.Cooling {
			all = append(all, l.Addr.String())
		}
	}
	return all
}

// The first resync does not begin while a lease is released. It reads either no lease, and
// the release is done, or a lease that the loop takes away from the southbound.
func TestTheFirstResyncWaitsForARelease(t *testing.T) {
	early(t, func(g Gomega, a *agent) {
		begun := false // set by the first resync, which BeforeResync excludes
		a.BeforeResync = func(f func() error) (bool, error) {
			if begun {
				return false, nil
			}
			defer func() { begun = true }()
			g.Expect(a.held()).To(Equal([]string{"c1", "c2"}))
			err := f()
			g.Expect(a.held()).To(Equal([]string{"c2"}))
			return true, err
		}
		a.del("c1")
		c := a.begin(request("DEL", "c2"))
		g.Expect(a.held()).To(Equal([]string{"c2"}))
		g.Expect(c.done).To(BeFalse(), "not before the loop has taken it")
		a.drain()
		g.Expect(c.done).To(BeTrue())
		g.Expect(c.err).NotTo(HaveOccurred())
	})
}

// A release that fails is reported, and can be tried again.
func TestAReleaseBeforeTheFirstResyncFails(t *testing.T) {
	early(t, func(g Gomega, a *agent) {
		a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
		_, err := a.serve(request("DEL", "c1"))
		g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
		g.Expect(a.held()).To(Equal([]string{"c1", "c2"}))
		a.del("c1")
		g.Expect(a.held()).To(Equal([]string{"c2"}))
	})
}

// An ADD waits for a while, and then says what the node waits for. An ADD whose
// attachment was deleted meanwhile leases nothing when the loop begins.
func TestAnADDBeforeTheFirstResync(t *testing.T) {
	early(t, func(g Gomega, a *agent) {
		began := time.Now()
		_, err := a.serve(request("ADD", "c3"))
		g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
		g.Expect(err).To(MatchError(HaveSuffix("the node is not ready: the store does not answer")))
		g.Expect(time.Since(began)).To(Equal(15*time.Second), "a quarter of a minute")
		time.Sleep(time.Second) // the first one has expired when the loop comes to it
		c := a.begin(request("ADD", "c4"))
		_, err = a.serve(request("DEL", "c4"))
		g.Expect(err).NotTo(HaveOccurred())
		a.BeforeResync = func(func() error) (bool, error) { return false, nil }
		a.drain()
		g.Expect(c.err).To(HaveOccurred())
		g.Expect(a.held()).To(Equal([]string{"c1", "c2"}))
	})
}
