// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"slices"
	"time"
)

// excess holds how long a node has had too many addresses, and how many of them for how
// long. It has steps of growing height, each with the time since when the excess has
// not been below it.
type excess []step

type step struct {
	addresses int
	since     time.Time
}

// note records the present excess, and reports whether it is larger than before.
func (e *excess) note(addresses int, now time.Time) (grown bool) {
	i := slices.IndexFunc(*e, func(s step) bool { return s.addresses >= addresses })
	switch {
	case addresses <= 0:
		*e = nil
	case i < 0:
		*e = append(*e, step{addresses, now})
		return true
	default:
		*e = (*e)[:i+1]
		(*e)[i].addresses = addresses
	}
	return false
}

// since returns the excess that the node has had at all times since begin.
func (e excess) since(begin time.Time) (addresses int) {
	for _, s := range e {
		if !s.since.After(begin) {
			addresses = s.addresses
		}
	}
	return addresses
}
