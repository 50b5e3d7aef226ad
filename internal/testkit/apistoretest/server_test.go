// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest_test

import (
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSuite(t *testing.T) {
	apistoretest.Run(t, func(t *testing.T) *rest.Config {
		server := apistoretest.New()
		t.Cleanup(server.Close)
		return server.Config()
	})
}
