// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// poolID holds the parts of a pool's ID: all that is needed to serve the pool.
//
//	LocalDefault/10.2.0.0/16                             a pool
//	LocalDefault/10.2.0.0/16/10.2.2.0/24?group=blue      a part of it, in a group
//	LocalDefault/10.1.5.16/28?pods=default               of the node's pod block
type poolID struct {
	space  string
	prefix netip.Prefix
	sub    netip.Prefix // zero: all of prefix
	group  string
	pods   string // the pod network's pool in the ledger, "" for a pool with its own prefix
}

func (id poolID) String() string {
	var room [128]byte
	text := id.prefix.AppendTo(append(append(room[:0], id.space...), '/'))
	if id.sub.IsValid() {
		text = id.sub.AppendTo(append(text, '/'))
	}
	s := string(text)
	if id.group == "" && id.pods == "" {
		return s
	}
	q := url.Values{}
	if id.group != "" {
		q.Set("group", id.group)
	}
	if id.pods != "" {
		q.Set("pods", id.pods)
	}
	return s + "?" + q.Encode()
}

// ledgerPool returns the name of the ledger's pool. The slashes keep it apart from
// the names of pod networks.
func (id poolID) ledgerPool() string {
	if id.pods != "" {
		return id.pods
	}
	var room [128]byte
	return string(id.prefix.AppendTo(append(append(append(room[:0], ledgerPrefix...), id.space...), '/')))
}

// ledgerPrefix is the prefix of the names of Docker's pools in the ledger.
const ledgerPrefix = "docker/"

// OfDocker reports whether a pool of the ledger is one that a Driver has made, apart from
// the pod network.
func OfDocker(ledgerPool string) bool { return strings.HasPrefix(ledgerPool, ledgerPrefix) }

// allocates returns the part that requests for any address are served from.
func (id poolID) allocates() netip.Prefix {
	if id.sub.IsValid() {
		return id.sub
	}
	return id.prefix
}

// parsePoolID parses an ID. It accepts only the form that String writes.
func parsePoolID(s string) (poolID, error) {
	fail := func() (poolID, error) { return poolID{}, fmt.Errorf("%w: %q is not a pool ID", ErrBadPool, s) }
	path, query, _ := strings.Cut(s, "?")
	parts := strings.Split(path, "/")
	if len(parts) != 3 && len(parts) != 5 || parts[0] == "" {
		return fail()
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return fail()
	}
	id := poolID{space: parts[0], group: values.Get("group"), pods: values.Get("pods")}
	id.prefix, err = netip.ParsePrefix(parts[1] + "/" + parts[2])
	if err != nil || id.prefix != canonical(id.prefix) || id.prefix.Bits() == 0 {
		return fail()
	}
	if len(parts) == 5 {
		id.sub, err = netip.ParsePrefix(parts[3] + "/" + parts[4])
		if err != nil || id.sub != canonical(id.sub) || id.sub == id.prefix || !within(id.sub, id.prefix) {
			return fail()
		}
	}
	if id.String() != s {
		return fail()
	}
	return id, nil
}

// canonical returns p without host bits, in its own family; the zero Prefix if it
// has none, as ::ffff:0:0/90.
func canonical(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// within reports whether q contains all of p.
func within(p, q netip.Prefix) bool { return p.Bits() >= q.Bits() && q.Contains(p.Addr()) }
