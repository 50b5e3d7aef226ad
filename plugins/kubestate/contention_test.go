// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// cluster is several nodes that keep one store up as ipam does it.
type cluster struct {
	g     Gomega
	inner *mem.Store
	far   *remote
	nodes []*member
	stop  context.CancelFunc
	ended chan error
}

type member struct {
	*kubestate.Source
	loop   *loop
	mirror *memMirror
	far    *remote // this node's way to the store
}

// newCluster is a cluster of n nodes with these configurations, in turn, that do not run yet.
func newCluster(t *testing.T, n int, confs ...string) *cluster {
	c := &cluster{g: NewWithT(t), inner: mem.New(), ended: make(chan error, n)}
	c.far = newRemote(c.inner)
	for i := range n {
		cfg, _, err := contivconf.Parse([]byte(confs[i%len(confs)]))
		c.g.Expect(err).NotTo(HaveOccurred())
		m := &member{loop: &loop{}, mirror: &memMirror{}, far: newRemote(c.far)}
		m.Source = kubestate.New(kubestate.Deps{
			Log: slog.New(slog.DiscardHandler), Node: fmt.Sprint("node-", i), Store: m.far, EventLoop: m.loop, Mirror: m.mirror,
			Repair: ipam.Repair(contivconf.NewPlugin(cfg)), Random: rand.New(rand.NewPCG(uint64(i), 3)).Float64, Timing: kubestate.Timing{Spread: time.Second},
		})
		c.nodes = append(c.nodes, m)
	}
	return c
}

func (c *cluster) run() {
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	for _, m := range c.nodes {
		go func() { c.ended <- m.Run(ctx) }()
	}
}

func (c *cluster) end() {
	c.stop()
	for range c.nodes {
		c.g.Expect(<-c.ended).To(Succeed())
	}
	c.g.Expect(c.far.Close()).To(Succeed())
}

func (c *cluster) txn(ops ...kvdb.Op) {
	_, err := c.inner.Txn(context.Background(), nil, ops)
	c.g.Expect(err).NotTo(HaveOccurred())
}

func (c *cluster) put(key string, m proto.Message) { c.txn(kvdb.Put(key, marshal(c.g, m))) }
func (c *cluster) remove(key string)               { c.txn(kvdb.Delete(key)) }
func (c *cluster) network(name, cidr string)       { c.put(kv.CustomNetworkKey(name), network(name, cidr)) }

func network(name, cidr string) *kv.CustomNetwork {
	return &kv.CustomNetwork{Name: name, SubnetCidr: cidr, SubnetOneNodePrefixLen: 24}
}

// pool writes a pool as apply would.
func (c *cluster) pool(name, cidr string, generation uint64, draining bool) {
	c.put(kv.PoolKey(name), &kv.Pool{
		Name: name, Network: "default", Generation: generation, Draining: draining, Origin: "contiv.conf",
		Ranges: []*kv.PoolRange{{Cidr: cidr, OneNodePrefixLen: 24}},
	})
}

// pools are those in the store, "name range generation state".
func (c *cluster) pools() (all []string) {
	kvs, _, err := c.inner.List(context.Background(), kv.PoolPrefix)
	c.g.Expect(err).NotTo(HaveOccurred())
	for _, x := range kvs {
		m := &kv.Pool{}
		c.g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
		all = append(all, fmt.Sprintf("%s %s %d draining=%v", m.Name, m.Ranges[0].Cidr, m.Generation, m.Draining))
	}
	return all
}

// replace has the store come back as another one, to each node in its time.
func (c *cluster) replace(inner *mem.Store) {
	c.far.goes()
	c.inner = inner
	c.far.comes(inner)
}

// atRest expects that all loops and mirrors have the state of the store, and that no
// node writes any more.
func (c *cluster) atRest(about ...any) {
	time.Sleep(time.Minute)
	synctest.Wait()
	c.far.tried()
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	c.g.Expect(c.far.tried()).To(BeZero(), "a node writes and writes: %v", about)
	kvs, _, err := c.inner.List(context.Background(), kv.ClusterPrefix)
	c.g.Expect(err).NotTo(HaveOccurred())
	want := stateIn(kvs)
	for i, m := range c.nodes {
		state, _, _, faults := m.loop.seen()
		c.g.Expect(faults).To(BeEmpty(), "node %d: %v", i, about)
		c.g.Expect(state).To(Equal(want), "node %d: %v", i, about)
		c.g.Expect(m.mirror.state()).To(Equal(want), "node %d: %v", i, about)
	}
}

