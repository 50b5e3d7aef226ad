// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// showLeases shows who holds what and compares it with what the pods were told.
func (d *demo) showLeases(ctx context.Context) error {
	d.Step("See who holds what.")
	if err := d.Show(ctx, d.Agent, "leases"); err != nil {
		return err
	}
	all, _, err := d.Leases(ctx)
	if err != nil {
		return err
	}
	return stage.VerifyHeld(all, d.pods, false)
}

// verifyDeleted fails if anything is held but what the node itself needs.
func (d *demo) verifyDeleted(ctx context.Context) error {
	all, _, err := d.Leases(ctx)
	if err != nil {
		return err
	}
	held, cooling := 0, 0
	for _, l := range all {
		switch {
		case l.State == "held" && l.Purpose == "infra":
			held++
		case l.State == "cooling" && l.Purpose == "pod":
			cooling++
		default:
			return fmt.Errorf(
				"after every DEL %s is %s for %s/%s (%s)",
				l.IP,
				l.State,
				l.PodNamespace,
				l.PodName,
				l.Purpose,
			)
		}
	}
	d.Say("Held now: only the node's own %d. Cooling, before another pod may have them: %d.", held, cooling)
	return nil
}
