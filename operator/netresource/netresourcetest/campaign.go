// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// The campaign's nodes, its steps in a round, and the units that pods of a node use at most.
const (
	campaignNodes     = 3
	campaignSteps     = 30
	campaignStepsSlow = 8
	campaignUnits     = 10
)

// fleet is an API server, a manager that may be replaced, and the agents of all nodes.
type fleet struct {
	stage    *stage
	families int // of a pod
	api      *memapi.API
	rng      *rand.Rand

	mu      sync.Mutex
	manager *netresource.NetResourceSetManager
	term    int // of the newest manager
	agents  map[string]*agent
	failed  error // of agents and of writes to the API
}

// campaign returns a check that lets pods come and go on three nodes while the cloud fails
// and managers take over from each other. A pod has an address of each of so many families.
func campaign(families int) func(*stage) error {
	return func(s *stage) error {
		for round := range s.p.Rounds {
			f := &fleet{
				stage: s, families: families, api: memapi.New(), agents: map[string]*agent{},
				rng: rand.New(rand.NewPCG(s.p.Seed, uint64(round))),
			}
			f.api.Changed = f.changed
			err := f.run()
			if e := f.close(); err == nil {
				err = e
			}
			if err != nil {
				return fmt.Errorf("round %d of seed %d (CADASTRE_TEST_SEED): %w", round, s.p.Seed, err)
			}
		}
		return nil
	}
}

func (f *fleet) run() error {
	if err := f.lead(); err != nil {
		return err
	}
	for i := range campaignNodes {
		if err := f.add(string(rune('a' + i))); err != nil {
			return err
		}
	}
	f.storm(true)
	steps := campaignSteps
	if f.stage.p.Slow {
		steps = campaignStepsSlow
	}
	for range steps {
		if err := f.step(); err != nil {
			return err
		}
	}
	f.storm(false)
	if err := f.stage.eventually("compare cloud and objects", f.reconciled); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f.agents)) {
		f.use(name, 0)
	}
	if err := f.stage.eventually("compare cloud and objects without pods", f.reconciled); err != nil {
		return err
	}
	if f.stage.world.Truth == nil {
		return nil
	}
	return f.stage.eventually("wait until there are no orphans", f.noOrphans)
}

// storm begins or ends the faults of the cloud.
func (f *fleet) storm(on bool) {
	switch plan := f.stage.world.Plan; {
	case plan == nil:
	case on:
		plan(faultproxy.Storm(faultproxy.Rates{
			Lost: .05, Hung: .01, Throttled: .02, Burst: .02, BurstLength: 5,
		}, rand.New(rand.NewPCG(f.rng.Uint64(), 0)).Float64))
	default:
		plan(nil)
	}
}

// step changes the number of pods of a node, or lets another manager take over, and then
// compares the cloud with the leases of all agents.
func (f *fleet) step() error {
	if f.rng.IntN(6) == 0 {
		if f.rng.IntN(2) == 0 {
			if err := f.close(); err != nil {
				return err
			}
		}
		if err := f.lead(); err != nil {
			return err
		}
	}
	name := string(rune('a' + f.rng.IntN(campaignNodes)))
	f.use(name, f.rng.IntN(campaignUnits*f.stage.p.Unit+1))
	pace := max(f.stage.p.Lag, time.Second)
	time.Sleep(time.Duration(f.rng.Float64() * float64(pace)))
	return f.safe()
}

// lead starts a manager with a provider of its own. An earlier one learns by its fence that
// it does not lead any more, and is closed when the new one works.
func (f *fleet) lead() error {
	impl, err := f.stage.world.Provider()
	if err != nil {
		return fmt.Errorf("make a provider: %w", err)
	}
	f.mu.Lock()
	before := f.manager
	f.term++
	term, names := f.term, slices.Sorted(maps.Keys(f.agents))
	f.mu.Unlock()
	m, err := netresource.New(f.config(impl, term))
	if err != nil {
		return fmt.Errorf("make a manager: %w", err)
	}
	f.mu.Lock()
	f.manager = m
	f.mu.Unlock()
	for _, name := range names {
		object, err := f.api.Get(name)
		if err == nil {
			err = m.Update(object)
		}
		if err != nil {
			return fmt.Errorf("pass node %s to a manager: %w", name, err)
		}
	}
	err = f.stage.eventually("start a manager", func() error { return m.Start(context.Background()) })
	if before != nil {
		err = errors.Join(err, f.ended(before))
	}
	return err
}

func (f *fleet) config(impl netresource.Provider, term int) netresource.Config {
	lag, interval := f.stage.p.Lag, max(f.stage.p.Lag, time.Second)
	if lag == 0 {
		lag = -1
	}
	return netresource.Config{
		Provider:         impl,
		API:              f.api,
		Log:              f.stage.log,
		Workers:          campaignNodes,
		ReleaseExcess:    true,
		ReleaseDelay:     -1,
		PrefixDelegation: f.stage.p.Unit > 1,
		Consistency:      lag,
		ResyncInterval:   interval,
		RetryInterval:    interval / 4,
		RetryMost:        interval,
		CallTimeout:      f.stage.p.Deadline,
		ReadTimeout:      f.stage.p.Deadline,
		Random:           func() float64 { return .5 },
		Since:            time.Now(),
		Fence: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.term != term {
				return fmt.Errorf("another manager leads in term %d: this one led in term %d", f.term, term)
			}
			return nil
		},
	}
}

