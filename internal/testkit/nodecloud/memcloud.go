// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package memcloud is a cloud in memory, for tests and demonstrations: machines,
// and the prefixes that are routed to them.
//
// It can fail at every step. Before a call is answered, Fault is asked about it,
// with its number, from 1: the call may be refused, or be applied and look as if
// it had failed. Like a real cloud it routes a prefix to one machine only.
//
// Every method may be called from any goroutine.
//
// Example: the second call is applied, and its answer is lost.
//
//	c := memcloud.New()
//	c.AddMachine("node-a", "mem://1")
//	c.Fault = memcloud.At(2, memcloud.Tear)
package memcloud

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// ErrInjected is the error of calls that fail because they were to.
var ErrInjected = errors.New("memcloud: injected fault")

// Fault is what happens to a call.
type Fault int

const (
	// None is nothing.
	None Fault = iota
	// Refuse does nothing, and answers ErrInjected.
	Refuse
	// Tear does what was asked, and answers ErrInjected.
	Tear
)

// Call is a call as the plan of faults is asked about it.
type Call struct {
	Number int // of all calls, from 1
	Write  bool
	Node   string
}

// Cloud is the cloud.
type Cloud struct {
	// Fault plans the faults; nil is none. It is set before the Cloud is used.
	Fault func(Call) Fault

	mu       sync.Mutex
	calls    int
	machines []*machine
}

type machine struct {
	node, providerID string
	aliases          []netip.Prefix
}

var _ nodeipam.Cloud = (*Cloud)(nil)

// New is a cloud without machines.
func New() *Cloud { return &Cloud{} }

// At plans one fault, for call number n.
func At(n int, f Fault) func(Call) Fault {
	return func(c Call) Fault {
		if c.Number == n {
			return f
		}
		return None
	}
}

// AddMachine adds the machine of a node, with what is routed to it already.
func (c *Cloud) AddMachine(node, providerID string, aliases ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines = append(c.machines, &machine{node, providerID, aliases})
}

// RemoveMachine removes the machine of a node, and what is routed to it.
func (c *Cloud) RemoveMachine(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines = slices.DeleteFunc(c.machines, func(m *machine) bool { return m.node == node })
}

// SetAliases changes what is routed to a machine, as if by hand.
func (c *Cloud) SetAliases(node string, aliases ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		if m.node == node {
			m.aliases = aliases
		}
	}
}

// Routes are all prefixes, by node.
func (c *Cloud) Routes() map[string][]netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]netip.Prefix{}
	for _, m := range c.machines {
		if len(m.aliases) > 0 {
			all[m.node] = slices.Clone(m.aliases)
		}
	}
	return all
}

// Calls is how many calls there were.
func (c *Cloud) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// ProviderName implements nodeipam.Cloud.
func (c *Cloud) ProviderName() string { return "mem" }

// Aliases implements nodeipam.Cloud.
func (c *Cloud) Aliases(ctx context.Context, m nodeipam.Machine) (all []netip.Prefix, err error) {
	err = c.call(ctx, m, false, func(m *machine) error {
		all = slices.Clone(m.aliases)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("aliases of %s: %w", m.Node, err)
	}
	return all, nil
}

// AddAlias implements nodeipam.Cloud.
func (c *Cloud) AddAlias(ctx context.Context, m nodeipam.Machine, p netip.Prefix) error {
	err := c.call(ctx, m, true, func(m *machine) error {
		if slices.Contains(m.aliases, p) {
			return nil
		}
		for _, other := range c.machines {
			if other != m && slices.ContainsFunc(other.aliases, p.Overlaps) {
				return fmt.Errorf("%w: %s", nodeipam.ErrRouted, other.node)
			}
		}
		m.aliases = append(m.aliases, p)
		return nil
	})
	if err != nil {
		return fmt.Errorf("add alias %s to %s: %w", p, m.Node, err)
	}
	return nil
}

// call does f with a machine, and what the plan of faults says.
func (c *Cloud) call(ctx context.Context, m nodeipam.Machine, write bool, f func(*machine) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	fault := None
	if c.Fault != nil {
		fault = c.Fault(Call{c.calls, write, m.Node})
	}
	if fault == Refuse {
		return ErrInjected
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	i := slices.IndexFunc(c.machines, func(x *machine) bool {
		return x.node == m.Node && (m.ProviderID == "" || x.providerID == m.ProviderID)
	})
	if i < 0 {
		return nodeipam.ErrNoMachine
	}
	if err := f(c.machines[i]); err != nil {
		return err
	}
	if fault == Tear {
		return ErrInjected
	}
	return nil
}
