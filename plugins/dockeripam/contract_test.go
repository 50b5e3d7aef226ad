// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"testing"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ipam/ipamapi/ipamapitest"
)

// TestContract is the suite of the contract, over the wire and through the loop.
func TestContract(t *testing.T) {
	ipamapitest.Run(t, func(t *testing.T) ipamapi.Ipam {
		_, e := run(t)
		return e
	})
}
