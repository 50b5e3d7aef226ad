// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodescript runs scripts of package testscript against the programs of one node.
// The agent, the command line, the CNI plugin and Docker's plugin are processes, and a
// script checks their output and exit codes only.
//
// Besides the commands of package testscript a script has these:
//
//	agent start|launch|stop|kill   run the agent with contiv.conf; start waits until it serves
//	agent ends                     wait until the agent has ended by itself
//	agent copy                     copy the state, and run an agent of another machine on it, in the folder copy
//	store start|stop|again         run etcd, whose address is in ETCD; end it; run it with its data again
//	disk small|full|room           mount a small disk for the state (as root); fill it; make room on it
//	docker start                   run the program with the Docker driver: the agent or the plugin
//	pod ADD|CHECK|DEL NAME [K=V]   call the CNI plugin for a pod; the keys are container, if, uid, ip, as (a user ID)
//	fill                           add pods until one is refused, and print the refusal
//	leases                         print the addresses of pods, with their pods
//	engine METHOD JSON FIELD       call Docker's IPAM protocol; print a field of the answer, or its error
//	eventually PATTERN PROGRAM ... run a program until it succeeds and its output matches
//	metric NAME VALUE              check a metric of the agent
//	below NAME VALUE               check that a metric is below a value
//	example HEADING                run the example below a heading of docs/tasks/change-a-pool.md
//	page FILE                      run every "$ cadastre" of a page, and compare its output with the page's
//	node up [wires]                make the network namespace of a node, and a container runtime
//	node add|forget|lose|end NAME  add a pod; end its sandbox and namespace, its namespace, or its sandbox, without DEL
//	node del NAME                  delete a pod with DEL; its namespace stays
//	node ip NAME|host ARGS         run ip in the namespace of a pod or of the node
//	node runtime start|stop        start or stop the container runtime
//	as UID PROGRAM [ARGS]          run a program under another user ID, without a group
//	terminal PROGRAM [ARGS]        run a program whose standard output is a terminal
//
// The bridge plugin makes the interfaces of the pods of node, and with wires the agent does.
// The variables POD_NETWORK and PODS hold a network that no other script has, and the first
// three numbers of the block of node 1 in it. Each script has its own network because the
// kernel shows the namespaces of all tests.
//
// The condition root holds for root, netns if this process may make network namespaces. Each script has a folder, a socket and processes of its own, which end with it.
package nodescript

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
const binEnv = "NODESCRIPT_BIN"

// root is the path of the repository, seen from the folder of a test below test/.
const root = "../../.."

// Main builds the programs, runs the tests of a package, and returns the exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "node-bin-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = errors.Join(
			os.Chmod(dir, 0o755), //nolint:gosec // another user runs the programs
			stage.Build(
				context.Background(),
				root,
				dir,
				"./cmd/cadastre-agent",
				"./cmd/cadastre-cni",
				"./cmd/cadastre",
				"./cmd/cadastre-docker-plugin",
				stage.BridgePlugin,
			),
			os.Setenv(binEnv, dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Bin returns the directory of the programs that Main has built.
func Bin() string { return os.Getenv(binEnv) }

// Run runs the scripts of a folder with more variables in their environment.
func Run(t *testing.T, dir string, environment map[string]string) {
	t.Helper()
	if err := stage.LookAtSources(root); err != nil { // the result depends on them
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("", "cmd") // a test's own folder is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	if err := os.Chmod(work, 0o755); err != nil { //nolint:gosec // another user looks into it
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		WorkdirRoot:         work,
		RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"agent":      runAgent,
			"docker":     runDocker,
			"store":      runStore,
			"disk":       runDisk,
			"pod":        runPod,
			"fill":       fill,
			"leases":     printLeases,
			"engine":     callEngine,
			"eventually": eventually,
			"metric":     checkMetric,
			"below":      checkBelow,
			"example":    runExample,
			"page":       runPage,
			"as":         runAs,
			"terminal":   runInTerminal,
			"node":       runNode,
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Geteuid() == 0, nil
			case "netns":
				_, _, err := stage.Find(t.Context(), stage.WayRoot)
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q: only root and netns are known", name)
		},
		Setup: func(env *testscript.Env) error {
			for name, value := range environment {
				env.Setenv(name, value)
			}
			m := &machine{Agent: stage.Agent{
				Place:  stage.Place{Root: env.WorkDir, Bin: Bin(), Dir: env.WorkDir},
				Config: filepath.Join(env.WorkDir, "contiv.conf"),
				Node:   "node-1",
			}}
			env.Values[machineKey{}] = m
			env.Setenv("PATH", Bin()+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("CADASTRE_SOCKET", m.Socket())
			network := uniqueNetwork()
			env.Setenv("POD_NETWORK", network+".0/22")
			env.Setenv("PODS", nodeBlock(network))
			env.Defer(func() {
				rested := m.rest()
				m.close()
				if rested != nil {
					env.T().Fatal(rested)
				}
			})
			return os.Chmod(env.WorkDir, 0o755) //nolint:gosec // another user looks into it
		},
	})
}
