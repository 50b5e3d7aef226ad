// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/witness"
)

// dockerRecords names the records of Docker's driver in the database.
const dockerRecords = "docker"

// engineView is an engine that was read before.
type engineView struct{ *witness.EngineView }

// Read returns the view.
func (v engineView) Read(context.Context) (*witness.EngineView, error) { return v.EngineView, nil }

// restoreDocker has the driver restore the pools of the engine's networks, with their
// gateways, auxiliary addresses and endpoints, in a new database. So the rule by which the
// driver attributes an address is the same here and when it runs.
func restoreDocker(
	ctx context.Context,
	l *ledger.Ledger,
	records ipamapi.Records,
	conf contivconf.Docker,
	w *witness.World,
) error {
	if w.Engine == nil {
		return nil
	}
	c := ipamapi.Config{HostID: "rebuild", Serial: conf.Serial, CoolDown: conf.CoolDown} // no new pool is opened here
	if conf.FromPods {
		c.FromPods.Pool = podPool
	}
	_, err := ipamapi.New(ctx, ipamapi.Deps{
		Ledger:  l,
		Records: records,
		Engine:  ipamapi.Engine{Reader: engineView{w.Engine}, Name: w.Driver},
		Config:  c,
	})
	if err != nil {
		return fmt.Errorf("restore the pools of the Docker engine: %w", err)
	}
	return nil
}
