// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest"
)

// bad is a provider with one defect.
type bad struct {
	netresource.AllocationImplementation
	defect string

	mu    sync.Mutex
	first netresource.NetResourceOperations
}

type badNode struct {
	netresource.NetResourceOperations
	b    *bad
	gone map[string]bool
}

func (b *bad) Resync(ctx context.Context) time.Time {
	at := b.AllocationImplementation.Resync(ctx)
	if b.defect == "says when it has ended" {
		at = at.Add(time.Hour)
	}
	return at
}

func (b *bad) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil || b.defect != "one node's addresses for another" {
		b.first = b.AllocationImplementation.CreateNetResource(o, n)
	}
	return &badNode{b.first, b, map[string]bool{}}
}

func (n *badNode) UpdatedNode(o *v1alpha1.NetResourceSet) {
	if n.b.defect != "one node's addresses for another" { // else all nodes are the first one
		n.NetResourceOperations.UpdatedNode(o)
	}
}

func (n *badNode) PrepareIPAllocation(log *slog.Logger) (*netresource.AllocationAction, error) {
	if n.b.defect == "panics" {
		panic("a defect")
	}
	return n.NetResourceOperations.PrepareIPAllocation(log)
}

func (n *badNode) ResyncInterfacesAndIPs(ctx context.Context, log *slog.Logger) (v1alpha1.AllocationMap, error) {
	all, err := n.NetResourceOperations.ResyncInterfacesAndIPs(ctx, log)
	if len(all) == 0 && n.b.defect == "returns nil" {
		return nil, nil
	}
	return all, err
}

func (n *badNode) AllocateIPs(ctx context.Context, a *netresource.AllocationAction) error {
	switch {
	case n.b.defect == "takes too many":
		a.MaxIPsToAllocate++
	case n.b.defect == "ignores its context" && ctx.Err() != nil:
		time.Sleep(time.Hour)
	}
	err := n.NetResourceOperations.AllocateIPs(ctx, a)
	if n.b.defect == "hides errors" {
		return nil
	}
	return err
}

func (n *badNode) CreateInterface(ctx context.Context, a *netresource.AllocationAction, log *slog.Logger) (int, string, error) {
	count, phrase, err := n.NetResourceOperations.CreateInterface(ctx, a, log)
	if n.b.defect == "hides errors" {
		return count, phrase, nil
	}
	return count, phrase, err
}

func (n *badNode) ReleaseIPs(ctx context.Context, a *netresource.ReleaseAction) error {
	for _, key := range a.IPsToRelease {
		if n.gone[key] && n.b.defect == "releases only once" {
			return errors.New("it is not there")
		}
		n.gone[key] = true
	}
	return n.NetResourceOperations.ReleaseIPs(ctx, a)
}

func (n *badNode) PrepareIPRelease(excess int, log *slog.Logger) *netresource.ReleaseAction {
	a := n.NetResourceOperations.PrepareIPRelease(excess, log)
	if all, _ := n.ResyncInterfacesAndIPs(context.Background(), log); n.b.defect == "chooses what is used" && len(a.IPsToRelease) == 0 {
		for key := range all {
			a.IPsToRelease = append(a.IPsToRelease, key)
		}
	}
	return a
}

func (n *badNode) GetMaximumAllocatableIPv4() int {
	most := n.NetResourceOperations.GetMaximumAllocatableIPv4()
	if n.b.defect == "promises too many" {
		most++
	}
	return most
}

// badCloud is a cloud.Cloud with one defect. Each process has its own.
type badCloud struct {
	cloud.Cloud
	defect string
	failed atomic.Bool // a creation of this process
}

func (c *badCloud) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.defect == "has no deadline" {
		return context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
	}
	return ctx, func() {}
}

func (c *badCloud) outcome(err error) error {
	if c.defect == "does not say that it is throttled" && errors.Is(err, cloud.ErrThrottled) {
		return errors.New("status 503")
	}
	return err
}

func (c *badCloud) Read(ctx context.Context) (*cloud.Snapshot, error) {
	ctx, cancel := c.context(ctx)
	defer cancel()
	return c.Cloud.Read(ctx)
}

func (c *badCloud) Assign(ctx context.Context, instance, iface string, want cloud.Want) ([]cloud.Block, error) {
	ctx, cancel := c.context(ctx)
	defer cancel()
	blocks, err := c.Cloud.Assign(ctx, instance, iface, want)
	return blocks, c.outcome(err)
}

