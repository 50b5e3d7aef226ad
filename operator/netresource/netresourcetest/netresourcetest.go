// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package netresourcetest checks that a provider keeps the contract of netresource.Provider, as
// the manager relies on it. The provider must keep it also while the cloud behind it
// throttles, hangs, fails, loses answers and shows old readings.
//
// A test describes the provider by a function that makes worlds. A World is one cloud with
// machines of its own: the provider reaches it through whatever injects the faults
// (internal/testkit/clouds/faultproxy for an HTTP API), and World.Truth reads it directly. Each
// check makes a world, and calls the provider in the order in which the manager does. The
// last checks are campaigns: a real manager, agents that lease addresses and give them back,
// a storm of faults, and managers that take over from each other. At the end cloud and
// objects must agree, no machine may have another one's address, and nothing that the
// provider has created may be left without a machine.
//
// A check fails with an error, also if the provider panics or does not return. A check that
// the world has no means for is skipped with its reason: the error wraps
// errors.ErrUnsupported.
//
// The suite waits with package time: it runs with real servers, and in a bubble of
// testing/synctest with a cloud in memory.
//
// Example: in a test of the provider,
//
//	netresourcetest.Run(t, netresourcetest.Provider{
//		New: func(ctx context.Context, s netresourcetest.Shape) (*netresourcetest.World, error) {
//			proxy, url, err := faultproxy.Start(faultproxy.Config{
//				Target: server.URL, Dialect: faultproxy.OpenStack(),
//				Bucket: 120, Refill: 20, Stale: 2 * time.Second,
//			})
//			...
//			return &netresourcetest.World{
//				Provider: func() (netresource.Provider, error) {
//					return cloudpool.New(cloudpool.Config{Cloud: cloudOver(url), Consistency: 3 * time.Second, OrphanAge: 5 * time.Second}), nil
//				},
//				Machine: createMachine, Plan: proxy.SetPlan, Truth: portsOf(server.URL),
//				Close: func() { proxy.Close() },
//			}, nil
//		},
//		Unit: 1, Lag: 3 * time.Second, Deadline: 5 * time.Second,
//		Limits: netresourcetest.Limits{Interfaces: 3, Units: 6},
//	})
package netresourcetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/operator/netresource"
)

// Plan returns the outcome of a request to the cloud.
type Plan = faultproxy.Plan

// Provider describes the provider under test.
type Provider struct {
	// New makes a world, or returns an error that wraps errors.ErrUnsupported if the cloud
	// cannot have that shape.
	New func(ctx context.Context, s Shape) (*World, error)
	// Unit is the number of addresses of the smallest unit that the provider gives:
	// 1, or the size of a prefix.
	Unit int
	// Limits are those of each machine.
	Limits Limits
	// Lag limits the time for which a reading of the cloud may show the state before a
	// change. It is the provider's own setting as well.
	Lag time.Duration
	// Deadline limits a call that the cloud may leave unanswered; 0: 10 seconds.
	Deadline time.Duration
	// Patience limits a call whose context has ended; 0: 30 seconds.
	Patience time.Duration
	// Recovery limits the time that the provider may take until cloud and objects agree
	// after all faults have ended; 0: 5 minutes.
	Recovery time.Duration
	// Parallel makes Run run the checks at the same time. They wait for Lag most of the
	// time. New must permit that.
	Parallel bool
	// Slow shortens, below effort.Nightly, what a real server takes minutes for: faults hit each
	// fourth request of a call, and a campaign has eight steps.
	Slow bool
	// Rounds of the campaign, and its seed. Run sets both by package effort; 0 rounds: 1.
	Rounds int
	Seed   uint64
	// Log gets what manager and checks report; nil: nothing does.
	Log *slog.Logger
}

// Shape holds a check's needs of a world.
type Shape struct {
	// Units is the number of units that the subnet of all machines has at most, of which
	// interfaces may need some themselves. If it is 0, there are at least twelve for each
	// of three machines.
	Units int
	// DualStack makes the provider give addresses of both families.
	DualStack bool
}

// World is one cloud with machines of its own.
type World struct {
	// Provider returns a provider over the cloud. Each call stands for another process of
	// the operator.
	Provider func() (netresource.Provider, error)
	// Machine creates the machine of a node and returns its ID; nil: there are none.
	Machine func(ctx context.Context, node string) (string, error)
	// Plan replaces the plan of faults of the cloud's API; nil ends all planned faults.
	// The field is nil if there are no faults.
	Plan func(Plan)
	// Truth reads the cloud without faults, and without the provider. It is nil if the
	// NetResourceSets are all that there is.
	Truth func(ctx context.Context) (Truth, error)
	// Close removes the world; may be nil.
	Close func()
}