// running runs f with a cluster of nine nodes that is at rest.
func running(t *testing.T, f func(c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 9, "{}")
		c.run()
		defer func() { c.end() }()
		c.atRest()
		f(c)
	})
}

// All nodes of a new cluster come at once: the first pool is written once, and
// no loop ever sees a snapshot without it, in any configuration.
func TestTheFirstPool(t *testing.T) {
	for _, confs := range [][]string{{"{}"}, {"ipamConfig: {podSubnetCIDR: 10.2.0.0/16}", "ipamConfig: {podSubnetCIDR: 10.3.0.0/16}"}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 9, confs...)
			for _, m := range c.nodes {
				m.loop.check = never("default")
			}
			c.run()
			defer c.end()
			synctest.Wait()
			c.g.Expect(c.far.tried()).To(BeNumerically("<=", len(c.nodes)))
			c.g.Expect(c.pools()).To(HaveLen(1))
			c.g.Expect(c.pools()[0]).To(HaveSuffix(" 1 draining=false"))
			c.atRest()
		})
	}
}

// The life of a custom network: the first node does each step, once.
func TestTheLifeOfACustomNetwork(t *testing.T) {
	running(t, func(c *cluster) {
		step := func(want ...string) {
			c.atRest()
			c.g.Expect(c.pools()).To(Equal(append(want, "default 10.1.0.0/16 1 draining=false")))
		}
		c.network("blue", "10.5.0.0/16")
		step("blue 10.5.0.0/16 1 draining=false")
		c.remove(kv.CustomNetworkKey("blue"))
		step("blue 10.5.0.0/16 2 draining=true")
		c.network("blue", "10.6.0.0/16") // not what it was
		step("blue 10.5.0.0/16 2 draining=true")
		c.network("blue", "10.5.0.0/16")
		step("blue 10.5.0.0/16 3 draining=false")
		c.remove(kv.CustomNetworkKey("blue")) // and back before a node has read it
		c.network("blue", "10.5.0.0/16")
		c.atRest()
		c.g.Expect(c.pools()[0]).To(Or(Equal("blue 10.5.0.0/16 3 draining=false"), Equal("blue 10.5.0.0/16 5 draining=false")))
		c.remove(kv.PoolKey("blue")) // which is not allowed
		c.atRest()
		c.g.Expect(c.pools()[0]).To(Or(Equal("blue 10.5.0.0/16 3 draining=false"), Equal("blue 10.5.0.0/16 5 draining=false")))
	})
}

// Several are deleted at once: all of their pools drain.
func TestManyNetworksGo(t *testing.T) {
	running(t, func(c *cluster) {
		for i := range 20 {
			c.network(fmt.Sprint("net", i), fmt.Sprintf("10.%d.0.0/16", 128+i))
		}
		c.atRest()
		for i := range 20 {
			c.remove(kv.CustomNetworkKey(fmt.Sprint("net", i)))
		}
		c.atRest()
		c.g.Expect(c.pools()).To(HaveLen(21))
		c.g.Expect(c.pools()[0]).To(Equal("default 10.1.0.0/16 1 draining=false"))
		for _, p := range c.pools()[1:] {
			c.g.Expect(p).To(HaveSuffix(" 2 draining=true"))
		}
	})
}

// One goes and one comes in the same transaction: both is done.
func TestANetworkComesAsAnotherGoes(t *testing.T) {
	running(t, func(c *cluster) {
		c.network("blue", "10.5.0.0/16")
		c.atRest()
		c.txn(kvdb.Delete(kv.CustomNetworkKey("blue")), kvdb.Put(kv.CustomNetworkKey("red"), marshal(c.g, network("red", "10.6.0.0/16"))))
		c.atRest()
		c.g.Expect(c.pools()).To(Equal([]string{"blue 10.5.0.0/16 2 draining=true", "default 10.1.0.0/16 1 draining=false", "red 10.6.0.0/16 1 draining=false"}))
	})
}