func (c *badCloud) CreateInterface(ctx context.Context, instance string, want cloud.NewInterface) (*cloud.Interface, error) {
	ctx, cancel := c.context(ctx)
	defer cancel()
	made, err := c.Cloud.CreateInterface(ctx, instance, want)
	if err != nil {
		c.failed.Store(true)
	}
	return made, c.outcome(err)
}

func (c *badCloud) Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error {
	ctx, cancel := c.context(ctx)
	defer cancel()
	if c.defect == "releases nothing" {
		return nil
	}
	return c.outcome(c.Cloud.Unassign(ctx, instance, iface, blocks))
}

func (c *badCloud) DeleteOrphans(ctx context.Context, instance string, age time.Duration) ([]string, error) {
	if c.defect == "keeps orphans" || c.defect == "keeps orphans of another process" && !c.failed.Load() {
		return nil, nil
	}
	return c.Cloud.DeleteOrphans(ctx, instance, age)
}

// defects returns for each defect the checks that must find it.
func defects() map[string][]string {
	const (
		failing   = "a call that fails at any request leaves nothing behind"
		lost      = "a call whose answer is lost at any request leaves nothing behind"
		throttled = "a call that is throttled at any request leaves nothing behind"
		hung      = "a call that hangs at any request leaves nothing behind"
		stale     = "old readings undo nothing"
		filled    = "a machine is filled, and not above its limits"
		disjoint  = "nodes have different addresses"
		takenOver = "another process takes over"
		campaign  = "a campaign"
		campaign2 = "a campaign of two families"
	)
	return map[string][]string{
		"":                                  nil,
		"says when it has ended":            {"Resync returns when it has begun"},
		"returns nil":                       {"a node that has nothing has an empty map"},
		"takes too many":                    {"no more addresses are taken than are asked for"},
		"one node's addresses for another":  {disjoint, campaign},
		"releases only once":                {"addresses are released once, and again"},
		"chooses what is used":              {"used addresses are not chosen for release"},
		"ignores its context":               {"calls return when their context has ended"},
		"panics":                            {disjoint, campaign},
		"promises too many":                 {filled},
		"exceeds the limit of an interface": {filled},
		"exceeds the limit of a machine":    {filled},
		"hides errors":                      {"a full subnet is an error"},
		"has one family":                    {"a node of two families has as many addresses of both", campaign2},
		"has no deadline":                   {"calls end with their deadline while the cloud hangs"},
		"keeps orphans":                     {failing, lost, throttled, hung, takenOver, campaign},
		"keeps orphans of another process":  {takenOver},
		"releases nothing":                  {failing, campaign},
		"forgets its own calls":             {stale},
		"does not say that it is throttled": {"a throttled call does nothing and says so"},
	}
}

// broken returns the description of a provider with a defect.
func broken(defect string) netresourcetest.Provider {
	p := memory(0, func(x *parts) {
		switch defect {
		case "exceeds the limit of an interface":
			x.cloud.PerInterface++
		case "exceeds the limit of a machine":
			x.cloud.Interfaces++
		case "has one family":
			x.pool.IPv6 = false
		case "forgets its own calls":
			x.pool.Consistency = -1
		}
		x.over = func(c cloud.Cloud) cloud.Cloud { return &badCloud{Cloud: c, defect: defect} }
		x.provider = func(p netresource.AllocationImplementation) netresource.AllocationImplementation {
			return &bad{AllocationImplementation: p, defect: defect}
		}
	})
	p.Rounds = 10
	return p
}

func TestDefectsAreFound(t *testing.T) {
	finders := map[string]bool{}
	for defect, want := range defects() {
		t.Run(defect, func(t *testing.T) {
			g := NewWithT(t)
			for _, c := range netresourcetest.Checks() {
				if defect != "" && !slices.Contains(want, c.Name) {
					continue
				}
				var found error
				synctest.Test(t, func(*testing.T) {
					found = c.Run(broken(defect))
					time.Sleep(24 * time.Hour) // calls that hang return
				})
				t.Log(found)
				g.Expect(found != nil).To(Equal(defect != ""), "check %q", c.Name)
				finders[c.Name] = finders[c.Name] || defect != ""
			}
		})
	}
	for _, c := range netresourcetest.Checks() {
		NewWithT(t).Expect(finders).To(HaveKeyWithValue(c.Name, true), "a check that no defect is there for")
	}
}
