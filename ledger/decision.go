// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
)

// Decision describes what was decided about the addresses of one attachment, for the log.
type Decision struct {
	Pool      string
	Addresses []netip.Addr
	Pod       Pod
	Key       Key
	Reason    string // "": it was asked for
}

// DecisionOn returns the Decision about leases of one attachment; none: the zero Decision.
func DecisionOn(leases []Lease, reason string) Decision {
	d := Decision{Reason: reason}
	for i, l := range leases {
		if i == 0 {
			d.Pool, d.Pod, d.Key = l.Pool, l.Pod, l.Key
		}
		d.Addresses = append(d.Addresses, l.Addr)
	}
	return d
}

// Attributes returns the keys and values of the log line of a decision: the same keys in the
// same order for each decision, as docs/logs.md lists them.
func (d Decision) Attributes() []any {
	pod := ""
	if d.Pod.Name != "" {
		pod = d.Pod.String()
	}
	return []any{
		"pool", d.Pool, "addresses", d.Addresses, "pod", pod,
		"network", d.Key.Network, "container", d.Key.ContainerID, "if", d.Key.IfName, "reason", d.Reason,
	}
}
