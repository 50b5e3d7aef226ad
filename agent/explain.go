// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"

	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// explain returns the failure of an ADD as one sentence, "" if its error says as much.
func (a *assembly) explain(req cni.Request, err error) string {
	n := &explain.Node{
		Now:       a.clock.now(),
		Name:      a.node.Name,
		Suspended: a.ledger.Suspended(),
		Pools:     a.ledger.Policies(),
		Blocks:    a.ledger.Stats(),
		Shortage:  a.shortage(),
	}
	for t, s := range a.claimers.Prefixes.All() {
		c := explain.Claim{Prefix: t.Prefix, Held: s.Held, Since: s.Since}
		if s.Blocker != nil {
			c.Reason = s.Blocker.String()
		}
		n.Claims = append(n.Claims, c)
	}
	return explain.Reason(n, cmp.Or(req.Pool, cni.DefaultPool), err)
}
