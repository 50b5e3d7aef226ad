// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// hasID reports whether the node has an ID.
func (a *assembly) hasID() bool { return a.claimers.IDs.ID() != 0 }

// claims returns the states of this node's claims, in order.
func (a *assembly) claims() []localapi.Claim {
	all := []localapi.Claim{}
	for t, s := range a.claimers.Prefixes.All() {
		c := localapi.Claim{Network: t.Network, Prefix: t.Prefix.String(), Held: s.Held, Since: s.Since.UTC()}
		if s.Blocker != nil {
			c.Reason = s.Blocker.String()
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b localapi.Claim) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Prefix, b.Prefix))
	})
	return all
}

// hasAddress fails if this node waits for its pinned node address: without it no
// other node reaches its pods.
func (a *assembly) hasAddress() error {
	for t, s := range a.claimers.Prefixes.Waiting() {
		if t.Network == kv.NodeNetworkClaims && s.Blocker != nil {
			return fmt.Errorf("waiting for the claim of node address %s: %s", t.Prefix.Addr(), s.Blocker)
		}
	}
	return nil
}