// Limits are those of a machine.
type Limits struct {
	Interfaces int // of a machine, its first one included; 0: there are no interfaces
	Units      int // of an interface: addresses or prefixes for pods, of one family
}

// Truth holds the real state of a cloud.
type Truth struct {
	Interfaces []Interface
	// Orphans names what the provider has created and no machine has: interfaces,
	// reservations of prefixes.
	Orphans []string
}

// Interface is an interface of a machine.
type Interface struct {
	ID, Instance string
	Blocks       []netip.Prefix // for pods: without the interface's own addresses
}

// Check is one part of the contract.
type Check struct {
	Name  string
	shape Shape
	run   func(*stage) error
}

// Run runs all checks.
func Run(t *testing.T, p Provider) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if p.Parallel {
				t.Parallel()
			}
			c.Test(t, p)
		})
	}
}

// Test runs the check as a test, with as many rounds as the effort asks for.
func (c Check) Test(t *testing.T, p Provider) {
	t.Helper()
	if p.Rounds == 0 {
		p.Rounds = effort.Times(t, effort.Nightly)
	}
	if effort.Level(t) >= effort.Nightly {
		p.Slow = false
	}
	p.Seed = effort.Seed(t)
	switch err := c.Run(p); {
	case errors.Is(err, errors.ErrUnsupported):
		t.Skipf("NOT RUN: %v", err)
	case err != nil:
		t.Error(err)
	}
}

// Checks returns all checks.
func Checks() []Check {
	return []Check{
		{Name: "Read returns when it has begun", run: begun},
		{Name: "a node that has nothing has an empty map", run: empty},
		{Name: "no more addresses are taken than are asked for", run: limited},
		{Name: "nodes have different addresses", run: disjoint},
		{Name: "addresses are released once, and again", run: released},
		{Name: "used addresses are not chosen for release", run: unused},
		{Name: "calls return when their context has ended", run: ended},
		{Name: "a machine is filled, and not above its limits", run: filled},
		{Name: "a full subnet is an error", shape: Shape{Units: 16}, run: fullSubnet},
		{Name: "a node of two families has as many addresses of both", shape: Shape{DualStack: true}, run: dualStack},
		{Name: "calls end with their deadline while the cloud hangs", run: hanging},
		{Name: "a call that fails at any request leaves nothing behind", run: failing(faultproxy.Fail)},
		{Name: "a call whose answer is lost at any request leaves nothing behind", run: failing(faultproxy.Lose)},
		{Name: "a call that is throttled at any request leaves nothing behind", run: failing(faultproxy.Throttle)},
		{Name: "a call that hangs at any request leaves nothing behind", run: failing(faultproxy.HangDone)},
		{Name: "old readings undo nothing", run: stale},
		{Name: "a throttled call does nothing and says so", run: throttled},
		{Name: "another process takes over", run: takenOver},
		{Name: "a campaign", run: campaign(1)},
		{Name: "a campaign of two families", shape: Shape{DualStack: true}, run: campaign(2)},
	}
}

// Run runs the check in a new world.
func (c Check) Run(p Provider) error {
	p = p.withDefaults()
	ctx := context.Background()
	w, err := p.New(ctx, c.shape)
	if err != nil {
		return fmt.Errorf("check %q: make a world: %w", c.Name, err)
	}
	if w.Close != nil {
		defer w.Close()
	}
	s := &stage{p: p, world: w, log: p.Log, instances: map[string]string{}}
	if err := errors.Join(s.machines(ctx), s.start()); err != nil {
		return fmt.Errorf("check %q: %w", c.Name, err)
	}
	if err := within(10*p.Patience+p.Recovery*time.Duration(1+p.Rounds), func() error { return c.run(s) }); err != nil {
		return fmt.Errorf("check %q: %w", c.Name, err)
	}
	return nil
}

func (p Provider) withDefaults() Provider {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&p.Patience, 30 * time.Second}, {&p.Deadline, 10 * time.Second}, {&p.Recovery, 5 * time.Minute}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	p.Rounds = max(p.Rounds, 1)
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	return p
}

// start makes a provider over the world.
func (s *stage) start() (err error) {
	if s.impl, err = s.world.Provider(); err != nil {
		return fmt.Errorf("make a provider: %w", err)
	}
	return nil
}

// within returns the error of do, also if it panics or does not return in time.
func within(limit time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("the provider has panicked: %v", p)
			}
		}()
		done <- do()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("the provider does not return within %s", limit)
	}
}
