// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// aPool is an active pool of network default; a range is "10.2.0.0/16 24".
func aPool(name string, generation uint64, ranges ...string) *kv.Pool {
	m := &kv.Pool{Name: name, Network: ipam.PodPool, Generation: generation, Origin: "apply"}
	for _, r := range ranges {
		cidr, length, _ := strings.Cut(r, " ")
		n, err := strconv.ParseUint(length, 10, 32)
		if err != nil {
			panic(err)
		}
		m.Ranges = append(m.Ranges, &kv.PoolRange{Cidr: cidr, OneNodePrefixLen: uint32(n)})
	}
	return m
}

func in(network string, m *kv.Pool) *kv.Pool  { m.Network = network; return m }
func from(origin string, m *kv.Pool) *kv.Pool { m.Origin = origin; return m }
func draining(m *kv.Pool) *kv.Pool            { m.Draining = true; return m }
func removed(m *kv.Pool) *kv.Pool             { m.Draining, m.Removed = true, true; return m }
func firstPool() *kv.Pool                     { return from("contiv.conf", aPool("default", 1, "10.1.0.0/16 24")) }
func bluePool(generation uint64) *kv.Pool {
	return from("network/blue", in("blue", aPool("blue", generation, "10.5.0.0/16 24")))
}
func deletedPool(generation uint64) *kv.Pool {
	return draining(from("network/blue (deleted)", bluePool(generation)))
}
func blue() *kv.CustomNetwork { return aNetwork("blue", "10.5.0.0/16", 24) }
func aNetwork(name, cidr string, n uint32) *kv.CustomNetwork {
	return &kv.CustomNetwork{Name: name, SubnetCidr: cidr, SubnetOneNodePrefixLen: n}
}

// stored are messages as the cluster's state has them, each at its key.
func stored(messages ...proto.Message) controller.KubeStateData {
	data := controller.KubeStateData{kubestate.Pools: {}, kubestate.CustomNetworks: {}}
	for _, m := range messages {
		switch m := m.(type) {
		case *kv.Pool:
			data[kubestate.Pools][kv.PoolKey(m.Name)] = m
		case *kv.CustomNetwork:
			data[kubestate.CustomNetworks][kv.CustomNetworkKey(m.Name)] = m
		}
	}
	return data
}

// at is data with a message at a key that is not its own.
func at(data controller.KubeStateData, resource, key string, m proto.Message) controller.KubeStateData {
	data[resource][key] = m
	return data
}

// describe returns a pool in one line.
func describe(m *kv.Pool) string {
	s := fmt.Sprint(m.Name, " of ", m.Network, " ", m.Generation)
	for _, r := range m.Ranges {
		s += fmt.Sprint(" ", r.Cidr, "/", r.OneNodePrefixLen)
	}
	switch {
	case m.Removed:
		s += " removed"
	case m.Draining:
		s += " draining"
	}
	return s + " from " + m.Origin
}

func lines(writes []kubestate.Write) (all []string) {
	for _, w := range writes {
		if m, ok := w.Message.(*kv.Pool); ok {
			all = append(all, describe(m))
			if w.Key != kv.PoolKey(m.Name) {
				all = append(all, "at "+w.Key)
			}
			continue
		}
		all = append(all, w.Key)
	}
	return all
}

func repairOf(g Gomega, conf string) kubestate.Repair {
	cfg, _, err := contivconf.Parse([]byte(conf))
	g.Expect(err).NotTo(HaveOccurred())
	return ipam.Repair(contivconf.NewPlugin(cfg))
}

// guard is the write that comes with new pools.
const guard = "cluster/pools"

// The first pools, as they are written.
const first, blueLine = "default of default 1 10.1.0.0/16/24 from contiv.conf", "blue of blue 1 10.5.0.0/16/24 from network/blue"

// look is one call of Repair.
type look struct {
	name         string
	conf         string
	known, found controller.KubeStateData
	gone         []string
	want         []string
}

