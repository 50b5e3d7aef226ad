// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// EndPool ends a pool whatever number of requests it has, with leases only if it
// is forced to, and the pool stays ended after a restart.
func TestEndPool(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
	id := w.pool("10.1.0.0/24", "")
	g.Expect(w.pool("10.1.0.0/24", "")).To(Equal(id))
	w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(id, "", ipamapi.EndpointName, "web", ipamapi.EndpointMAC, "02:42:0A:01:00:02")
	for range 4 {
		w.get(id, "")
	}
	before := w.leases()
	_, err := w.EndPool(t.Context(), id, false)
	g.Expect(err).To(MatchError(ipamapi.ErrPoolInUse))
	g.Expect(err).To(MatchError(`end pool "` + id + `": addresses of the pool are in use: 10.1.0.1 is held by the gateway, ` +
		`10.1.0.2 is held by endpoint "web" with MAC 02:42:0a:01:00:02, 10.1.0.3 is held by an endpoint that the engine has not named, ` +
		`10.1.0.4 is held by an endpoint that the engine has not named and 2 more addresses are held`))
	g.Expect(w.leases()).To(Equal(before))
	ended, err := w.EndPool(t.Context(), id, true)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ended).To(HaveLen(6))
	for _, restarted := range []bool{false, true} {
		if restarted {
			w.restart()
		}
		g.Expect(w.Pools()).To(BeEmpty())
		g.Expect(w.leases()).To(BeEmpty())
		_, err = w.EndPool(t.Context(), id, true)
		g.Expect(err).To(MatchError(ipamapi.ErrPoolNotFound))
		_, err = w.ask(id, "")
		g.Expect(err).To(MatchError(ipamapi.ErrPoolNotFound), "containers of a network that still uses it may have any address")
	}
	g.Expect(w.pool("10.1.0.0/24", "")).To(Equal(id), "for a network that is made again")
	w.get(id, "")
	w.restart()
	w.get(id, "")
	g.Expect(w.ReleasePool(id)).To(Succeed())
	g.Expect(w.records.keys()).To(BeEmpty())
	g.Expect(w.check()).To(Succeed())
}

// A commit that fails leaves the pool as it was.
func TestEndPoolWithFailedCommit(t *testing.T) {
	for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
		g := NewWithT(t)
		w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
		id := w.pool("10.1.0.0/24", "")
		w.get(id, "")
		before := w.leases()
		w.records.next = []journal.Fault{fault}
		_, err := w.EndPool(context.Background(), id, true)
		g.Expect(err).To(MatchError(journal.ErrInjected))
		g.Expect(w.leases()).To(Equal(before))
		g.Expect(w.Pools()).To(HaveLen(1))
		w.get(id, "")
	}
}

// hangUp is a caller that is gone after so many commits of records.
type hangUp struct {
	ipamapi.Records
	after  int
	cancel func()
}

func (h *hangUp) Commit(ctx context.Context, put map[string][]byte, del []string) error {
	err := h.Records.Commit(ctx, put, del)
	if h.after--; h.after == 0 {
		h.cancel()
	}
	return err
}

// A caller that hangs up in the middle leaves no pool that is there until the next
// start only: the engine may have a network on it.
func TestEndPoolAfterItsCallerHasGone(t *testing.T) {
	for after := range 3 { // 0: before it has begun
		g := NewWithT(t)
		w := newWorld(g, journal.NewMemory(), ipamapi.Config{})
		id := w.pool("10.1.0.0/24", "")
		w.get(id, "")
		ctx, cancel := context.WithCancel(t.Context())
		if after == 0 {
			cancel()
		}
		d, err := ipamapi.New(t.Context(), ipamapi.Deps{Ledger: w.ledger, Records: &hangUp{w.records, after, cancel}, Host: w.host})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = d.EndPool(ctx, id, true)
		pools, leases := d.Pools(), w.leases()
		g.Expect(err == nil).To(Equal(len(pools) == 0), "%v", err)
		w.restart()
		g.Expect(w.Pools()).To(HaveLen(len(pools)), "%d", after)
		g.Expect(w.leases()).To(Equal(leases), "%d", after)
		cancel()
	}
}

func TestHolderOf(t *testing.T) {
	for _, x := range []struct {
		what string
		l    ledger.Lease
		want string // "": not Docker's
	}{
		{"a pod", ledger.Lease{Pool: "default", Key: ledger.Key{Network: "k8s", ContainerID: "c", IfName: "eth0"}}, ""},
		{"the node's gateway", ledger.Lease{Pool: "default", Purpose: ledger.ForInfra, Key: ledger.Key{Network: "infra/default", ContainerID: "10.1.5.0/24", IfName: "gateway"}}, ""},
		{"a gateway", ledger.Lease{Pool: "docker/L/10.1.0.0/24", Purpose: ledger.ForInfra, Key: ledger.Key{Network: "L/10.1.0.0/24", ContainerID: "gateway", IfName: "gateway#1"}}, "the gateway"},
		{"a gateway of the pod block", ledger.Lease{Pool: "default", Purpose: ledger.ForDocker, Key: ledger.Key{Network: "L/10.1.5.16/28?pods=default", ContainerID: "gateway", IfName: "gateway#1"}}, "the gateway"},
		{"an endpoint", ledger.Lease{Purpose: ledger.ForDocker, Key: ledger.Key{ContainerID: "web", IfName: "02:42#1"}}, `endpoint "web" with MAC 02:42`},
		{"an endpoint without a name", ledger.Lease{Purpose: ledger.ForDocker, Key: ledger.Key{ContainerID: "02:42", IfName: "02:42#1"}}, "the endpoint with MAC 02:42"},
		{"an endpoint without a MAC", ledger.Lease{Purpose: ledger.ForDocker, Key: ledger.Key{ContainerID: "web", IfName: "#1"}}, `endpoint "web"`},
	} {
		g := NewWithT(t)
		h, ok := ipamapi.HolderOf(x.l)
		g.Expect(ok).To(Equal(x.want != ""), x.what)
		if ok {
			g.Expect(h.String()).To(Equal(x.want), x.what)
			g.Expect(h.PoolID).To(Equal(x.l.Key.Network), x.what)
		}
	}
}
