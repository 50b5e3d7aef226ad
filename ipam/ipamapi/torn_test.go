// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"net"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// faultyWorld returns a driver on a ledger whose next commits meet *fault.
func faultyWorld(g Gomega, fault *journal.Fault) *world {
	j := &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return *fault }}
	return newWorld(g, j, ipamapi.Config{})
}

func TestRepeatedRequestAfterATornReleaseIsDurable(t *testing.T) {
	g := NewWithT(t)
	var fault journal.Fault
	w := faultyWorld(g, &fault)
	id := w.pool("10.1.0.0/24", "")
	g.Expect(w.get(id, "10.1.0.7", ipamapi.EndpointName, "web")).To(Equal("10.1.0.7/24"))
	leases := w.leases()
	fault = journal.Tear
	g.Expect(w.ReleaseAddress(id, net.ParseIP("10.1.0.7"))).To(MatchError(journal.ErrInjected))
	_, err := w.ask(id, "10.1.0.7", ipamapi.EndpointName, "web")
	g.Expect(err).To(MatchError(journal.ErrInjected), "the journal does not have the lease")
	fault = journal.None
	g.Expect(w.get(id, "10.1.0.7", ipamapi.EndpointName, "web")).To(Equal("10.1.0.7/24"))
	w.restart()
	g.Expect(w.leases()).To(Equal(leases))
}

func TestReleaseAfterATornRequestIsDurable(t *testing.T) {
	for name, group := range map[string][]string{"pool": nil, "group": {ipamapi.GroupOption, "blue"}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var fault journal.Fault
			w := faultyWorld(g, &fault)
			id := w.pool("10.1.0.0/24", "", group...)
			fault = journal.Tear
			_, err := w.ask(id, "10.1.0.7", ipamapi.EndpointName, "web")
			g.Expect(err).To(MatchError(journal.ErrInjected))
			g.Expect(w.ReleaseAddress(id, net.ParseIP("10.1.0.7"))).To(MatchError(journal.ErrInjected))
			fault = journal.None
			w.free(id, "10.1.0.7")
			w.restart()
			g.Expect(w.leases()).To(BeEmpty())
		})
	}
}

// TestCrashWhileAPoolOfAGroupEnds crashes after the record says that the pool ends.
func TestCrashWhileAPoolOfAGroupEnds(t *testing.T) {
	g := NewWithT(t)
	var fault journal.Fault
	w := faultyWorld(g, &fault)
	a := w.pool("10.1.0.0/30", "", ipamapi.GroupOption, "blue")
	b := w.pool("10.2.0.0/24", "", ipamapi.GroupOption, "blue")
	w.get(a, "", ipamapi.EndpointName, "first")
	w.get(a, "", ipamapi.EndpointName, "second")
	g.Expect(w.get(a, "", ipamapi.EndpointName, "third")).To(Equal("10.2.0.1/24"))
	w.get(b, "", ipamapi.EndpointName, "fourth")
	w.records.next = []journal.Fault{journal.None, journal.Fail}
	fault = journal.Fail
	g.Expect(w.ReleasePool(b)).To(MatchError(journal.ErrInjected))
	fault = journal.None
	w.restart()
	g.Expect(w.pools()).To(Equal(a + "*1"))
	g.Expect(w.leases()).NotTo(ContainSubstring("10.2.0."), "the addresses of the prefix end with it")
	for _, s := range w.ledger.Stats() {
		g.Expect(s.Block).To(Equal(pfx("10.1.0.0/30")))
	}
}
