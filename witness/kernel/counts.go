// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"

	"github.com/cadastre/cadastre/witness"
)

// count marks the namespaces that a link connects with the first one, the host's. A veth
// shows that on both ends; a macvlan or ipvlan link shows it inside only, the host's link
// below does not know of it. Such a link needs CAP_NET_ADMIN in the host's namespace, so a
// user namespace alone gives no evidence.
func count(namespaces []witness.Namespace) {
	host := &namespaces[0]
	for i := range namespaces {
		ns := &namespaces[i]
		ns.Counts = ns.Counts || leads(ns, host) || leads(host, ns)
	}
}

// leads reports whether a link of a namespace has its other end, or the link below, in
// another one.
func leads(from, to *witness.Namespace) bool {
	there := func(l witness.Link) bool { return l.Away && l.NSID == to.NSID }
	return to.NSID >= 0 && slices.ContainsFunc(from.Links, there)
}
