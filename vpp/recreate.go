// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/southbound"
)

var _ southbound.Recreator = (*kind)(nil)

// Recreate reports whether a loopback of a value must be made anew, as it has another MAC: the
// addresses of pods, and the routes and neighbours of other values, are on it.
func (k *kind) Recreate(key string, _, value proto.Message) bool {
	p, err := k.plan(key, value, false)
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
