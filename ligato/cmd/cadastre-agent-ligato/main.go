// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-agent-ligato is a node agent of Cadastre inside a Ligato agent: the pods'
// links, addresses and routes are made by Ligato's KVScheduler.
package main

import (
	"fmt"
	"os"

	"github.com/ligato/cn-infra/agent"

	"github.com/cadastre/cadastre/ligato"
)

func main() {
	root := ligato.New()
	a := agent.NewAgent(agent.AllPlugins(root), agent.QuitOnClose(root.Node.Ended()))
	err := a.Run()
	if err == nil {
		err = root.Node.Failure()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cadastre-agent-ligato: %v\n", err)
		os.Exit(1)
	}
}