// looks are about pools as such.
func looks() []look {
	nothing := stored()
	return []look{
		{"a new store", defaults, nothing, nothing, nil, []string{guard, first}},
		{"a new store, both families", dual, nothing, nothing, nil, []string{guard, "default of default 1 10.1.0.0/16/24 fd00:1::/48/64 from contiv.conf"}},
		{"a new store, external IPAM", external, nothing, nothing, nil, nil},
		{"all is there", defaults, nothing, stored(firstPool()), nil, nil},
		{"contiv.conf says something else by now", "ipamConfig: {podSubnetCIDR: 10.9.0.0/16}", nothing, stored(firstPool()), nil, nil},
		{"the network has another pool", defaults, nothing, stored(aPool("pods-2", 1, "10.2.0.0/16 24")), nil, nil},
		{"the network has a pool that is removed", defaults, nothing, stored(removed(firstPool())), nil, nil},
		{"only another network has a pool", defaults, nothing, stored(bluePool(1)), nil, []string{guard, first}},

		{"the store came back empty", defaults, stored(draining(aPool("default", 4, "10.1.0.0/16 24")), aPool("pods-2", 1, "10.2.0.0/16 24")), nothing, nil,
			[]string{"default of default 4 10.1.0.0/16/24 draining from apply", "pods-2 of default 1 10.2.0.0/16/24 from apply"}},
		{"the store came back older", defaults, stored(draining(aPool("default", 4, "10.1.0.0/16 24"))), stored(firstPool()), nil,
			[]string{"default of default 4 10.1.0.0/16/24 draining from apply"}},
		{"this node was away", defaults, stored(firstPool()), stored(draining(aPool("default", 4, "10.1.0.0/16 24"))), nil, nil},
		{"two histories of one pool", defaults, stored(aPool("default", 3, "10.7.0.0/16 24")), stored(aPool("default", 3, "10.8.0.0/16 24")), nil, nil},
		{"a tombstone was lost", defaults, stored(firstPool(), removed(aPool("old", 3, "10.2.0.0/16 24"))), stored(firstPool()), nil,
			[]string{"old of default 3 10.2.0.0/16/24 removed from apply"}},
		{"what is lost comes before what is new", defaults, stored(firstPool()), stored(blue()), nil, []string{first}},
		{"a lost pool is invalid", defaults, stored(firstPool(), aPool("bad", 0, "10.2.0.0/16 24")), stored(firstPool()), nil, nil},
		{"a good pool became bad", defaults, stored(aPool("default", 2, "10.1.0.0/16 24")), stored(aPool("default", 3, "10.1.0.0/99 24")), nil,
			[]string{"default of default 2 10.1.0.0/16/24 from apply"}},
		{"a pool stored under another name", defaults, nothing, at(stored(firstPool()), kubestate.Pools, kv.PoolKey("evil"), removed(aPool("default", 99, "10.1.0.0/16 24"))), nil, nil},
		{"which is lost", defaults, at(stored(firstPool()), kubestate.Pools, kv.PoolKey("evil"), removed(aPool("default", 99, "10.1.0.0/16 24"))), stored(firstPool()), nil, nil},
	}
}

