// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// inputs holds leases and gateways that a test changes.
type inputs struct {
	leases  []ledger.Lease
	gateway map[netip.Prefix]netip.Addr
	ranges  map[string][]netip.Prefix
	plane   ipnet.Dataplane
}

func (b *inputs) All() iter.Seq[*ledger.Lease] {
	return func(yield func(*ledger.Lease) bool) {
		for _, i := range append(rand.Perm(len(b.leases)), rand.Perm(len(b.leases)/2)...) { // some of them twice
			l := b.leases[i]
			if !yield(&l) {
				return
			}
		}
	}
}

func (b *inputs) ByKey(k ledger.Key) (leases []ledger.Lease) {
	for _, l := range b.leases {
		if l.Key == k {
			leases = append(leases, l)
		}
	}
	slices.SortFunc(leases, func(x, y ledger.Lease) int { return x.Addr.Compare(y.Addr) })
	return leases
}

func (b *inputs) Nodes() []addrplan.Node                 { return nil }
func (b *inputs) BlocksOf(*nodesync.Node) []netip.Prefix { return nil }
func (b *inputs) NodesWithin([]netip.Prefix) []string    { return nil }
func (b *inputs) BlockGateway(a netip.Prefix) netip.Addr { return b.gateway[a.Masked()] }
func (b *inputs) OpenBlocks() map[string][]netip.Prefix  { return nil }
func (b *inputs) VxlanAddressesOf(uint32) []netip.Prefix { return nil }
func (b *inputs) HostSubnetsOf(uint32) []netip.Prefix    { return nil }
func (b *inputs) NetworkRanges() map[string][]netip.Prefix {
	return b.ranges
}

func (b *inputs) resync(g Gomega, p *ipnet.IPNet) messages {
	all := messages{}
	g.Expect(p.Resync(&controller.DBResync{}, nil, 1, all)).To(Succeed())
	return all
}

func (b *inputs) plugin() *ipnet.IPNet {
	return ipnet.NewPlugin(ipnet.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)},
		NodeSync:   &cluster{id: 5},
		IPAM:       b,
		Ledger:     b,
		Dataplane:  &b.plane,
	})
}

// messages holds what is put.
type messages map[string]proto.Message

func (m messages) Put(key string, value proto.Message) { m[key] = value }
func (m messages) Get(key string) proto.Message        { return m[key] }
func (m messages) FollowUp(controller.Event) error     { return nil }

// change makes one random change.
func (b *inputs) change(rnd *rand.Rand, generation uint64) {
	blocks := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/112")}
	block := blocks[rnd.IntN(2)]
	fresh := func(block netip.Prefix) netip.Addr {
		bytes := block.Addr().AsSlice()
		bytes[len(bytes)-2], bytes[len(bytes)-1] = byte(generation>>8), byte(generation)
		addr, _ := netip.AddrFromSlice(bytes)
		return addr
	}
	if rnd.IntN(20) == 0 {
		b.gateway[block] = netip.AddrFrom4([4]byte{10, 1, 5, byte(rnd.IntN(250))})
		return
	}
	switch rnd.IntN(40) {
	case 0:
		b.plane.MTU = uint32(1400 + rnd.IntN(3))
		return
	case 1:
		b.ranges = map[string][]netip.Prefix{}
		for _, name := range []string{"another", "more"}[:rnd.IntN(3)] {
			b.ranges[name] = []netip.Prefix{netip.PrefixFrom(blocks[0].Addr(), 8+rnd.IntN(4))}
		}
		return
	}
	if len(b.leases) == 0 || rnd.IntN(3) == 0 {
		b.leases = append(b.leases, ledger.Lease{
			Addr: fresh(block), Block: block, Pool: ipam.PodPool, Generation: generation,
			Key:   ledger.Key{Network: "n", ContainerID: fmt.Sprint(rnd.IntN(20)), IfName: "eth0"},
			NetNS: "/run/netns/a", Wired: rnd.IntN(2) == 0,
		})
		return
	}
	i := rnd.IntN(len(b.leases))
	l := &b.leases[i]
	switch rnd.IntN(8) {
	case 0:
		b.leases = slices.Delete(b.leases, i, i+1)
	case 1:
		more := *l // of the same claim
		more.Addr = fresh(l.Block)
		b.leases = append(b.leases, more)
	case 2:
		for j := range b.leases {
			if b.leases[j].Key == l.Key {
				b.leases[j].Pod.Name = fmt.Sprint("p", generation)
			}
		}
	case 3:
		l.Pool = []string{ipam.PodPool, "another"}[rnd.IntN(2)]
	case 4:
		l.State = []ledger.State{ledger.Held, ledger.Cooling}[rnd.IntN(2)]
	case 5:
		l.Addr = fresh(l.Block)
	case 6:
		l.Key.ContainerID = fmt.Sprint(rnd.IntN(20))
	case 7:
		l.NetNS, l.MAC = []string{"", "/run/netns/b"}[rnd.IntN(2)], []string{"", "02:00:00:00:00:07"}[rnd.IntN(2)]
	}
}

// A plugin that keeps messages puts the same values as one that renders all of them, and
// puts the same message again if nothing has changed.
func TestKeptMessagesAreThoseOfTheLeases(t *testing.T) {
	for seed := range uint64(20) {
		g, rnd := NewWithT(t), rand.New(rand.NewPCG(seed, 9))
		b := &inputs{gateway: map[netip.Prefix]netip.Addr{}}
		kept := b.plugin()
		for generation := range uint64(300) {
			b.change(rnd, 1+generation)
			want, have := b.resync(g, b.plugin()), b.resync(g, kept)
			g.Expect(have).To(HaveLen(len(want)))
			again := b.resync(g, kept)
			for k, m := range want {
				g.Expect(proto.Equal(have[k], m)).To(BeTrue(), "seed %d, step %d: %s is %v instead of %v", seed, generation, k, have[k], m)
				if k != "node" {
					g.Expect(proto.Equal(again[k], m)).To(BeTrue(), "seed %d, step %d: %s", seed, generation, k)
				}
			}
		}
	}
}

func TestResyncPutsTheSameMessageAgain(t *testing.T) {
	g := NewWithT(t)
	block := netip.MustParsePrefix("10.1.5.0/24")
	gateway := block.Addr().Next()
	b := &inputs{gateway: map[netip.Prefix]netip.Addr{block: gateway}}
	for i := range 3 {
		key := ledger.Key{Network: "n", ContainerID: fmt.Sprint(i), IfName: "eth0"}
		lease := ledger.Lease{Addr: gateway.Next(), Block: block, Key: key, Generation: uint64(1 + i)}
		b.leases = append(b.leases, lease)
	}
	p := b.plugin()
	first := b.resync(g, p)
	b.leases = b.leases[1:]
	b.leases[0].Generation = 9
	second := b.resync(g, p)
	g.Expect(second).NotTo(HaveKey("pod/n/0/eth0"))
	g.Expect(second["pod/n/1/eth0"]).NotTo(BeIdenticalTo(first["pod/n/1/eth0"]))
	g.Expect(second["pod/n/2/eth0"]).To(BeIdenticalTo(first["pod/n/2/eth0"]))
}

func (b *inputs) Uplinks() []ipam.Uplink { return nil }

func (b *inputs) UplinkOf(netip.Addr) (string, bool) { return "", false }
