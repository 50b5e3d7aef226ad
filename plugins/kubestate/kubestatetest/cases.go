// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestatetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// fill creates one object of each kind.
func (x *harness) fill() {
	x.node(thisNode, "10.1.1.0/24")
	x.node(otherNode, "10.1.2.0/24")
	x.pod(thisNode, "a", "10.1.1.2")
	x.pod(otherNode, "b", "10.1.2.2")
	x.network("blue", "10.5.0.0/16")
	x.config(thisNode, "192.168.16.1")
	x.config(otherNode, "192.168.16.2")
	x.pool("p", 3)
	x.record(1, thisNode)
	x.record(2, otherNode)
}

// cases returns all cases.
func cases() map[string]func(*harness) {
	all := map[string]func(*harness){
		"a snapshot and then changes": func(x *harness) {
			x.fill()
			x.run()
			x.comes()
			x.pod(thisNode, "c", "10.1.1.3")
			x.pod(thisNode, "a", "10.1.1.4")
			x.network("red", "10.6.0.0/16")
			x.noNetwork("blue")
			x.config(thisNode, "192.168.16.3")
			x.node(thisNode, "10.1.1.0/24")
			x.pool("p", 4)
			x.record(3, "node-c")
			x.comes()
			x.noPod(thisNode, "a")
			x.noConfig(thisNode)
			x.noNode(thisNode)
			x.comes()
			remote, local := x.loop.snapshots()
			x.Expect([]int{remote, local}).To(Equal([]int{1, 0}))
		},
		"nothing yet": func(x *harness) {
			x.run()
			x.comes()
			x.fill()
			x.comes()
		},
		"objects of another node": func(x *harness) {
			x.fill()
			x.run()
			x.comes()
			for i := range 5 {
				x.pod(otherNode, "q", fmt.Sprintf("10.1.2.%d", i+10))
				x.config(otherNode, fmt.Sprintf("192.168.16.%d", i+10))
			}
			x.noPod(otherNode, "q")
			x.pod(thisNode, "last", "10.1.1.9")
			x.comes()
		},
		"a node that is created again": func(x *harness) {
			x.node(thisNode, "10.1.1.0/24")
			x.run()
			x.comes()
			before := x.loop.uid()
			x.Expect(before).NotTo(BeEmpty())
			x.noNode(thisNode)
			x.node(thisNode, "10.1.1.0/24")
			x.Eventually(x.loop.uid, patience).ShouldNot(Or(Equal(before), BeEmpty()))
			x.comes()
		},
	}
	maps.Copy(all, endings())
	for seed := range uint64(3) {
		all[fmt.Sprint("at random ", seed)] = func(x *harness) { random(x, rand.New(rand.NewPCG(seed, 5))) }
	}
	return all
}

// endings returns the cases in which the store fails.
func endings() map[string]func(*harness) {
	return map[string]func(*harness){
		"watches that end": func(x *harness) {
			x.fill()
			x.run()
			for i, end := range []func(){x.world.BreakWatches, x.world.CompactWatches, x.world.BreakWatches} {
				x.comes()
				end()
				x.pod(thisNode, "a", fmt.Sprintf("10.1.1.%d", i+20))
				x.network("red", fmt.Sprintf("10.%d.0.0/16", i+20))
			}
			x.comes()
		},
		"the store is away": func(x *harness) {
			x.fill()
			x.run()
			x.comes()
			x.world.Cut()
			x.pod(thisNode, "a", "10.1.1.30")
			x.noNetwork("blue")
			x.Eventually(func() bool { return x.source.Status().Connected }, patience).Should(BeFalse())
			x.world.Heal()
			x.comes()
		},
		"a start without the store": func(x *harness) {
			x.fill()
			x.run()
			x.comes()
			x.halt()
			x.world.Cut()
			before := maps.Clone(x.want)
			x.pod(thisNode, "a", "10.1.1.30")
			x.noNetwork("blue")
			after := x.want
			x.want = before
			x.run()
			x.comes() // as the mirror has it
			_, local := x.loop.snapshots()
			x.Expect(local).To(Equal(1))
			x.want = after
			x.world.Heal()
			x.comes()
		},
		"a resync on demand": func(x *harness) {
			x.run()
			x.comes()
			x.fill()
			x.Expect(x.source.Resync(x.t.Context())).To(Succeed())
			x.comes()
		},
		"a store that lacks pools": func(x *harness) {
			x.keep = []string{"default"}
			x.run()
			x.pools[kubestate.Pools+" "+kv.PoolKey("default")] = "1"
			x.comes()
			x.pool("p", 3)
			x.comes()
			x.write(kvdb.Delete(kv.PoolKey("p"))) // no administrator does
			x.comes()
			x.Eventually(func() (bool, error) {
				_, found, err := x.world.Store().Get(x.t.Context(), kv.PoolKey("p"))
				return found, err
			}, patience).Should(BeTrue())
			x.comes()
		},
		"an older store": older,
		"many at once":   many,
	}
}

// older restores an earlier state of the store: known pools are written again, the
// other objects stay in the restored state.
func older(x *harness) {
	x.fill()
	x.run()
	x.comes()
	restore := x.world.Backup()
	if restore == nil {
		x.t.Skip("this world cannot be restored")
	}
	before := maps.Clone(x.want)
	x.pool("p", 7)
	x.pool("q", 1)
	x.pod(thisNode, "later", "10.1.1.77")
	x.noNetwork("blue")
	x.comes()
	restore()
	x.want = before
	x.comes()
	x.pod(thisNode, "a", "10.1.1.78")
	x.comes()
}

// many makes changes while the Source takes snapshots.
func many(x *harness) {
	x.run()
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(x.t.Context())
	work.Go(func() {
		for ctx.Err() == nil {
			_ = x.source.Resync(ctx)
		}
	})
	for i := range 30 {
		x.pod(thisNode, fmt.Sprint("p", i%4), fmt.Sprintf("10.1.1.%d", i+1))
		x.pool("p", i+1)
		x.network("blue", fmt.Sprintf("10.%d.0.0/16", i+1))
		if i%3 == 0 {
			x.noPod(thisNode, fmt.Sprint("p", i%4))
		}
	}
	cancel()
	work.Wait()
	x.comes()
}

// random makes random changes and faults.
func random(x *harness, rnd *rand.Rand) {
	x.keep = []string{"default"}
	x.pools[kubestate.Pools+" "+kv.PoolKey("default")] = "1"
	x.run()
	x.comes()
	for range 40 {
		switch rnd.IntN(20) {
		default:
			x.change(rnd)
		case 0:
			x.world.BreakWatches()
		case 1:
			x.world.CompactWatches()
		case 2:
			x.world.Cut()
			for range rnd.IntN(4) {
				x.change(rnd)
			}
			x.world.Heal()
		case 3:
			ctx, cancel := context.WithCancel(x.t.Context())
			x.Expect(x.source.Dispatch(ctx)).To(Succeed())
			cancel()
		case 4:
			x.pool(fmt.Sprint("x", rnd.IntN(2)), x.generation())
		case 5:
			x.comes()
		case 6:
			x.halt()
			x.run()
		}
	}
	x.comes()
}

// generation returns one that no pool has had.
func (x *harness) generation() int {
	x.count++
	return 1000 * x.count
}
