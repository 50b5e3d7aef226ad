// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest"
)

// The properties of the cloud in memory.
const (
	lag          = 2 * time.Second
	interfaces   = 3
	perInterface = 6
)

// memory returns the description of cloudpool over a cloud in memory. change may change the
// settings of a world; nil: nothing.
func memory(bits int, change func(*parts)) netresourcetest.Provider {
	p := netresourcetest.Provider{
		Unit: 1, Lag: lag + time.Second, Recovery: 10 * time.Minute,
		Limits: netresourcetest.Limits{Interfaces: interfaces, Units: perInterface},
		New: func(_ context.Context, s netresourcetest.Shape) (*netresourcetest.World, error) {
			return world(s, bits, change), nil
		},
	}
	if bits > 0 {
		p.Unit = 1 << (32 - bits)
	}
	return p
}

// parts holds the settings of a world.
type parts struct {
	cloud memcloud.Config
	pool  cloudpool.Config
	// over and provider are called for each process; nil: nothing is changed.
	over     func(cloud.Cloud) cloud.Cloud
	provider func(netresource.Provider) netresource.Provider
}

func world(s netresourcetest.Shape, bits int, change func(*parts)) *netresourcetest.World {
	subnet, log := netip.MustParsePrefix("10.1.0.0/20"), slog.New(slog.DiscardHandler)
	if s.Units > 0 {
		subnet = netip.MustParsePrefix("10.1.0.0/28")
		if bits > 0 {
			subnet = netip.MustParsePrefix("10.1.0.0/24") // 16 times /28
		}
	}
	x := parts{
		cloud: memcloud.Config{
			Subnets:    map[string]netip.Prefix{"subnet-a": subnet},
			Interfaces: interfaces, PerInterface: perInterface, PrefixLen: bits, Lag: lag,
		},
		pool: cloudpool.Config{Prefixes: bits > 0, Consistency: lag + time.Second, OrphanAge: 5 * time.Second, Log: log},
	}
	if s.DualStack {
		x.cloud.Second = map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("fd00::/64")}
		x.pool.IPv4, x.pool.IPv6 = true, true
		if bits > 0 {
			x.cloud.PrefixLen6 = 80
		}
	}
	if change != nil {
		change(&x)
	}
	mem := memcloud.New(x.cloud)
	faulty := &faultyCloud{Cloud: mem, half: map[string]bool{}}
	mem.SetFault(faulty.fault)
	machines := []string{}
	return &netresourcetest.World{
		Provider: func() (netresource.Provider, error) {
			own := x.pool
			if own.Cloud = faulty; x.over != nil {
				own.Cloud = x.over(faulty)
			}
			var p netresource.Provider = cloudpool.New(own)
			if x.provider != nil {
				p = x.provider(p)
			}
			return p, nil
		},
		Machine: func(_ context.Context, node string) (string, error) {
			machines = append(machines, "i-"+node)
			mem.AddInstance("i-"+node, "subnet-a")
			return "i-" + node, nil
		},
		Plan: faulty.setPlan,
		Truth: func(context.Context) (t netresourcetest.Truth, err error) {
			for _, id := range machines {
				for _, i := range mem.Interfaces(id) {
					blocks := []netip.Prefix{}
					for _, b := range i.Blocks {
						if !b.Primary {
							blocks = append(blocks, b.Prefix)
						}
					}
					t.Interfaces = append(t.Interfaces, netresourcetest.Interface{ID: i.ID, Instance: id, Blocks: blocks})
				}
			}
			for n := range mem.Orphans() {
				t.Orphans = append(t.Orphans, fmt.Sprint("interface ", n))
			}
			return t, nil
		},
	}
}

var errInjected = errors.New("the cloud has failed")

// faultyCloud makes a plan of requests apply to the calls of a cloud in memory. A call that
// changes something has two requests, and is half done if only the first was.
type faultyCloud struct {
	cloud.Cloud

	mu     sync.Mutex
	plan   netresourcetest.Plan
	number int
	half   map[string]bool // calls that are to be half done
}

func (c *faultyCloud) setPlan(plan netresourcetest.Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plan = plan
}

// fault is the plan of the cloud in memory.
func (c *faultyCloud) fault(call memcloud.Call) memcloud.Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key := call.What + " " + call.Instance; c.half[key] {
		delete(c.half, key)
		return memcloud.Half
	}
	return memcloud.None
}

func (c *faultyCloud) outcome(what string) faultproxy.Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number++
	if c.plan == nil {
		return faultproxy.Pass
	}
	return c.plan(faultproxy.Request{Number: c.number, Operation: what, Read: what == "describe"})
}

// do makes a call with the faults of its requests.
func (c *faultyCloud) do(ctx context.Context, what, instance string, requests int, call func() error) error {
	for i := range requests {
		outcome, last := c.outcome(what), i == requests-1
		done := outcome == faultproxy.Lose || outcome == faultproxy.HangDone
		if outcome == faultproxy.Pass {
			continue
		}
		if i > 0 && !done || !last && done {
			c.mu.Lock()
			c.half[what+" "+instance] = true
			c.mu.Unlock()
		}
		if i > 0 || done {
			_ = call()
		}
		switch outcome {
		case faultproxy.Throttle:
			return fmt.Errorf("%s: %w", what, cloud.ErrThrottled)
		case faultproxy.Hang, faultproxy.HangDone:
			<-ctx.Done()
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w", what, errInjected)
	}
	return call()
}

func (c *faultyCloud) Read(ctx context.Context) (s *cloud.Snapshot, err error) {
	err = c.do(ctx, "describe", "", 1, func() (err error) {
		s, err = c.Cloud.Read(ctx)
		return err
	})
	return s, err
}

func (c *faultyCloud) Assign(ctx context.Context, instance, iface string, want cloud.Want) (blocks []cloud.Block, err error) {
	err = c.do(ctx, "assign", instance, 2, func() (err error) {
		blocks, err = c.Cloud.Assign(ctx, instance, iface, want)
		return err
	})
	return blocks, err
}

func (c *faultyCloud) Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error {
	return c.do(ctx, "unassign", instance, 2, func() error { return c.Cloud.Unassign(ctx, instance, iface, blocks) })
}

func (c *faultyCloud) CreateInterface(ctx context.Context, instance string, want cloud.NewInterface) (i *cloud.Interface, err error) {
	err = c.do(ctx, "create", instance, 2, func() (err error) {
		i, err = c.Cloud.CreateInterface(ctx, instance, want)
		return err
	})
	return i, err
}

func (c *faultyCloud) DeleteInterface(ctx context.Context, instance, iface string) error {
	return c.do(ctx, "delete", instance, 2, func() error { return c.Cloud.DeleteInterface(ctx, instance, iface) })
}

func (c *faultyCloud) DeleteOrphans(ctx context.Context, instance string, age time.Duration) (gone []string, err error) {
	err = c.do(ctx, "orphans", instance, 1, func() (err error) {
		gone, err = c.Cloud.DeleteOrphans(ctx, instance, age)
		return err
	})
	return gone, err
}
