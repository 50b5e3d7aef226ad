// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/cloud/budget"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// demand returns the number of pods of a node at a minute.
type demand func(node, minute int) int

func demands() map[string]demand {
	return map[string]demand{
		"step": func(_, minute int) int {
			if minute < 5 || minute >= 25 {
				return 5
			}
			return 35
		},
		"ramp": func(node, minute int) int {
			up := min(minute, 40-minute)
			return max(0, up*2+node%5)
		},
		"churn": func(node, minute int) int {
			rng := rand.New(rand.NewPCG(uint64(node), uint64(minute/4)))
			return 12 + rng.IntN(18)
		},
	}
}

// sample is one minute of all nodes.
type sample struct {
	calls    int // that change something
	attached int
	used     int
	lacking  int // pods without an address
}

// figures holds the results of a simulation.
type figures struct {
	samples  []sample
	assigns  int
	releases int
	lacking  int // pods without an address at the end of a minute, in all
	most     int // calls of a minute
}

const simulatedMinutes = 40

// limitedCloud is a cloud whose provider has a budget of changes.
type limitedCloud struct {
	*memcloud.Cloud
	budget *budget.Budget
}

func (l *limitedCloud) Assign(ctx context.Context, instance, iface string, want cloud.Want) ([]cloud.Block, error) {
	if err := l.budget.Take(ctx, "assign"); err != nil {
		return nil, err
	}
	return l.Cloud.Assign(ctx, instance, iface, want)
}

func (l *limitedCloud) Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error {
	if err := l.budget.Take(ctx, "unassign"); err != nil {
		return err
	}
	return l.Cloud.Unassign(ctx, instance, iface, blocks)
}

func (l *limitedCloud) CreateInterface(ctx context.Context, instance string, want cloud.NewInterface) (*cloud.Interface, error) {
	if err := l.budget.Take(ctx, "create"); err != nil {
		return nil, err
	}
	return l.Cloud.CreateInterface(ctx, instance, want)
}

// simulate runs 40 minutes of nodes under a demand, at a rate of calls in a second.
func simulate(t *testing.T, nodes int, qps float64, d demand, old bool) (f figures) {
	synctest.Test(t, func(t *testing.T) {
		config := netresource.Config{ReleaseExcess: true, Workers: 16, Log: quiet(), Random: rand.New(rand.NewPCG(1, 2)).Float64}
		config.Workers = 1 // Random is not for several at once
		if old {
			config = netresource.WithOldFormula(config)
		}
		machines := memcloud.New(memcloud.Config{
			Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/16")},
			Interfaces: 8, PerInterface: 16, Lag: 3 * time.Second,
		})
		limited := &limitedCloud{machines, budget.New(budget.Config{QPS: qps, Burst: 10, Now: time.Now})}
		config.Provider = cloudpool.New(cloudpool.Config{
			Cloud: limited, Pre: 8, Prefixes: true, Consistency: 3 * time.Second, Log: quiet(),
		})
		r := &rig{t: t, api: memapi.New(), cloud: machines, agents: map[string]*agent{}}
		r.api.Changed = r.changed
		r.start(config)
		for i := range nodes {
			r.add(nodeName(i), v1alpha1.IPAMSpec{MinAllocate: 30, PreAllocate: 8}).cool = 30 * time.Second
		}
		changes := func() int {
			c := r.cloud.Calls()
			return c["assign"] + c["unassign"] + c["create"]
		}
		before := 0
		for minute := range simulatedMinutes {
			for i := range nodes {
				r.agents[nodeName(i)].use(d(i, minute))
			}
			rest(30 * time.Second)
			for i := range nodes {
				r.agents[nodeName(i)].step() // what has cooled
			}
			rest(30 * time.Second)
			s := sample{calls: changes() - before}
			before += s.calls
			for i := range nodes {
				s.attached += len(r.cloud.Units(nodeName(i)))
				s.used += d(i, minute)
				s.lacking += r.agents[nodeName(i)].lacks()
			}
			f.samples = append(f.samples, s)
			f.lacking += s.lacking
			f.most = max(f.most, s.calls)
		}
		calls := r.cloud.Calls()
		f.assigns, f.releases = calls["assign"]+calls["create"], calls["unassign"]
		for i := range nodes {
			r.consistent(nodeName(i))
		}
		_ = r.manager.Close()
	})
	return f
}

// TestSimulations runs step, ramp and churn. With CADASTRE_PLOTS set it does so
// with 200 nodes, and draws what it has found into that folder.
func TestSimulations(t *testing.T) {
	plots := os.Getenv("CADASTRE_PLOTS")
	nodes := 10
	if plots != "" {
		nodes = 200
	}
	const qps = 10
	for name, d := range demands() {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			now, old := simulate(t, nodes, qps, d, false), simulate(t, nodes, qps, d, true)
			t.Logf("new: %d assigns, %d releases, most %d in a minute, %d pods lacking; old: %d, %d, %d, %d",
				now.assigns, now.releases, now.most, now.lacking, old.assigns, old.releases, old.most, old.lacking)
			g.Expect(now.most).To(BeNumerically("<=", qps*60+10), "within the budget")
			g.Expect(now.assigns).To(BeNumerically("<=", old.assigns), "never more calls than with the old formula")
			// The order of rounds decides how many addresses one release has: on a ramp both
			// formulas have the same excess, and one call more or less in some thirty.
			g.Expect(now.releases).To(BeNumerically("<=", old.releases+old.releases/10), "nor more releases")
			g.Expect(now.lacking).To(BeNumerically("<=", old.lacking))
			if plots != "" {
				text := plot(fmt.Sprintf("%d nodes, %s: at least 30 addresses, 8 free, at most %d calls a second", nodes, name, qps), now, old)
				g.Expect(os.WriteFile(filepath.Join(plots, "netresource-"+name+".svg"), []byte(text), 0o644)).To(Succeed())
			}
		})
	}
}

// BenchmarkRound is one round of a manager over nodes that lack nothing.
func BenchmarkRound(b *testing.B) {
	for _, nodes := range []int{1000, 10000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			c := netresource.Config{Workers: 4, Log: quiet(), ReleaseExcess: true}
			r := newRig(b, memcloud.Config{
				Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/12")},
				Interfaces: 2, PerInterface: 16,
			}, c)
			for i := range nodes {
				r.add(nodeName(i), v1alpha1.IPAMSpec{MinAllocate: 16, PreAllocate: 8})
			}
			full := func() bool {
				for i := range nodes {
					if r.level(nodeName(i))[0] != 16 {
						return false
					}
				}
				return true
			}
			NewWithT(b).Eventually(full, 4*time.Minute, time.Second).Should(BeTrue())
			_ = r.manager.Close()
			b.ResetTimer()
			for b.Loop() {
				r.manager.Resync(b.Context(), time.Now())
			}
		})
	}
}
