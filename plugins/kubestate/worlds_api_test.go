// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/apistoretest"
	"github.com/cadastre/cadastre/plugins/kubestate/kubestatetest"
)

func TestSuiteWithAnAPIServer(t *testing.T) {
	kubestatetest.Run(t, func(t *testing.T) kubestatetest.World { return apistoretest.New().World(t) })
}
