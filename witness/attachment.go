// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// Attachment holds an entry of the result cache of CNI: an attachment that a runtime has
// made and not yet removed.
type Attachment struct {
	Key   ledger.Key
	Pod   ledger.Pod
	NetNS string
	Addrs []netip.Addr
	Wired bool   // the agent has made its interface
	MAC   string // of the pod's end of the wire
}
