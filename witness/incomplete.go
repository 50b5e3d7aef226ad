// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// QuarantineKey returns the key of the quarantine of an address that is in use without a
// lease. The agent ends a quarantine under such a key when no witness shows a use any more.
func QuarantineKey(a netip.Addr) ledger.Key { return ledger.KeyOfWitness(string(Kernel), a) }

// Incomplete returns why the absence of a use from the views proves nothing, one reason for
// each witness that this node has and that was not read completely. Nil: all were.
func (w *World) Incomplete() (reasons []string) {
	for _, r := range w.Reports {
		if r.State == Missing && !r.Absent {
			reasons = append(reasons, string(r.Name)+": "+r.Reason)
		}
	}
	if w.Kernel != nil && w.Kernel.Hidden != "" {
		reasons = append(reasons, string(Kernel)+": network namespaces are hidden: "+w.Kernel.Hidden)
	}
	return reasons
}