// networkLooks are about custom networks.
func networkLooks() []look {
	nothing := stored()
	return []look{
		{"a custom network", defaults, nothing, stored(firstPool(), blue()), nil, []string{guard, blueLine}},
		{"a custom network on a new store", defaults, nothing, stored(blue()), nil, []string{guard, blueLine, first}},
		{"with external IPAM", external, nothing, stored(blue()), nil, []string{guard, blueLine}},
		{"with external IPAM, of the pods' network", external, nothing, stored(aNetwork("blue", "10.1.128.0/17", 24)), nil, nil},
		{"of both families", defaults, nothing, stored(firstPool(), &kv.CustomNetwork{Name: "six", SubnetCidr: "10.6.0.0/16, fd00:6::/48", SubnetOneNodePrefixLen: 25, SubnetOneNodePrefixLenIpv6: 64}), nil,
			[]string{guard, "six of six 1 10.6.0.0/16/25 fd00:6::/48/64 from network/six"}},
		{"that has its pool", defaults, nothing, stored(firstPool(), blue(), bluePool(1)), nil, nil},
		{"whose pool is something else", defaults, nothing, stored(firstPool(), aNetwork("blue", "10.6.0.0/16", 24), bluePool(1)), nil, nil},
		{"whose pool is drained by hand", defaults, nothing, stored(firstPool(), blue(), draining(bluePool(2))), nil, nil},
		{"whose pool is removed", defaults, nothing, stored(firstPool(), blue(), removed(deletedPool(3))), nil, nil},
		{"named as a pool of another network", defaults, nothing, stored(firstPool(), aNetwork("pods-2", "10.6.0.0/16", 24), aPool("pods-2", 1, "10.2.0.0/16 24")), nil, nil},
		{"named as the pods' network", defaults, nothing, stored(firstPool(), aNetwork("default", "10.6.0.0/16", 24)), nil, nil},
		{"named as the node's link", defaults, nothing, stored(firstPool(), aNetwork("vpphost", "10.6.0.0/16", 24)), nil, nil},
		{"named as nothing may be", defaults, nothing, stored(firstPool(), aNetwork("a/b", "10.6.0.0/16", 24), aNetwork("", "10.6.0.0/16", 24)), nil, nil},
		{"stored under another name", defaults, nothing, at(stored(firstPool()), kubestate.CustomNetworks, kv.CustomNetworkKey("red"), blue()), nil, nil},
		{"that is not a network", defaults, nothing, stored(firstPool(), aNetwork("blue", "10.5.0.0", 24), aNetwork("red", "", 24), aNetwork("green", "10.5.0.0/24", 24)), nil, nil},
		{"that overlaps the pods' network", defaults, nothing, stored(firstPool(), aNetwork("blue", "10.0.0.0/15", 24)), nil, nil},
		{"that overlaps what drains", defaults, nothing, stored(firstPool(), draining(aPool("old", 2, "10.5.0.0/17 24")), blue()), nil, nil},
		{"that overlaps what is removed", defaults, nothing, stored(firstPool(), removed(aPool("old", 3, "10.5.0.0/17 24")), blue()), nil, []string{guard, blueLine}},
		{"that overlaps the services", defaults, nothing, stored(firstPool(), aNetwork("blue", "10.100.0.0/16", 24)), nil, nil},
		{"that overlap each other", defaults, nothing, stored(firstPool(), blue(), aNetwork("green", "10.5.128.0/17", 25), aNetwork("red", "10.6.0.0/16", 24)), nil,
			[]string{guard, blueLine, "red of red 1 10.6.0.0/16/24 from network/red"}},
	}
}

// deletionLooks are about custom networks that go and come back.
func deletionLooks() []look {
	nothing, gone := stored(), []string{kv.CustomNetworkKey("blue")}
	return []look{
		{"a network is deleted", defaults, stored(firstPool(), bluePool(1)), stored(firstPool(), bluePool(1)), gone,
			[]string{"blue of blue 2 10.5.0.0/16/24 draining from network/blue (deleted)"}},
		{"and was not seen being deleted", defaults, stored(firstPool(), bluePool(1)), stored(firstPool(), bluePool(1)), nil, nil},
		{"and is there again", defaults, stored(firstPool(), bluePool(1)), stored(firstPool(), bluePool(1), blue()), gone, nil},
		{"and another one drains it already", defaults, stored(firstPool(), bluePool(1)), stored(firstPool(), deletedPool(2)), gone, nil},
		{"and its pool is removed", defaults, stored(firstPool(), bluePool(1)), stored(firstPool(), removed(deletedPool(3))), gone, nil},
		{"and its pool is removed by hand", defaults, nothing, stored(firstPool(), removed(bluePool(3))), gone, nil},
		{"and its pool drains by hand", defaults, nothing, stored(firstPool(), draining(bluePool(2))), gone, nil},
		{"and its pool was added by hand", defaults, nothing, stored(firstPool(), from("apply", bluePool(1))), gone, nil},
		{"with all of the store", defaults, stored(firstPool(), bluePool(3)), nothing, gone,
			[]string{"blue of blue 3 10.5.0.0/16/24 from network/blue", first}},
		{"a pool is deleted, not a network", defaults, stored(firstPool(), bluePool(1)), stored(firstPool(), bluePool(1)), []string{kv.PoolKey("blue"), kv.NodeKey("blue")}, nil},
		{"a network comes back", defaults, nothing, stored(firstPool(), blue(), deletedPool(2)), nil, []string{"blue of blue 3 10.5.0.0/16/24 from network/blue"}},
		{"as something else", defaults, nothing, stored(firstPool(), aNetwork("blue", "10.5.0.0/16", 25), deletedPool(2)), nil, nil},
	}
}

