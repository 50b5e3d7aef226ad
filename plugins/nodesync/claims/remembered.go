// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// diskName names the record of the held claims on the disk.
const diskName = "claims"

// remembered is one held claim on disk.
type remembered struct {
	Network string       `json:"network"`
	Prefix  netip.Prefix `json:"prefix"`
}

// load returns the held claims that the disk remembers.
func load(disk Disk) ([]Target, error) {
	text, err := disk.Local(diskName)
	if err != nil {
		return nil, fmt.Errorf("read the claims that this node remembers: %w", err)
	}
	if text == "" {
		return nil, nil
	}
	var list []remembered
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("read the claims that this node remembers: %q: %w", text, err)
	}
	var all []Target
	for _, r := range list {
		all = append(all, Target(r))
	}
	return all, nil
}

// save has the disk remember the held claims. It writes only what is new.
func (c *Claimer) save(held []Target) error {
	held = sorted(slices.Values(held))
	if slices.Equal(held, c.saved) {
		return nil
	}
	list := []remembered{}
	for _, t := range held {
		list = append(list, remembered(t))
	}
	text, err := json.Marshal(list)
	if err == nil {
		err = c.deps.Disk.SetLocal(diskName, string(text))
	}
	if err != nil {
		return fmt.Errorf("remember the claims: %w", err)
	}
	c.saved = held
	return nil
}

// sorted returns targets in order, each once.
func sorted(all iter.Seq[Target]) []Target {
	return slices.Compact(slices.SortedFunc(all, func(a, b Target) int {
		if a.Network != b.Network {
			return strings.Compare(a.Network, b.Network)
		}
		return a.Prefix.Compare(b.Prefix)
	}))
}
