// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ipam/ipamapi/ipamapitest"
	"github.com/cadastre/cadastre/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	ipamapitest.Run(t, func(t *testing.T) ipamapi.Ipam {
		return newWorld(NewWithT(t), journal.NewMemory(), ipamapi.Config{}).Driver
	})
}

func TestContractWithTheNullJournal(t *testing.T) {
	ipamapitest.Run(t, func(t *testing.T) ipamapi.Ipam {
		return newWorld(NewWithT(t), ledger.NullJournal{}, ipamapi.Config{}).Driver
	})
}
