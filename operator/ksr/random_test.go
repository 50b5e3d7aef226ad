// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// chaos is a random script: objects come, change and go, while API server and
// store fail, forget and come back.
type chaos struct {
	*bench
	r      *rand.Rand
	stores *exchange
	faults *faulty.Store // the store as it is now
	foes   map[string]bool
}

func (c *chaos) name(prefix string) string { return fmt.Sprint(prefix, c.r.IntN(4)) }

// object does something to an object.
func (c *chaos) object() {
	cidr := fmt.Sprintf("10.%d.0.0/16", c.r.IntN(9))
	gone := c.r.IntN(3) == 0
	switch c.r.IntN(5) {
	case 0, 1:
		p := pod(c.name("ns"), c.name("pod"), []string{"", "node0", "node1", "node2"}[c.r.IntN(4)], cidr)
		if gone {
			c.remove(p)
		} else {
			c.world.put(p)
		}
	case 2:
		if n := node(c.name("node"), cidr); gone {
			c.remove(n)
		} else {
			c.world.put(n)
		}
	case 3:
		if n := network(c.name("net"), cidr); gone {
			c.remove(n)
		} else {
			c.world.put(n)
		}
	case 4:
		if n := nodeConfig(c.name("node"), cidr); gone {
			c.remove(n)
		} else {
			c.world.put(n)
		}
	}
}

// step does one thing, and what it is called.
func (c *chaos) step() string {
	steps := []struct {
		name string
		do   func()
	}{
		{"API server down", c.goDown},
		{"API server up", c.comeUp},
		{"watches break", c.breakWatches},
		{"no custom networks", func() { c.lose(v1alpha1.CustomNetworks, noSuchResource("x")) }},
		{"custom networks", func() { c.lose(v1alpha1.CustomNetworks, nil) }},
		{"store fails", func() {
			c.faults.Reset(faulty.Always(faulty.Txn, faulty.Fail()), faulty.Always(faulty.List, faulty.Fail()))
		}},
		{"store tears", func() { c.faults.Reset(faulty.Always(faulty.Txn, faulty.Tear())) }},
		{"store's watches break", func() { c.faults.Reset(faulty.Always(faulty.Watch, faulty.Cut(c.r.IntN(3)))) }},
		{"store is well", func() { c.faults.Reset() }},
		{"store is wiped", func() { c.exchange(nil) }},
		{"store comes back older", func() { c.exchange(c.older()) }},
		{"another process writes", c.foe},
		{"time", func() { advance(time.Duration(c.r.IntN(40)) * time.Second) }},
	}
	if c.r.IntN(2) == 0 {
		c.object()
		return "object"
	}
	s := steps[c.r.IntN(len(steps))]
	s.do()
	return s.name
}

// older is a part of what the store has.
func (c *chaos) older() map[string]string {
	all := c.has(c.faultless())
	maps.DeleteFunc(all, func(string, string) bool { return c.r.IntN(2) == 0 })
	return all
}

func (c *chaos) faultless() kvdb.Store {
	c.faults.Reset()
	return c.faults
}

func (c *chaos) exchange(all map[string]string) {
	inner := mem.New()
	var ops []kvdb.Op
	for key, value := range all {
		ops = append(ops, kvdb.Put(key, []byte(value)))
	}
	if len(ops) > 0 {
		c.writeTo(inner, ops...)
	}
	maps.DeleteFunc(c.foes, func(key string, _ bool) bool { _, kept := all[key]; return !kept })
	c.faults = faulty.New(inner)
	c.stores.replace(c.faults, c.r.IntN(2) == 0)
}

// foe changes what is stored, ours and others'.
func (c *chaos) foe() {
	s := c.faultless()
	keys := slices.Sorted(maps.Keys(c.has(s)))
	if len(keys) > 0 {
		key := keys[c.r.IntN(len(keys))]
		if !c.foes[key] {
			c.writeTo(s, kvdb.Delete(key))
		}
	}
	for _, key := range []string{"cluster/node/" + c.name("node"), "node/" + c.name("node") + "/pod/" + c.name("ns") + "/" + c.name("pod"), "cluster/network/" + c.name("net")} {
		if c.r.IntN(2) == 0 {
			c.writeTo(s, kvdb.Put(key, []byte("foe")))
		}
	}
	other := "cluster/pool/" + c.name("p")
	c.writeTo(s, kvdb.Put(other, []byte("x")))
	c.foes[other] = true
}

// TestRandomScripts: whatever has happened, once all is well the store has what
// the API server has, and foreign keys were not touched.
func TestRandomScripts(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, store *mem.Store) {
				faults := faulty.New(store)
				c := &chaos{r: rand.New(rand.NewPCG(seed, 4)), stores: newExchange(faults), faults: faults, foes: map[string]bool{}}
				defer c.stores.Close()
				c.bench = newBench(t, w, c.stores)
				c.start()
				advance(time.Second) // the clientset forgets what comes between a list and its watch
				var script []string
				for range 3 {
					for range 40 {
						script = append(script, c.step())
						if c.r.IntN(2) == 0 {
							advance(time.Duration(c.r.IntN(1000)) * time.Millisecond)
						}
					}
					c.faultless()
					c.comeUp()
					c.lose(v1alpha1.CustomNetworks, nil)
					advance(15 * time.Minute)
					more := map[string]string{}
					for key := range c.foes {
						more[key] = "x"
					}
					c.expectReflected(c.stores, more, "after %q", script)
					c.Expect(c.Status().Connected).To(BeTrue())
					c.Expect(c.Status().rejected).To(BeEmpty())
				}
				c.Expect(c.stop()).To(Succeed())
			})
		})
	}
}