func TestRepair(t *testing.T) {
	for _, c := range slices.Concat(looks(), networkLooks(), deletionLooks()) {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			repair := repairOf(g, c.conf)
			known, found := cloned(c.known), cloned(c.found)
			g.Expect(lines(repair(c.known, c.found, c.gone))).To(Equal(c.want))
			g.Expect(lines(repair(c.known, c.found, c.gone))).To(Equal(c.want), "it remembers nothing")
			g.Expect(same(c.known, known) && same(c.found, found)).To(BeTrue(), "it is pure")
		})
	}
}

func cloned(data controller.KubeStateData) controller.KubeStateData {
	all := controller.KubeStateData{}
	for resource, messages := range data {
		all[resource] = map[string]proto.Message{}
		for key, m := range messages {
			all[resource][key] = proto.Clone(m)
		}
	}
	return all
}

func same(a, b controller.KubeStateData) bool {
	for resource := range a {
		if len(a[resource]) != len(b[resource]) {
			return false
		}
		for key, m := range a[resource] {
			if !proto.Equal(m, b[resource][key]) {
				return false
			}
		}
	}
	return len(a) == len(b)
}

// some is a random state, with things in it that fit and things that do not.
func some(rnd *rand.Rand) controller.KubeStateData {
	data := stored()
	for range rnd.IntN(5) {
		n := rnd.IntN(4)
		name := []string{"default", "blue", "red", "pods-2"}[n]
		m := aPool(name, uint64(rnd.IntN(4)), fmt.Sprintf("10.%d.0.0/%d 24", 1+rnd.IntN(4), 14+rnd.IntN(4)))
		if n == 1 || n == 2 {
			m = from([]string{"apply", "network/" + name, "network/" + name + " (deleted)"}[rnd.IntN(3)], in(name, m))
		}
		m.Draining = rnd.IntN(3) == 0
		m.Removed = m.Draining && rnd.IntN(3) == 0
		data[kubestate.Pools][kv.PoolKey(name)] = m
	}
	for range rnd.IntN(4) {
		name := []string{"blue", "red", "green", "vpphost"}[rnd.IntN(4)]
		data[kubestate.CustomNetworks][kv.CustomNetworkKey(name)] = aNetwork(name, fmt.Sprintf("10.%d.0.0/%d", 1+rnd.IntN(4), 14+rnd.IntN(4)), 24)
	}
	return data
}

// For any state that a node knows and finds: when its repairs are written, again and
// again, there is soon nothing left. Generations only rise, and nothing that was known is
// lost.
func TestRepairEnds(t *testing.T) {
	for seed := range uint64(2000) {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(seed, 7))
		repair := repairOf(g, []string{defaults, external}[rnd.IntN(2)])
		known, found := some(rnd), some(rnd)
		gone := []string{kv.CustomNetworkKey("blue"), kv.PoolKey("red")}[:rnd.IntN(3)]
		rounds := 0
		for writes := repair(known, found, gone); len(writes) > 0; writes = repair(known, found, nil) {
			rounds++
			g.Expect(rounds).To(BeNumerically("<", 5), "seed %d", seed)
			for _, w := range writes {
				now, ok := w.Message.(*kv.Pool)
				if !ok {
					continue
				}
				g.Expect(now.Name).NotTo(Equal("vpphost"))
				if was, _ := found[kubestate.Pools][w.Key].(*kv.Pool); was.GetGeneration() > 0 && proto.Equal(&kv.Pool{Ranges: was.Ranges}, &kv.Pool{Ranges: now.Ranges}) {
					g.Expect(now.Generation).To(BeNumerically(">", was.Generation), "seed %d", seed)
				}
				found[kubestate.Pools][w.Key] = now
			}
		}
		for key, m := range known[kubestate.Pools] {
			if p, err := poolplan.FromMessage(m.(*kv.Pool)); err == nil {
				has, _ := found[kubestate.Pools][key].(*kv.Pool)
				g.Expect(has.GetGeneration()).To(BeNumerically(">=", p.Generation), "seed %d: %s", seed, key)
			}
		}
	}
}

