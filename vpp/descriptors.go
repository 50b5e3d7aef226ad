// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import "github.com/cadastre/cadastre/southbound"

// Descriptors returns all descriptors of a node in the order in which a key is offered to
// them. They are closed by the scheduler. VPP need not run yet.
func Descriptors(opt Options) ([]southbound.Descriptor, error) {
	return nil, nil
}
