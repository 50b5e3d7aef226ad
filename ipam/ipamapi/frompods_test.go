// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// podWorld is a world whose node has pods: the block 10.1.5.0/24 (and others),
// with gateway and NAT loopback as the IPAM plugin takes them.
func podWorld(g Gomega, blocks ...string) *world {
	w := newWorld(g, journal.NewMemory(), ipamapi.Config{FromPods: ipamapi.FromPods{Pool: "default"}})
	w.grantPods(blocks...)
	*w.host = host{pfx("10.1.0.0/16"), pfx("172.30.0.0/16")}
	return w
}

// grantPods does what the IPAM plugin does.
func (w *world) grantPods(blocks ...string) {
	st := w.ledger.Begin()
	w.g.Expect(st.SetPool(ledger.Pool{Name: "default", ReserveEdges: true})).To(Succeed())
	w.g.Expect(st.SetBlocks("default", prefixes(blocks...))).To(Succeed())
	for _, b := range prefixes(blocks...) {
		_, _, err := st.Claim(ledger.Request{
			Pool: "default", Purpose: ledger.ForInfra, Wanted: []netip.Addr{b.Addr().Next()},
			Key: ledger.Key{Network: "infra/default", ContainerID: b.String(), IfName: "gateway"},
		})
		w.g.Expect(err).NotTo(HaveOccurred())
	}
	w.g.Expect(st.Commit(context.Background())).To(Succeed())
}

// pod claims an address as CNI does.
func (w *world) pod(n int, wanted ...netip.Addr) (string, error) {
	leases, _, err := w.ledger.Claim(context.Background(), ledger.Request{
		Pool: "default", Key: ledger.Key{Network: "cni", ContainerID: fmt.Sprint("c", n), IfName: "eth0"}, Wanted: wanted,
	})
	if err != nil {
		return "", err
	}
	return leases[0].Addr.String(), nil
}

func TestPoolsOfThePodBlock(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/24")
	_, err := w.pod(1, ip("10.1.5.20"))
	g.Expect(err).NotTo(HaveOccurred())
	id := w.pool("", "")
	g.Expect(id).To(Equal("LocalDefault/10.1.5.32/28?pods=default"), "the first part without leases")
	g.Expect(w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)).To(Equal("10.1.5.33/28"), "its edges are not allocated")
	g.Expect(w.get(id, "", ipamapi.EndpointName, "web")).To(Equal("10.1.5.34/28"))
	g.Expect(w.leases()).To(ContainSubstring("10.1.5.34:default:held:docker:" + id + "/web/#2"))
	g.Expect(w.pool("0.0.0.0/27", "")).To(Equal("LocalDefault/10.1.5.64/27?pods=default"))
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.1.5.48/28?pods=default"))
	g.Expect(w.pool("10.1.5.128/25", "10.1.5.192/28")).To(Equal("LocalDefault/10.1.5.128/25/10.1.5.192/28?pods=default"))
	g.Expect(w.pool("10.1.5.32/28", "")).To(Equal(id))
	_, err = w.request("10.1.5.0/25", "")
	g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), "of other Docker pools")
	_, err = w.request("10.1.4.0/23", "")
	g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), "of the node's subnets")
	g.Expect(w.pool("10.99.0.0/16", "")).To(Equal("LocalDefault/10.99.0.0/16"), "elsewhere it has its own")
	g.Expect(w.pool("::/0", "")).To(HavePrefix("LocalDefault/fd42:98fc:1c14::/64"), "pods have no IPv6 here")
	p, err := w.RequestPool(ipamapi.PoolRequest{AddressSpace: "GlobalDefault"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.PoolID).To(Equal("GlobalDefault/10.0.0.0/24"), "a swarm has nothing of this node")
	_, err = w.request("0.0.0.0/23", "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoMoreSubnets))
	g.Expect(w.check()).To(Succeed())
}

func TestContainersAndPodsShareABlock(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/24")
	id := w.pool("10.1.5.0/24", "")
	seen := map[string]int{}
	for n := range 252 {
		var a string
		var err error
		if n%2 == 0 {
			a, err = w.pod(n)
			a += "/24"
		} else {
			a, err = w.ask(id, "")
		}
		g.Expect(err).NotTo(HaveOccurred(), "number %d", n)
		seen[a]++
	}
	last := w.get(id, "")
	seen[last]++
	g.Expect(seen).To(And(HaveLen(253), HaveEach(1), Not(HaveKey("10.1.5.1/24"))))
	_, err := w.ask(id, "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoAvailableIPs))
	_, err = w.pod(1000)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))

	_, _, err = w.ledger.Claim(context.Background(), ledger.Request{Pool: "default", Key: ledger.Key{Network: "x"}, Wanted: []netip.Addr{ip("10.1.5.1")}})
	g.Expect(err).To(MatchError(ledger.ErrTaken))

	var pod ledger.Lease
	for _, l := range w.ledger.Leases() {
		if l.Key.ContainerID == "c100" {
			pod = l
		}
	}
	w.free(id, pod.Addr.String())
	_, err = w.ask(id, pod.Addr.String(), ipamapi.EndpointName, "web")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "Docker releases no address of a pod")
	_, err = w.ask(id, "10.1.5.1")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated), "nor the node's gateway")
	_, err = w.ledger.Release(context.Background(), ledger.Selector{Key: pod.Key})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.get(id, "")).To(Equal(pod.Addr.String()+"/24"), "what a pod has given back is found")

	g.Expect(w.ReleasePool(id)).To(Succeed())
	for _, l := range w.ledger.Leases() {
		g.Expect(l.Purpose).NotTo(Equal(ledger.ForDocker))
	}
	g.Expect(w.ledger.Leases()).To(HaveLen(126), "pods and the gateway keep theirs")
	g.Expect(w.ledger.Stats()[0].State).To(Equal(ledger.Active), "and the block is not Docker's to close")
}