// All that the nodes share is deleted at once: that does not mean to drain anything.
func TestAWipeUnderWay(t *testing.T) {
	running(t, func(c *cluster) {
		c.network("blue", "10.5.0.0/16")
		c.atRest()
		before := c.pools()
		var ops []kvdb.Op
		kvs, _, err := c.inner.List(context.Background(), kv.ClusterPrefix)
		c.g.Expect(err).NotTo(HaveOccurred())
		for _, x := range kvs {
			ops = append(ops, kvdb.Delete(x.Key))
		}
		c.txn(ops...)
		c.atRest()
		c.g.Expect(c.pools()).To(Equal(before))
	})
}

// A deletion whose consequence could not be written is not forgotten, unless the
// network is there again.
func TestADeletionWhileTheStoreFails(t *testing.T) {
	for name, want := range map[string]string{"it stays away": "blue 10.5.0.0/16 2 draining=true", "it comes back": "blue 10.5.0.0/16 1 draining=false"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 1, "{}")
				c.run()
				defer c.end()
				c.network("blue", "10.5.0.0/16")
				c.atRest()
				way := faulty.New(c.inner, faulty.On(faulty.Txn, 1, faulty.Fail()))
				c.far.comes(way) // the watches stay
				c.remove(kv.CustomNetworkKey("blue"))
				synctest.Wait()
				c.g.Expect(way.Count()).To(Equal(1))
				if name == "it comes back" {
					c.network("blue", "10.5.0.0/16")
				}
				c.atRest()
				c.g.Expect(c.pools()[0]).To(Equal(want))
			})
		})
	}
}

// Two networks that share addresses, of which one node has seen both and another
// one the later one only, when both write.
func TestTwoNetworksAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, "{}")
		c.run()
		defer func() { c.end() }()
		c.atRest()
		slow, fast := c.nodes[0], c.nodes[1]
		fast.far.goes()
		slow.far.goes()
		c.network("red", "10.5.0.0/16")
		slow.far.comes(&intruder{Store: c.far, intrude: func() {
			c.network("blue", "10.5.0.0/17")
			c.remove(kv.CustomNetworkKey("red")) // so that only the other one is there
			fast.far.comes(c.far)
			time.Sleep(2 * time.Minute)
			c.network("red", "10.5.0.0/16")
		}})
		time.Sleep(3 * time.Minute)
		c.atRest()
		c.g.Expect(c.pools()).To(Equal([]string{"blue 10.5.0.0/17 1 draining=false", "default 10.1.0.0/16 1 draining=false"}))
	})
}

// Of networks that share addresses one gets them, however they come: never two.
func TestNetworksThatOverlap(t *testing.T) {
	for seed := range uint64(20) {
		running(t, func(c *cluster) {
			rnd := rand.New(rand.NewPCG(seed, 4))
			for i := range 6 {
				for _, m := range c.nodes {
					switch rnd.IntN(4) {
					case 0:
						m.far.breaks() // it reads everything again
					case 1:
						m.far.goes()
					case 2:
						m.far.comes(c.far)
					}
				}
				c.network(fmt.Sprint("net", rnd.IntN(9)), fmt.Sprintf("10.%d.0.0/%d", 64+rnd.IntN(4), 14+rnd.IntN(3)))
				if i%2 == 0 {
					time.Sleep(time.Duration(rnd.IntN(2000)) * time.Millisecond)
				}
			}
			for _, m := range c.nodes {
				m.far.comes(c.far)
			}
			c.atRest()
			all := c.pools()
			for i, p := range all {
				for _, q := range all[:i] {
					x, y := netip.MustParsePrefix(strings.Fields(p)[1]), netip.MustParsePrefix(strings.Fields(q)[1])
					c.g.Expect(x.Overlaps(y)).To(BeFalse(), "%s and %s", p, q)
				}
			}
		})
	}
}