// close ends the manager.
func (f *fleet) close() error {
	f.mu.Lock()
	m := f.manager
	f.manager = nil
	f.mu.Unlock()
	if m == nil {
		return nil
	}
	return f.ended(m)
}

// ended closes a manager. Its calls may take some time to delete what they have half done.
func (f *fleet) ended(m *netresource.NetResourceSetManager) error {
	return f.stage.eventually("close a manager", m.Close)
}

// add creates a node with its agent.
func (f *fleet) add(name string) error {
	object := f.stage.object(name)
	object.Spec.IPAM = v1alpha1.IPAMSpec{PreAllocate: f.stage.p.Unit}
	f.mu.Lock()
	f.agents[name] = newAgent(name, f.families)
	f.mu.Unlock()
	if _, err := f.api.Create(object); err != nil {
		return fmt.Errorf("create the object of node %s: %w", name, err)
	}
	return nil
}

// changed passes an object to the manager and to its agent.
func (f *fleet) changed(object *v1alpha1.NetResourceSet) {
	f.mu.Lock()
	m, a := f.manager, f.agents[object.Name]
	f.mu.Unlock()
	if m != nil {
		if err := m.Update(object); err != nil && !errors.Is(err, netresource.ErrClosed) {
			f.mu.Lock()
			f.failed = errors.Join(f.failed, fmt.Errorf("pass node %s to the manager: %w", object.Name, err))
			f.mu.Unlock()
		}
	}
	if a != nil && a.answers(object) {
		f.act(a)
	}
}

// use changes the number of pods of a node.
func (f *fleet) use(name string, pods int) {
	f.mu.Lock()
	a := f.agents[name]
	f.mu.Unlock()
	a.mu.Lock()
	a.want = pods
	a.mu.Unlock()
	f.act(a)
}

func (f *fleet) act(a *agent) {
	if err := f.api.Change(a.name, a.act); err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failed = errors.Join(f.failed, fmt.Errorf("write what the agent of node %s answers: %w", a.name, err))
	}
}

// safe returns an error if an agent has leased an address that its machine does not have.
func (f *fleet) safe() error {
	f.mu.Lock()
	failed := f.failed
	f.mu.Unlock()
	if failed != nil {
		return failed
	}
	before := f.leases()
	all, _, err := f.stage.truth()
	if err != nil {
		return err
	}
	for name, leases := range f.leases() {
		for at := range leases {
			has := func(p netip.Prefix) bool { return p.Contains(at) }
			if f.stage.world.Truth != nil && before[name][at] &&
				!slices.ContainsFunc(all[f.stage.instance(name)], has) {
				return fmt.Errorf("node %s has leased %s: its machine has %v", name, at, all[f.stage.instance(name)])
			}
			for other, others := range before {
				if other != name && others[at] && before[name][at] {
					return fmt.Errorf("nodes %s and %s have both leased %s", name, other, at)
				}
			}
		}
	}
	return nil
}

func (f *fleet) leases() map[string]map[netip.Addr]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]map[netip.Addr]bool{}
	for name, a := range f.agents {
		all[name] = a.leased()
	}
	return all
}

// reconciled returns an error unless all pods have addresses, nothing is being released, and
// the pool of each object is what its machine has.
func (f *fleet) reconciled() error {
	if err := f.safe(); err != nil {
		return err
	}
	all, _, err := f.stage.truth()
	if err != nil {
		return err
	}
	pools := map[string]netip.Prefix{}
	for name, a := range f.agents {
		object, err := f.api.Get(name)
		if err != nil {
			return fmt.Errorf("read the object of node %s: %w", name, err)
		}
		if lacks := a.lacks(); lacks > 0 || len(object.Status.IPAM.ReleaseIPs) > 0 {
			return fmt.Errorf("node %s: %d pods lack an address, %d addresses are being released, error %q",
				name, lacks, len(object.Status.IPAM.ReleaseIPs), object.Status.IPAM.OperatorStatus.Error)
		}
		keys := slices.Sorted(maps.Keys(object.Spec.IPAM.Pool))
		for _, key := range keys {
			p, err := handshake.ParseKey(key)
			if err != nil {
				return fmt.Errorf("node %s: key %q %w", name, key, err)
			}
			for other, q := range pools {
				if p.Overlaps(q) {
					return fmt.Errorf("node %s has %s in its pool, and %s too", name, key, other)
				}
			}
			pools[name+" "+key] = p
		}
		if f.stage.world.Truth != nil {
			if err := same(name, keys, all[f.stage.instance(name)]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fleet) noOrphans() error {
	_, t, err := f.stage.truth()
	if err == nil && len(t.Orphans) > 0 {
		err = fmt.Errorf("no machine has %v", t.Orphans)
	}
	return err
}
