// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"os"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// machineOf identifies the machine that the agent runs on. A product UUID that
// cannot be read, or that is a vendor's placeholder, is unknown.
func machineOf(node Node, clock clock) nodesync.Machine {
	text, _ := os.ReadFile(node.ProductUUIDFile)
	return nodesync.Machine{ProductUUID: nodesync.ParseProductUUID(string(text)), BootID: clock.bootID}
}

// logMachine says what follows if the product UUID is not known. For a store of
// this node alone nothing does.
func logMachine(log *slog.Logger, d dependencies, node Node) {
	if d.mirror != nil && d.machine.ProductUUID == "" {
		log.Info(
			"the machine's product UUID is not known, so a reboot looks like a cloned disk: nothing new is allocated after one until the cluster store confirms the node ID",
			"file",
			node.ProductUUIDFile,
		)
	}
}
