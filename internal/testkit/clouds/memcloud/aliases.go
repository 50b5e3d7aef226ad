// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

var _ nodeipam.Cloud = (*Cloud)(nil)

// AddMachine adds a machine under the name of its node, with the aliases that are routed
// to it already.
func (c *Cloud) AddMachine(node, providerID string, aliases ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machine(node)
	m.known, m.providerID, m.aliases = true, providerID, aliases
}

// SetAliases replaces the aliases of a machine, as its owner could by hand.
func (c *Cloud) SetAliases(node string, aliases ...netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.machines[node]; m != nil {
		m.aliases = aliases
	}
}

// Routes returns the aliases of all machines, by node.
func (c *Cloud) Routes() map[string][]netip.Prefix {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string][]netip.Prefix{}
	for node, m := range c.machines {
		if len(m.aliases) > 0 {
			all[node] = slices.Clone(m.aliases)
		}
	}
	return all
}

// ProviderName implements nodeipam.Cloud.
func (c *Cloud) ProviderName() string { return "mem" }

// Aliases implements nodeipam.Cloud.
func (c *Cloud) Aliases(ctx context.Context, m nodeipam.Machine) (all []netip.Prefix, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.enter(ctx, "aliases", m.Node); err != nil {
		return nil, fmt.Errorf("aliases of %s: %w", m.Node, err)
	}
	machine, err := c.find(m)
	if err != nil {
		return nil, fmt.Errorf("aliases of %s: %w", m.Node, err)
	}
	return slices.Clone(machine.aliases), nil
}

// AddAlias implements nodeipam.Cloud. A prefix is routed to one machine only.
func (c *Cloud) AddAlias(ctx context.Context, m nodeipam.Machine, p netip.Prefix) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	fault, err := c.enter(ctx, "add alias", m.Node)
	if err == nil || fault == Tear {
		if failed := c.addAlias(m, p); failed != nil {
			err = failed
		}
	}
	if err != nil {
		return fmt.Errorf("add alias %s to %s: %w", p, m.Node, err)
	}
	return nil
}

func (c *Cloud) addAlias(m nodeipam.Machine, p netip.Prefix) error {
	machine, err := c.find(m)
	if err != nil || slices.Contains(machine.aliases, p) {
		return err
	}
	for node, other := range c.machines {
		if other != machine && slices.ContainsFunc(other.aliases, p.Overlaps) {
			return fmt.Errorf("%w: %s", nodeipam.ErrRouted, node)
		}
	}
	machine.aliases = append(machine.aliases, p)
	return nil
}

// find returns the machine of a node, which AddMachine has added.
func (c *Cloud) find(m nodeipam.Machine) (*machine, error) {
	found := c.machines[m.Node]
	if found == nil || !found.known || m.ProviderID != "" && found.providerID != m.ProviderID {
		return nil, nodeipam.ErrNoMachine
	}
	return found, nil
}
