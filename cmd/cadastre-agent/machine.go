// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"os"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// machineOf identifies the machine that the agent runs on. A product UUID that
// cannot be read, or that is a vendor's placeholder, is unknown.
func machineOf(opt options, clock clock) nodesync.Machine {
	text, _ := os.ReadFile(opt.productUUIDFile)
	return nodesync.Machine{ProductUUID: nodesync.ParseProductUUID(string(text)), BootID: clock.bootID}
}

// logMachine says what follows if the product UUID is not known. For a store of
// this node alone nothing does.
func logMachine(log *slog.Logger, p parts, opt options) {
	if p.mirror != nil && p.machine.ProductUUID == "" {
		log.Info("the machine's product UUID is not known, so a reboot looks like a cloned disk: nothing new is allocated after one until the cluster store confirms the node ID", "file", opt.productUUIDFile)
	}
}
