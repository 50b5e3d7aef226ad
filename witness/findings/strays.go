// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/witness"
)

// notTheirOwn reports each namespace that has addresses of blocks which do not answer there.
// It makes one finding for each namespace, since any user of the node can make as many
// addresses as he likes.
func (c *comparison) notTheirOwn() {
	for ns, places := range c.strays {
		slices.SortFunc(places, func(x, y witness.Sighting) int { return x.Addr.Compare(y.Addr) })
		first := places[0]
		a := first.Addr
		pod := c.podOf(ns)
		who := ns.String()
		if pod != "" {
			who = "pod " + pod
		}
		what := fmt.Sprintf("%s, which is not its own and does not answer there", a)
		if len(places) > 1 {
			what = fmt.Sprintf("%d addresses, such as %s, which are not its own and do not answer there",
				len(places), a)
		}
		subject := Subject{Pool: c.blockOf(a).Pool, Pod: pod, Object: ns.Label()}
		c.add(numNotTheirOwn, subject, fmt.Sprintf("%s has %s", who, what),
			said(witness.Kernel, fmt.Sprintf("%s has %s", first.Place, first.Prefix)), who)
	}
}

// podOf returns the pod of a network namespace: that of its sandbox, its CNI result or its lease,
// "" if none is known.
func (c *comparison) podOf(ns *witness.Namespace) string {
	if pod := c.world.PodIn(ns); pod != "" || ns.Host {
		return pod
	}
	for i := range c.book.Leases {
		l := &c.book.Leases[i]
		switch {
		case l.Pod.Name == "" || !l.InUse():
		case l.NetNS != "" && slices.Contains(ns.Paths, l.NetNS), c.has(ns, l.Addr):
			return l.Pod.String()
		}
	}
	return ""
}
