// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"errors"
	"fmt"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/nat44_ed"
	"go.fd.io/govpp/binapi/nat_types"
)

const (
	protocolUDP = 17
	vxlanPort   = 4789
)

// makeNAT translates the sources of what leaves by an interface to its address. Packets of the
// tunnels keep theirs. Packets that arrive there and belong to no translation pass.
func (x *change) makeNAT(n nat) error {
	if !x.st.natPlugin {
		return errors.New("translate outgoing packets: VPP has no plugin nat: want it to load nat_plugin.so")
	}
	a := x.st.byTag[n.link]
	if a == nil {
		return fmt.Errorf("translate outgoing packets: interface %s is missing", n.link)
	}
	if !x.st.natEnabled {
		enable := &nat44_ed.Nat44EdPluginEnableDisable{Enable: true}
		if err := x.do("enable NAT", enable, api.FEATURE_ALREADY_ENABLED); err != nil {
			return err
		}
		x.st.natEnabled = true
	}
	if !x.st.natForward {
		forward := &nat44_ed.Nat44ForwardingEnableDisable{Enable: true}
		if err := x.do("let packets without translation pass", forward); err != nil {
			return err
		}
		x.st.natForward = true
	}
	if !x.st.natAddress[a.index] {
		if err := x.natAddress(a, true); err != nil {
			return err
		}
	}
	if !x.st.natVXLAN[a.index] {
		if err := x.natVXLAN(a, true); err != nil {
			return err
		}
	}
	if x.st.natOutput[a.index] {
		return nil
	}
	return x.natOutput(a, true)
}

// removeNAT ends the translation of what leaves by an interface. The plugin stays enabled:
// others may use it.
func (x *change) removeNAT(n nat) error {
	a := x.st.byTag[n.link]
	if a == nil {
		return nil
	}
	if x.st.natOutput[a.index] {
		if err := x.natOutput(a, false); err != nil {
			return err
		}
	}
	if x.st.natVXLAN[a.index] {
		if err := x.natVXLAN(a, false); err != nil {
			return err
		}
	}
	if x.st.natAddress[a.index] {
		return x.natAddress(a, false)
	}
	return nil
}

func (x *change) natAddress(a *actual, add bool) error {
	err := x.do("translate to the address of "+a.name, &nat44_ed.Nat44AddDelInterfaceAddr{
		IsAdd:     add,
		SwIfIndex: interface_types.InterfaceIndex(a.index),
	}, natAllowed(add)...)
	if err == nil {
		setTo(x.st.natAddress, a.index, add)
	}
	return err
}

func (x *change) natVXLAN(a *actual, add bool) error {
	err := x.do("leave the tunnels untranslated", &nat44_ed.Nat44AddDelIdentityMapping{
		IsAdd:     add,
		Flags:     nat_types.NAT_IS_NONE,
		Protocol:  protocolUDP,
		Port:      vxlanPort,
		SwIfIndex: interface_types.InterfaceIndex(a.index),
		Tag:       tagPrefix + "vxlan",
	}, natAllowed(add)...)
	if err == nil {
		setTo(x.st.natVXLAN, a.index, add)
	}
	return err
}

func (x *change) natOutput(a *actual, add bool) error {
	err := x.do("translate what leaves by "+a.name, &nat44_ed.Nat44EdAddDelOutputInterface{
		IsAdd:     add,
		SwIfIndex: interface_types.InterfaceIndex(a.index),
	}, natAllowed(add)...)
	if err == nil {
		setTo(x.st.natOutput, a.index, add)
	}
	return err
}

// natAllowed returns the refusals that mean that the wanted state is there already.
func natAllowed(add bool) []api.VPPApiError {
	if add {
		return []api.VPPApiError{api.VALUE_EXIST}
	}
	return []api.VPPApiError{api.NO_SUCH_ENTRY}
}

// setTo adds an index to a set, or removes it.
func setTo(set map[uint32]bool, index uint32, add bool) {
	if add {
		set[index] = true
	} else {
		delete(set, index)
	}
}
