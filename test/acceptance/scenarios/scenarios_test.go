// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package scenarios repeats, from outside, the accidents that other projects have had with
// addresses. docs/scenarios.md lists them with their sources and their tests. Each script of
// testdata runs the programs of one node (package nodescript); tests in Go do where
// many requests or several nodes are needed. The package has tests only.
package scenarios

import (
	"os"
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/stage/nodescript"
)

func TestMain(m *testing.M) { os.Exit(nodescript.Main(m)) }

func TestScenarios(t *testing.T) {
	nodescript.Run(t, "testdata", map[string]string{"DRIVER": "agent"})
}
