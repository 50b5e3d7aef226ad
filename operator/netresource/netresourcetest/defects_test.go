// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest_test

import (
	"context"
	"errors"
	"maps"
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
	netresource.Provider
	defect string

	mu    sync.Mutex
	first *v1alpha1.NetResourceSet
	gone  map[string]bool
}

func (b *bad) Read(ctx context.Context) (time.Time, error) {
	at, err := b.Provider.Read(ctx)
	if b.defect == "says when it has ended" {
		at = at.Add(time.Hour)
	}
	return at, err
}

// of returns the NetResourceSet that a call is made for.
func (b *bad) of(set *v1alpha1.NetResourceSet) *v1alpha1.NetResourceSet {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil {
		b.first = set
	}
	if b.defect == "one node's addresses for another" {
		return b.first
	}
	return set
}

func (b *bad) State(ctx context.Context, set *v1alpha1.NetResourceSet) (netresource.State, error) {
	s, err := b.Provider.State(ctx, b.of(set))
	if len(s.Available) == 0 && b.defect == "returns nil" {
		s.Available = nil
	}
	if b.defect == "promises too many" {
		s.Most++
	}
	return s, err
}

func (b *bad) Allocate(ctx context.Context, set *v1alpha1.NetResourceSet, wanted int) (netresource.Allocation, error) {
	switch {
	case b.defect == "panics":
		panic("a defect")
	case b.defect == "takes too many":
		wanted++
	case b.defect == "ignores its context" && ctx.Err() != nil:
		time.Sleep(time.Hour)
	}
	got, err := b.Provider.Allocate(ctx, b.of(set), wanted)
	if b.defect == "hides errors" && (err != nil || got.Addresses == 0) {
		return netresource.Allocation{Addresses: wanted}, nil //nolint:nilerr // the defect
	}
	return got, err
}

func (b *bad) Release(ctx context.Context, set *v1alpha1.NetResourceSet, a *netresource.ReleaseAction) error {
	b.mu.Lock()
	for _, key := range a.IPsToRelease {
		if b.gone[key] && b.defect == "releases only once" {
			b.mu.Unlock()
			return errors.New("it is not there")
		}
		b.gone[key] = true
	}
	b.mu.Unlock()
	return b.Provider.Release(ctx, b.of(set), a)
}

func (b *bad) Spare(ctx context.Context, set *v1alpha1.NetResourceSet, excess int) ([]string, error) {
	keys, err := b.Provider.Spare(ctx, b.of(set), excess)
	if b.defect == "chooses what is used" && len(keys) == 0 {
		s, _ := b.State(ctx, set)
		keys = slices.Collect(maps.Keys(s.Available))
	}
	return keys, err
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
		"says when it has ended":            {"Read returns when it has begun"},
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
		x.provider = func(p netresource.Provider) netresource.Provider {
			return &bad{Provider: p, defect: defect, gone: map[string]bool{}}
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
