// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package commands tests the programs as an administrator runs them. Each file of
// testdata is a scenario, a script of package testscript: the agent, the command line,
// the CNI plugin and Docker's plugin are processes, and a script checks their output and
// exit codes only. The scripts of testdata/docker run twice: with an agent, and with
// Docker's plugin without an agent. The package has tests only.
//
// Besides the commands of package testscript a script has these:
//
//	agent start|launch|stop|kill   run the agent with contiv.conf; start waits until it serves
//	docker start                   run the program with the Docker driver: the agent or the plugin
//	pod ADD|CHECK|DEL NAME         call the CNI plugin for a pod
//	fill                           add pods until one is refused, and print the refusal
//	leases                         print the addresses of pods, with their pods
//	engine METHOD JSON FIELD       call Docker's IPAM protocol; print a field of the answer, or its error
//	eventually PATTERN PROGRAM ... run a program until it succeeds and its output matches
//	metric NAME VALUE              check a metric of the agent
//	example HEADING                run the example below a heading of docs/operations.md
package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// binEnv names the directory of the programs.
const binEnv = "COMMANDS_BIN"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "cmd-bin-")
	if err == nil {
		err = errors.Join(
			stage.Build(context.Background(), "../..", dir, "./cmd/cadastre-agent", "./cmd/cadastre-cni", "./cmd/cadastre", "./cmd/cadastre-docker-plugin"),
			os.Setenv(binEnv, dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "commands:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func TestNode(t *testing.T) {
	runScripts(t, "testdata/node", map[string]string{"DRIVER": "agent"})
}

func TestDocker(t *testing.T) {
	t.Run("agent", func(t *testing.T) {
		runScripts(t, "testdata/docker", map[string]string{"DRIVER": "agent", "SPACE": "LocalDefault"})
	})
	t.Run("plugin", func(t *testing.T) {
		runScripts(t, "testdata/docker", map[string]string{"DRIVER": "plugin", "SPACE": "PluginLocal"})
	})
}

// runScripts runs the scripts of a folder with more variables in their environment.
func runScripts(t *testing.T, dir string, environment map[string]string) {
	t.Helper()
	if err := stage.LookAtSources("../.."); err != nil { // the result depends on them
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "cmd") // a test's own folder is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		WorkdirRoot:         root,
		RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"agent":      runAgent,
			"docker":     runDocker,
			"pod":        runPod,
			"fill":       fill,
			"leases":     printLeases,
			"engine":     callEngine,
			"eventually": eventually,
			"metric":     checkMetric,
			"example":    runExample,
		},
		Setup: func(env *testscript.Env) error {
			for name, value := range environment {
				env.Setenv(name, value)
			}
			bin := os.Getenv(binEnv)
			m := &machine{Agent: stage.Agent{
				Place:  stage.Place{Root: env.WorkDir, Bin: bin, Dir: env.WorkDir},
				Config: filepath.Join(env.WorkDir, "contiv.conf"),
				Node:   "node-1",
			}}
			env.Values[machineKey{}] = m
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("CADASTRE_SOCKET", m.Socket())
			env.Defer(m.close)
			return nil
		},
	})
}
