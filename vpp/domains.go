// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/l2"

	"github.com/cadastre/cadastre/southbound"
)

// splitHorizon is the group of tunnels: what arrives through one does not leave through
// another.
const splitHorizon = 1

func (x *change) makeDomain(d domain) error {
	have, found := x.st.domains[d.id]
	if found && have.tag == d.tag && !have.learn {
		return nil
	}
	if found && roleOf(have.tag) == "" {
		return fmt.Errorf("%w: bridge domain %d has tag %q, not %q", southbound.ErrForeign, d.id, have.tag, d.tag)
	}
	if found {
		if err := x.removeDomain(d.id); err != nil {
			return err
		}
	}
	err := x.do(fmt.Sprintf("make bridge domain %d", d.id), &l2.BridgeDomainAddDelV2{
		BdID:    d.id,
		Flood:   true,
		UuFlood: true,
		Forward: true,
		BdTag:   d.tag,
		IsAdd:   true,
	})
	if err == nil {
		x.st.domains[d.id] = actualDomain{tag: d.tag}
	}
	return err
}

// removeDomain removes a bridge domain after its ports, which VPP requires.
func (x *change) removeDomain(id uint32) error {
	have, found := x.st.domains[id]
	if !found || roleOf(have.tag) == "" {
		return nil
	}
	for _, a := range x.st.links {
		if a.domain == id {
			if err := x.leaveDomain(a); err != nil {
				return err
			}
		}
	}
	err := x.do(fmt.Sprintf("remove bridge domain %d", id), &l2.BridgeDomainAddDelV2{BdID: id}, api.NO_SUCH_ENTRY)
	if err == nil {
		delete(x.st.domains, id)
	}
	return err
}

// leaveDomain takes an interface out of its bridge domain.
func (x *change) leaveDomain(a *actual) error {
	for m := range a.macs {
		if err := x.changeMAC(a, m, false); err != nil {
			return err
		}
	}
	kind := l2.L2_API_PORT_TYPE_NORMAL
	if a.bvi {
		kind = l2.L2_API_PORT_TYPE_BVI
	}
	err := x.do("leave bridge domain", &l2.SwInterfaceSetL2Bridge{
		RxSwIfIndex: interface_types.InterfaceIndex(a.index),
		BdID:        a.domain,
		PortType:    kind,
	})
	if err == nil {
		a.domain, a.bvi = 0, false
	}
	return err
}

// setDomain puts an interface into its bridge domain, with the addresses behind it.
func (x *change) setDomain(l *link, a *actual) error {
	if a.domain != 0 && (a.domain != l.domain || a.bvi != l.bvi) {
		if err := x.leaveDomain(a); err != nil {
			return err
		}
	}
	if l.domain == 0 {
		return nil
	}
	if a.domain == 0 {
		request := &l2.SwInterfaceSetL2Bridge{
			RxSwIfIndex: interface_types.InterfaceIndex(a.index),
			BdID:        l.domain,
			PortType:    l2.L2_API_PORT_TYPE_NORMAL,
			Shg:         splitHorizon,
			Enable:      true,
		}
		if l.bvi {
			request.PortType, request.Shg = l2.L2_API_PORT_TYPE_BVI, 0
		}
		if err := x.do(fmt.Sprintf("join bridge domain %d", l.domain), request); err != nil {
			return err
		}
		a.domain, a.bvi = l.domain, l.bvi
	}
	wanted := map[mac]bool{}
	for _, m := range l.macs {
		wanted[m] = true
	}
	for m := range a.macs {
		if !wanted[m] {
			if err := x.changeMAC(a, m, false); err != nil {
				return err
			}
		}
	}
	for _, m := range l.macs {
		if !a.macs[m] {
			if err := x.changeMAC(a, m, true); err != nil {
				return err
			}
		}
	}
	return nil
}
