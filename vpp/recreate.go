// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"github.com/cadastre/cadastre/southbound"
)

// recreates reports whether a loopback of a value must be made anew, as it has another MAC: the
// addresses of pods, and the routes and neighbours of other values, are on it.
func (k *kind) recreates(key string, _ southbound.Made[value], want value) bool {
	p, err := k.plan(key, want, false)
	if err != nil || p == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.st == nil {
		return false
	}
	for _, l := range p.links {
		if a := k.st.byTag[l.tag]; l.kind == loopLink && a != nil && !l.same(a) {
			return true
		}
	}
	return false
}