// A store that comes back empty or older gets back what any of the nodes knows,
// before a loop sees it. What the nodes know differently they agree on.
func TestAStoreThatComesBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(*cluster)
		store  func(*cluster)
		want   []string
	}{
		{"empty", func(*cluster) {}, func(*cluster) {}, []string{"default 10.1.0.0/16 4 draining=true", "pods-2 10.2.0.0/16 1 draining=false"}},
		{"older", func(*cluster) {}, func(c *cluster) { c.pool("default", "10.1.0.0/16", 2, true) },
			[]string{"default 10.1.0.0/16 4 draining=true", "pods-2 10.2.0.0/16 1 draining=false"}},
		{"as another one", func(*cluster) {}, func(c *cluster) { c.pool("default", "10.7.0.0/16", 1, false); c.network("blue", "10.8.0.0/16") },
			[]string{"blue 10.8.0.0/16 1 draining=false", "default 10.1.0.0/16 4 draining=true", "pods-2 10.2.0.0/16 1 draining=false"}},
		{"with a network whose pool it lost", func(c *cluster) { c.network("blue", "10.8.0.0/16") }, func(c *cluster) { c.network("blue", "10.8.0.0/16") },
			[]string{"blue 10.8.0.0/16 1 draining=false", "default 10.1.0.0/16 4 draining=true", "pods-2 10.2.0.0/16 1 draining=false"}},
		{"without the network", func(c *cluster) { c.network("blue", "10.8.0.0/16") }, func(*cluster) {},
			[]string{"blue 10.8.0.0/16 1 draining=false", "default 10.1.0.0/16 4 draining=true", "pods-2 10.2.0.0/16 1 draining=false"}},
		{"when some of the nodes have not seen the last", func(c *cluster) {
			c.atRest()
			for _, m := range c.nodes[1:] {
				m.far.goes()
			}
			c.pool("default", "10.1.0.0/16", 9, true)
			time.Sleep(time.Minute)
			for _, m := range c.nodes[1:] {
				m.far.comes(c.far)
			}
		}, func(*cluster) {}, []string{"default 10.1.0.0/16 9 draining=true", "pods-2 10.2.0.0/16 1 draining=false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			running(t, func(all *cluster) {
				all.pool("pods-2", "10.2.0.0/16", 1, false)
				all.pool("default", "10.1.0.0/16", 4, true)
				c.before(all)
				time.Sleep(2 * time.Second)
				for _, m := range all.nodes {
					m.loop.set(func(l *loop) { l.check = never("default", "pods-2") })
				}
				all.replace(mem.New())
				c.store(all)
				synctest.Wait()
				all.atRest()
				all.g.Expect(all.pools()).To(Equal(c.want))
			})
		})
	}
}

// After any faults the nodes of a cluster end in one state, and stop writing.
func TestNodesDoNotOverwriteEachOtherForever(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			running(t, func(c *cluster) {
				rnd := rand.New(rand.NewPCG(seed, 5))
				backup := mem.New()
				for range 40 {
					n := rnd.IntN(4)
					one := c.nodes[rnd.IntN(len(c.nodes))].far
					switch rnd.IntN(12) {
					case 0:
						one.goes()
					case 1:
						one.comes(c.far)
					case 2:
						one.breaks()
					case 3:
						c.replace(mem.New())
					case 4:
						c.replace(backup)
						fallthrough
					case 5:
						var err error
						backup, err = copyOf(c.inner)
						c.g.Expect(err).NotTo(HaveOccurred())
					case 6, 7:
						c.network(fmt.Sprint("net", n), fmt.Sprintf("10.%d.0.0/16", 64+rnd.IntN(6)))
					case 8:
						c.remove(kv.CustomNetworkKey(fmt.Sprint("net", n)))
					case 9:
						c.remove(kv.PoolKey([]string{"default", "pods-1", "net1", "net2"}[n]))
					case 10:
						c.pool(fmt.Sprint("pods-", n), fmt.Sprintf("10.%d.0.0/16", 2+n), uint64(rnd.IntN(9)+1), rnd.IntN(2) == 0)
					case 11:
						time.Sleep(time.Duration(rnd.IntN(3000)) * time.Millisecond)
					}
				}
				for _, m := range c.nodes {
					m.far.comes(c.far)
				}
				c.atRest()
			})
		})
	}
}