// The largest node ID: what the configuration and the open pools of the pods'
// network have room for. Custom networks and unreadable pools do not limit it.
func TestNodeIDLimit(t *testing.T) {
	for _, c := range []struct {
		name  string
		conf  string
		pools []*kv.Pool
		want  uint32
	}{
		{"no pool yet", defaults, nil, 254},
		{"a small first pool", "ipamConfig: {podSubnetCIDR: 10.1.0.0/20}", nil, 16},
		{"which another one replaces", "ipamConfig: {podSubnetCIDR: 10.1.0.0/20}", []*kv.Pool{draining(aPool("default", 2, "10.1.0.0/20 24")), aPool("pods-2", 1, "10.2.0.0/17 24")}, 128},
		{"two that are open", defaults, []*kv.Pool{aPool("default", 1, "10.1.0.0/17 24"), aPool("pods-2", 1, "10.2.0.0/19 24")}, 32},
		{"a custom network", defaults, []*kv.Pool{firstPool(), in("blue", aPool("blue", 1, "10.5.0.0/29 32"))}, 254},
		{"one that cannot be used", defaults, []*kv.Pool{firstPool(), aPool("bad", 0, "10.5.0.0/23 24")}, 254},
		{"external IPAM", external, []*kv.Pool{aPool("default", 1, "10.1.0.0/20 24")}, 254},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			cfg, _, err := contivconf.Parse([]byte(c.conf))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ipam.NodeIDLimit(contivconf.NewPlugin(cfg))(c.pools)).To(Equal(c.want))
		})
	}
}

// history is a random life of the pools of a store that Repair repairs.
type history struct {
	*node
	rnd    *rand.Rand
	repair kubestate.Repair
	pods   int
	given  map[string]string // addresses by container
	log    []string
}

// write changes the store and repairs it, as one node of the cluster would.
func (h *history) write(key string, m proto.Message) {
	h.log = append(h.log, fmt.Sprint(key, " = ", m))
	before := cloned(h.kube)
	var gone []string
	if m == nil {
		gone = []string{key}
	}
	h.change(key, m)
	for range 10 {
		writes := h.repair(before, h.kube, gone)
		gone = nil
		for _, w := range writes {
			if p, ok := w.Message.(*kv.Pool); ok {
				h.change(w.Key, p)
			}
		}
	}
}

func (h *history) step() {
	n := h.rnd.IntN(4)
	name := []string{"default", "pods-2", "pods-3", "blue"}[n]
	have, _ := h.kube[kubestate.Pools][kv.PoolKey(name)].(*kv.Pool)
	switch h.rnd.IntN(12) {
	case 0, 1: // what apply may do
		if have == nil && n != 3 {
			h.write(kv.PoolKey(name), aPool(name, 1, fmt.Sprintf("10.%d.0.0/16 %d", 1+n, 22+h.rnd.IntN(5))))
		}
	case 2, 3:
		if have != nil && !have.Removed {
			m := proto.Clone(have).(*kv.Pool)
			m.Draining = !m.Draining
			m.Generation++
			h.write(kv.PoolKey(name), m)
		}
	case 4:
		if m, _ := proto.Clone(have).(*kv.Pool); have != nil && have.Draining && name != "default" {
			m.Removed = true
			m.Generation++
			h.write(kv.PoolKey(name), m)
		}
	case 5:
		h.write(kv.CustomNetworkKey("blue"), aNetwork("blue", []string{"10.5.0.0/16", "10.5.0.0/16", "10.1.0.0/16", "nonsense"}[n], 24))
	case 6:
		h.write(kv.CustomNetworkKey("red"), aNetwork("red", []string{"10.5.0.0/17", "10.6.0.0/16", "10.6.0.0/24", "10.6.0.0/16"}[n], 25))
	case 7:
		h.write(kv.CustomNetworkKey([]string{"blue", "red", "bad", "blue"}[n]), nil)
	case 8: // which is not allowed
		h.write(kv.PoolKey("bad"), []*kv.Pool{aPool("bad", 0), removed(aPool("default", 99, "10.1.0.0/16 24")), in(ipam.HostPool, aPool("bad", 1, "10.9.0.0/16 24")), aPool("bad", 1, "10.9.0.0/16 2")}[n])
	case 9:
		h.write(kv.PoolKey([]string{"bad", name, "bad", name}[n]), nil)
	case 10:
		h.g.Expect(h.resync()).To(Succeed())
	case 11:
		h.start(defaults)
		h.g.Expect(h.resync()).To(Succeed())
	}
	for range 2 {
		h.podStep()
	}
}

