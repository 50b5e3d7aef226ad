// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes the test binary the program itself for scripts.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"cadastre": main, kubectlName: main})
}

// TestScripts runs the scenarios of testdata that need no agent. Those with an agent
// are in test/acceptance/commands.
func TestScripts(t *testing.T) {
	conf, err := filepath.Abs(filepath.Dir(contivConf))
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("CONF", conf)
			var verbs strings.Builder
			for _, cmd := range verbsOf(programFor(false)) {
				verbs.WriteString(strings.TrimPrefix(cmd.CommandPath(), "cadastre") + "\n")
			}
			return os.WriteFile(filepath.Join(env.WorkDir, "verbs"), []byte(verbs.String()), 0o600)
		},
	})
}
