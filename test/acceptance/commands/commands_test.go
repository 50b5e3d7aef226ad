// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package commands tests the programs as an administrator runs them. Each file of
// testdata is a script of package nodescript. The scripts of testdata/docker run twice:
// with an agent, and with Docker's plugin without an agent. The package has tests only.
package commands

import (
	"os"
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/stage/nodescript"
)

func TestMain(m *testing.M) { os.Exit(nodescript.Main(m)) }

func TestNode(t *testing.T) {
	nodescript.Run(t, "testdata/node", map[string]string{"DRIVER": "agent"})
}

// TestNetwork runs scripts with pods in real network namespaces.
func TestNetwork(t *testing.T) {
	nodescript.Run(t, "testdata/network", map[string]string{"DRIVER": "agent"})
}

// TestAccidents runs what wakes people at night: each script has the first output that a
// person sees, the commands to the cause, and the cure.
func TestAccidents(t *testing.T) {
	nodescript.Run(t, "testdata/accidents", map[string]string{"DRIVER": "agent"})
}

func TestDocker(t *testing.T) {
	t.Run("agent", func(t *testing.T) {
		nodescript.Run(t, "testdata/docker", map[string]string{"DRIVER": "agent", "SPACE": "LocalDefault"})
	})
	t.Run("plugin", func(t *testing.T) {
		nodescript.Run(t, "testdata/docker", map[string]string{"DRIVER": "plugin", "SPACE": "PluginLocal"})
	})
}