// podStep adds or deletes a pod, and checks what it got.
func (h *history) podStep() {
	network, name := []string{"default", "default", "blue", "red"}[h.rnd.IntN(4)], ""
	if h.rnd.IntN(3) > 0 {
		h.pods++
		name = fmt.Sprint(network, "-", h.pods)
		a, err := h.of(network, name)
		if err != nil {
			return
		}
		open, _ := h.granted()
		p := netip.MustParsePrefix(a)
		h.g.Expect(open).To(ContainElement(network+" "+p.Masked().String()), "%s got %s: %v", name, a, h.log)
		for other, b := range h.given {
			h.g.Expect(b).NotTo(Equal(a), "%s and %s: %v", name, other, h.log)
		}
		h.given[name] = a
		return
	}
	if names := slices.Sorted(maps.Keys(h.given)); len(names) > 0 {
		name = names[h.rnd.IntN(len(names))]
		network, _, _ = strings.Cut(name, "-")
		_, err := h.update(&podmanager.DeletePod{Key: ledger.Key{Network: network, ContainerID: name, IfName: "eth0"}})
		h.g.Expect(err).NotTo(HaveOccurred())
		delete(h.given, name)
	}
}

// state returns the state that follows from the cluster's state.
func (h *history) state() []any {
	open, drain := h.granted()
	return []any{
		open, drain, h.troubles(), h.Notes(), h.ConfigDiffers(), h.Pools(), h.Nodes(), h.Pending(), fmt.Sprint(h.BlocksOf(&nodesync.Node{ID: 7})), h.PoolUses(), h.node.pods(),
	}
}

// After any changes of the pools every lease has stayed, and no address was allocated of
// what drains, or twice. The changes have come to what one resync of the final snapshot
// makes, of this process or of a new one.
func TestChangesOfPoolsEndWhereAResyncEnds(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := &history{node: newNode(t, defaults, 5), rnd: rand.New(rand.NewPCG(seed, 8)), given: map[string]string{}}
			h.repair = repairOf(h.g, defaults)
			h.kube = stored(firstPool())
			h.g.Expect(h.resync()).To(Succeed())
			for range 60 {
				h.step()
			}
			h.g.Expect(h.node.pods()).To(HaveLen(len(h.given)), "%v", h.log)
			byChanges := h.state()
			h.g.Expect(h.resync()).To(Succeed())
			h.g.Expect(h.state()).To(Equal(byChanges), "%v", h.log)
			h.start(defaults)
			h.g.Expect(h.resync()).To(Succeed())
			h.g.Expect(h.state()).To(Equal(byChanges), "%v", h.log)
			h.sound()

			fresh := newNode(t, defaults, 5)
			fresh.kube = h.kube
			h.g.Expect(fresh.resync()).To(Succeed())
			open, _ := fresh.granted()
			h.g.Expect(open).To(Equal(byChanges[0]), "%v", h.log)
			h.g.Expect(fresh.troubles()).To(Equal(byChanges[2]), "%v", h.log)
		})
	}
}