func TestNoPartOfThePodBlockIsFree(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/26")
	w.pool("", "")
	for n, a := range []string{"10.1.5.40", "10.1.5.62"} {
		_, err := w.pod(n, ip(a))
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := w.request("", "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoMoreSubnets))
	g.Expect(w.pool("0.0.0.0/29", "")).To(Equal("LocalDefault/10.1.5.8/29?pods=default"))
}

// Containers allocate from their part only: in their own order, not its edges, and
// what cools longest when nothing else is free. Pods continue after the last pod.
func TestContainersDoNotMovePods(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/26")
	st := w.ledger.Begin()
	g.Expect(st.SetPool(ledger.Pool{Name: "default", ReserveEdges: true, CoolDown: time.Hour})).To(Succeed())
	g.Expect(st.Commit(context.Background())).To(Succeed())
	id := w.pool("0.0.0.0/29", "")
	g.Expect(w.pod(1)).To(Equal("10.1.5.2"))
	for n := range 6 {
		g.Expect(w.get(id, "")).To(Equal(fmt.Sprintf("10.1.5.%d/29", 9+n)))
	}
	g.Expect(w.pod(2)).To(Equal("10.1.5.3"))
	w.free(id, "10.1.5.12")
	w.free(id, "10.1.5.10")
	g.Expect(w.get(id, "")).To(Equal("10.1.5.12/29"), "the one that has cooled longest")
	g.Expect(w.get(id, "")).To(Equal("10.1.5.10/29"))
	_, err := w.ask(id, "")
	g.Expect(err).To(And(MatchError(ipamapi.ErrNoAvailableIPs), MatchError(ContainSubstring("of 8 addresses 6 are held, 0 infra, 0 cooling"))))
	g.Expect(w.pod(3)).To(Equal("10.1.5.4"))
	g.Expect(w.check()).To(Succeed())
}

// A part of the pod block overlaps no pool that has its own prefix, nor the other way round.
func TestPartsAndPoolsDoNotOverlap(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/24")
	g.Expect(w.pool("10.1.9.32/28", "", ipamapi.OverlapOption, "true")).To(Equal("LocalDefault/10.1.9.32/28"))
	w.grantPods("10.1.9.0/24")
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.1.9.16/28?pods=default"))
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.1.9.48/28?pods=default"))
	w.config = ipamapi.Config{Local: ipamapi.Space{Pools: lists("10.1.9.0/26 28")}}
	*w.host = nil
	w.restart()
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.1.9.0/28"))
	_, err := w.request("", "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoMoreSubnets))
	for _, p := range []string{"10.1.9.16/29", "10.1.9.32/29"} {
		_, err := w.request(p, "")
		g.Expect(err).To(MatchError(ipamapi.ErrPoolOverlap), p)
	}
}

// A pod keeps its address, whatever its network is called.
func TestReleaseOfAPodsAddress(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/26")
	id := w.pool("", "")
	_, _, err := w.ledger.Claim(context.Background(), ledger.Request{Pool: "default", Key: ledger.Key{Network: id, ContainerID: "web"}, Wanted: []netip.Addr{ip("10.1.5.20")}})
	g.Expect(err).NotTo(HaveOccurred())
	w.free(id, "10.1.5.20")
	_, err = w.ask(id, "10.1.5.20", ipamapi.EndpointName, "web")
	g.Expect(err).To(MatchError(ipamapi.ErrIPAlreadyAllocated))
	g.Expect(w.ReleasePool(id)).To(Succeed())
	g.Expect(w.ledger.Leases()).To(HaveLen(2))
}

func TestPoolsOfADrainingPodBlock(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/24")
	id := w.pool("", "")
	w.get(id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	w.get(id, "", ipamapi.EndpointName, "web")
	w.grantPods("10.1.9.0/24", "fd00:9::/64")
	_, err := w.ask(id, "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoAvailableIPs), "a draining block allocates nothing")
	big := w.pool("fd00:9::/64", "") // where trying them all would take forever
	w.grantPods("10.1.9.0/24")
	_, err = w.ask(big, "")
	g.Expect(err).To(MatchError(ipamapi.ErrNoAvailableIPs))
	g.Expect(w.ReleasePool(big)).To(Succeed())
	_, err = w.ask(id, "10.1.5.20")
	g.Expect(err).To(MatchError(ipamapi.ErrNoAvailableIPs))
	g.Expect(w.get(id, "10.1.5.18", ipamapi.EndpointName, "web")).To(Equal("10.1.5.18/28"), "what is held is held")
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/10.1.9.16/28?pods=default"))
	w.restart()
	w.grantPods("10.1.9.0/24")
	g.Expect(w.get(id, "10.1.5.18")).To(Equal("10.1.5.18/28"))
	w.free(id, "10.1.5.18")
	g.Expect(w.leases()).To(ContainSubstring("10.1.5.17:"), "the gateway keeps the block, as long as there is the network")
	g.Expect(w.ReleasePool(id)).To(Succeed())
	g.Expect(w.leases()).NotTo(ContainSubstring("10.1.5."))
	w.grantPods()
	_, err = w.request("", "")
	g.Expect(err).To(And(MatchError(ipamapi.ErrNotNow), MatchError(ContainSubstring("has no block yet"))))
}

func TestPoolIDOfThePodBlockWithoutRecords(t *testing.T) {
	g := NewWithT(t)
	w := podWorld(g, "10.1.5.0/24", "fd00:5::/64")
	id, six := w.pool("", ""), w.pool("::/0", "")
	g.Expect(six).To(Equal("LocalDefault/fd00:5::1:0/112?pods=default"))
	w.get(six, "")
	w.journal = journal.NewMemory()
	w.forget()
	w.restart()
	w.grantPods("10.1.5.0/24", "fd00:5::/64")
	g.Expect(w.get(id, "")).To(Equal("10.1.5.18/28"))
	g.Expect(w.leases()).To(ContainSubstring("10.1.5.18:default:held:docker:"))
	w.config.FromPods.Pool = ""
	w.restart()
	w.grantPods("10.1.5.0/24", "fd00:5::/64")
	g.Expect(w.get(id, "")).To(Equal("10.1.5.19/28"), "a pool stays what it is")
	g.Expect(w.pool("", "")).To(Equal("LocalDefault/172.17.0.0/16"))
}
