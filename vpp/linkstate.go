// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"
	"net/netip"

	"go.fd.io/govpp/api"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip_types"
	"go.fd.io/govpp/binapi/l2"
)

// dress gives an interface all that it lacks, and takes from it what it should not have.
func (x *change) dress(l *link, a *actual) error {
	index := interface_types.InterfaceIndex(a.index)
	if err := x.bind(l, a); err != nil {
		return err
	}
	if l.mtu != 0 && a.mtu != l.mtu {
		mtu := []uint32{l.mtu, l.mtu, l.mtu, l.mtu} // of layer 3 and its protocols
		err := x.do("set MTU", &interfaces.SwInterfaceSetMtu{SwIfIndex: index, Mtu: mtu})
		if err != nil {
			return err
		}
		a.mtu = l.mtu
	}
	if err := x.setAddresses(l, a); err != nil {
		return err
	}
	if err := x.setDomain(l, a); err != nil {
		return err
	}
	if !l.bvi { // the tunnels have their neighbours there
		if err := x.setNeighbours(l, a); err != nil {
			return err
		}
	}
	if a.up {
		return nil
	}
	err := x.do("set up", &interfaces.SwInterfaceSetFlags{
		SwIfIndex: index,
		Flags:     interface_types.IF_STATUS_API_FLAG_ADMIN_UP,
	})
	if err == nil {
		a.up = true
	}
	return err
}

// bind puts an interface into its table. VPP refuses that while it has addresses.
func (x *change) bind(l *link, a *actual) error {
	if a.tables == [2]uint32{l.table, l.table} {
		return nil
	}
	if err := x.setAddresses(&link{}, a); err != nil {
		return err
	}
	for i, six := range []bool{false, true} {
		if a.tables[i] == l.table {
			continue
		}
		err := x.do(fmt.Sprintf("bind to table %d", l.table), &interfaces.SwInterfaceSetTable{
			SwIfIndex: interface_types.InterfaceIndex(a.index),
			IsIPv6:    six,
			VrfID:     l.table,
		})
		if err != nil {
			return err
		}
		a.tables[i] = l.table
	}
	return nil
}

// setAddresses makes the addresses of an interface the wanted ones, or those of its lender.
func (x *change) setAddresses(l *link, a *actual) error {
	lender := none
	if l.lender != "" {
		of := x.st.byTag[l.lender]
		if of == nil {
			return fmt.Errorf("interface %s, which has the addresses, is missing", l.lender)
		}
		lender = of.index
	}
	if a.lender != none && a.lender != lender {
		if err := x.borrow(a, a.lender, false); err != nil {
			return err
		}
	}
	wanted := map[netip.Prefix]bool{}
	for _, p := range l.addresses {
		wanted[p] = true
	}
	for p := range a.addresses {
		if !wanted[p] {
			if err := x.changeAddress(a, p, false); err != nil {
				return err
			}
		}
	}
	for _, p := range l.addresses {
		if !a.addresses[p] {
			if err := x.changeAddress(a, p, true); err != nil {
				return err
			}
		}
	}
	if lender == none || a.lender == lender {
		return nil
	}
	return x.borrow(a, lender, true)
}

func (x *change) borrow(a *actual, lender uint32, add bool) error {
	// The names of the fields are the wrong way round in VPP.
	err := x.do("use the addresses of another interface", &interfaces.SwInterfaceSetUnnumbered{
		SwIfIndex:           interface_types.InterfaceIndex(lender),
		UnnumberedSwIfIndex: interface_types.InterfaceIndex(a.index),
		IsAdd:               add,
	})
	if err != nil {
		return err
	}
	a.lender = none
	if add {
		a.lender = lender
	}
	return nil
}

func (x *change) changeAddress(a *actual, p netip.Prefix, add bool) error {
	what, allowed := "add address "+p.String(), []api.VPPApiError(nil)
	if !add {
		what, allowed = "remove address "+p.String(), []api.VPPApiError{api.ADDRESS_NOT_FOUND_FOR_INTERFACE}
	}
	err := x.do(what, &interfaces.SwInterfaceAddDelAddress{
		SwIfIndex: interface_types.InterfaceIndex(a.index),
		IsAdd:     add,
		Prefix:    ip_types.AddressWithPrefix(vppPrefix(p)),
	}, allowed...)
	if err != nil {
		return err
	}
	if add {
		a.addresses[p] = true
	} else {
		delete(a.addresses, p)
	}
	return nil
}

func (x *change) changeMAC(a *actual, m mac, add bool) error {
	err := x.do("forward "+m.String(), &l2.L2fibAddDel{
		Mac:       m,
		BdID:      a.domain,
		SwIfIndex: interface_types.InterfaceIndex(a.index),
		IsAdd:     add,
		StaticMac: add,
	}, removals(add)...)
	if err != nil {
		return err
	}
	if add {
		a.macs[m] = true
	} else {
		delete(a.macs, m)
	}
	return nil
}

// removals returns the refusals that are not errors of a removal.
func removals(add bool) []api.VPPApiError {
	if add {
		return nil
	}
	return []api.VPPApiError{api.NO_SUCH_ENTRY}
}
