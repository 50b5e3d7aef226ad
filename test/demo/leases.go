// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// lent is what cadastre leases prints.
type lent struct {
	all  []localapi.Lease
	text string
}

func (d *demo) leases(ctx context.Context) (lent, error) {
	var l lent
	var err error
	l.text, err = d.read(ctx, &l.all, "leases")
	return l, err
}

// showLeases shows who holds what and compares it with what the pods were told.
func (d *demo) showLeases(ctx context.Context) error {
	d.step("See who holds what.")
	if err := d.show(ctx, "leases"); err != nil {
		return err
	}
	l, err := d.leases(ctx)
	if err != nil {
		return err
	}
	return verifyHeld(l.all, d.pods)
}

// verifyHeld fails unless each pod holds its address and nobody else holds one,
// but for the node itself.
func verifyHeld(leases []localapi.Lease, pods []*pod) error {
	holders := map[string]*pod{}
	for _, p := range pods {
		holders[p.address.Addr().String()] = p
	}
	for _, l := range leases {
		p := holders[l.IP]
		if l.Purpose == "infra" && p == nil {
			continue
		}
		if p == nil {
			return fmt.Errorf("%s is %s for %s/%s, who was given no address", l.IP, l.State, l.PodNamespace, l.PodName)
		}
		delete(holders, l.IP)
		got := localapi.Lease{IP: l.IP, State: l.State, Purpose: l.Purpose, Network: l.Network, ContainerID: l.ContainerID,
			IfName: l.IfName, PodName: l.PodName, PodNamespace: l.PodNamespace}
		want := localapi.Lease{IP: l.IP, State: "held", Purpose: "pod", Network: networkName, ContainerID: p.containerID(),
			IfName: podInterface, PodName: p.name, PodNamespace: podNamespace}
		if got != want {
			return fmt.Errorf("the lease of %s is %+v, not %+v", l.IP, got, want)
		}
	}
	for ip, p := range holders {
		return fmt.Errorf("%s was given %s, and there is no lease of it", p.name, ip)
	}
	return nil
}

// verifyDeleted fails if anything is held but what the node itself needs.
func (d *demo) verifyDeleted(ctx context.Context) error {
	l, err := d.leases(ctx)
	if err != nil {
		return err
	}
	held, cooling := 0, 0
	for _, l := range l.all {
		switch {
		case l.State == "held" && l.Purpose == "infra":
			held++
		case l.State == "cooling" && l.Purpose == "pod":
			cooling++
		default:
			return fmt.Errorf("after every DEL %s is %s for %s/%s (%s)", l.IP, l.State, l.PodNamespace, l.PodName, l.Purpose)
		}
	}
	d.say("Held now: only the node's own %d. Cooling, before another pod may have them: %d.", held, cooling)
	return nil
}
