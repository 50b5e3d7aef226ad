// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import "net/netip"

// InUse holds what one fresh round of every witness shows of the addresses that a request
// ends. The agent refuses the request with 409 if it shows anything, unless the request has
// force.
type InUse struct {
	Uses []Use `json:"inUse"`
	// Incomplete names the witnesses of this node that could not be read completely: they
	// may not show a use.
	Incomplete []string `json:"incomplete"`
	Refused    string   `json:"error,omitempty"` // why the request was refused, or would be without force
}

// Use says that an address is in use now.
type Use struct {
	IP       netip.Addr `json:"ip,omitzero"`    // missing: the use is of a whole pool
	Pool     string     `json:"pool,omitempty"` // missing: no block of this node contains the address
	Pod      string     `json:"pod,omitempty"`  // namespace/name
	Text     string     `json:"text"`           // one sentence, with what the pod loses
	Evidence []Evidence `json:"evidence"`
}
