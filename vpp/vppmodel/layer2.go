// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vppmodel

import (
	"strings"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/l2"
	"go.fd.io/govpp/binapi/nat44_ed"
)

// maxBridge is the largest number of a bridge domain.
const maxBridge = 1<<24 - 1

// executeL2 executes requests about bridge domains.
func (w *world) executeL2(m api.Message) []api.Message {
	switch m := m.(type) {
	case *l2.BridgeDomainDump:
		var all []api.Message
		for id, b := range w.bridges {
			d := &l2.BridgeDomainDetails{
				BdID:         id,
				Learn:        b.learn,
				BdTag:        b.tag,
				BviSwIfIndex: interface_types.InterfaceIndex(none),
			}
			for _, i := range w.ifaces {
				if i.domain != id {
					continue
				}
				if i.bvi {
					d.BviSwIfIndex = interface_types.InterfaceIndex(i.index)
				}
				d.SwIfDetails = append(d.SwIfDetails, l2.BridgeDomainSwIf{
					SwIfIndex: interface_types.InterfaceIndex(i.index),
					Shg:       i.group,
				})
			}
			all = append(all, d)
		}
		return some(all)
	case *l2.BridgeDomainAddDelV2:
		return one(&l2.BridgeDomainAddDelV2Reply{Retval: retval(w.changeBridge(m)), BdID: m.BdID})
	case *l2.SwInterfaceSetL2Bridge:
		return one(&l2.SwInterfaceSetL2BridgeReply{Retval: retval(w.changePort(m))})
	case *l2.L2FibTableDump:
		var all []api.Message
		for id, e := range w.macs {
			if id.domain == m.BdID {
				all = append(all, &l2.L2FibTableDetails{
					BdID:      id.domain,
					Mac:       id.mac,
					SwIfIndex: interface_types.InterfaceIndex(e.index),
					StaticMac: e.static,
				})
			}
		}
		return some(all)
	case *l2.L2fibAddDel:
		return one(&l2.L2fibAddDelReply{Retval: retval(w.changeMAC(m))})
	}
	return nil
}

func (w *world) changeBridge(m *l2.BridgeDomainAddDelV2) api.VPPApiError {
	_, found := w.bridges[m.BdID]
	switch {
	case m.IsAdd && (found || m.BdID == 0):
		return api.BD_ALREADY_EXISTS
	case m.IsAdd && m.BdID > maxBridge:
		return api.BD_ID_EXCEED_MAX
	case m.IsAdd:
		w.bridges[m.BdID] = bridge{tag: strings.TrimRight(m.BdTag, "\x00"), learn: m.Learn}
		return 0
	case !found:
		return api.NO_SUCH_ENTRY
	}
	for _, i := range w.ifaces {
		if i.domain == m.BdID {
			return api.BD_IN_USE
		}
	}
	delete(w.bridges, m.BdID)
	return 0
}

func (w *world) changePort(m *l2.SwInterfaceSetL2Bridge) api.VPPApiError {
	i := w.ifaces[uint32(m.RxSwIfIndex)]
	if i == nil {
		return api.INVALID_SW_IF_INDEX
	}
	bvi := m.PortType == l2.L2_API_PORT_TYPE_BVI
	if !m.Enable {
		i.domain, i.bvi, i.group = 0, false, 0
		return 0
	}
	for _, o := range w.ifaces {
		if bvi && o != i && o.bvi && o.domain == m.BdID {
			return api.BD_ALREADY_HAS_BVI
		}
	}
	if _, found := w.bridges[m.BdID]; !found {
		w.bridges[m.BdID] = bridge{learn: true} // VPP makes it
	}
	i.domain, i.bvi, i.group = m.BdID, bvi, m.Shg
	return 0
}

func (w *world) changeMAC(m *l2.L2fibAddDel) api.VPPApiError {
	id := macID{m.BdID, m.Mac}
	if !m.IsAdd {
		if e, found := w.macs[id]; !found || e.index != uint32(m.SwIfIndex) {
			return api.NO_SUCH_ENTRY
		}
		delete(w.macs, id)
		return 0
	}
	if i := w.ifaces[uint32(m.SwIfIndex)]; i == nil {
		return api.INVALID_SW_IF_INDEX
	}
	if _, found := w.bridges[m.BdID]; !found {
		return api.NO_SUCH_ENTRY
	}
	w.macs[id] = fibEntry{index: uint32(m.SwIfIndex), static: m.StaticMac}
	return 0
}

// executeNAT executes requests to the plugin nat.
func (w *world) executeNAT(m api.Message) []api.Message {
	switch m := m.(type) {
	case *nat44_ed.Nat44ShowRunningConfig:
		r := &nat44_ed.Nat44ShowRunningConfigReply{ForwardingEnabled: w.natForward}
		if w.natEnabled {
			r.Sessions = 63 * 1024
		}
		return one(r)
	case *nat44_ed.Nat44EdOutputInterfaceGet:
		var all []api.Message
		for index := range w.natOutput {
			all = append(all, &nat44_ed.Nat44EdOutputInterfaceDetails{SwIfIndex: interface_types.InterfaceIndex(index)})
		}
		return append(all, &nat44_ed.Nat44EdOutputInterfaceGetReply{})
	case *nat44_ed.Nat44InterfaceAddrDump:
		var all []api.Message
		for index := range w.natAddress {
			all = append(all, &nat44_ed.Nat44InterfaceAddrDetails{SwIfIndex: interface_types.InterfaceIndex(index)})
		}
		return some(all)
	case *nat44_ed.Nat44IdentityMappingDump:
		var all []api.Message
		for index := range w.natVXLAN {
			all = append(all, &nat44_ed.Nat44IdentityMappingDetails{
				SwIfIndex: interface_types.InterfaceIndex(index),
				Protocol:  17,
				Port:      4789,
			})
		}
		return some(all)
	case *nat44_ed.Nat44EdPluginEnableDisable:
		if m.Enable && w.natEnabled {
			return one(&nat44_ed.Nat44EdPluginEnableDisableReply{Retval: retval(api.FEATURE_ALREADY_ENABLED)})
		}
		if !m.Enable && !w.natEnabled {
			return one(&nat44_ed.Nat44EdPluginEnableDisableReply{Retval: retval(api.FEATURE_ALREADY_DISABLED)})
		}
		w.natEnabled, w.natForward = m.Enable, false
		return one(&nat44_ed.Nat44EdPluginEnableDisableReply{})
	case *nat44_ed.Nat44ForwardingEnableDisable:
		w.natForward = m.Enable
		return one(&nat44_ed.Nat44ForwardingEnableDisableReply{})
	case *nat44_ed.Nat44EdAddDelOutputInterface:
		e := w.changeNAT(w.natOutput, uint32(m.SwIfIndex), m.IsAdd)
		return one(&nat44_ed.Nat44EdAddDelOutputInterfaceReply{Retval: retval(e)})
	case *nat44_ed.Nat44AddDelInterfaceAddr:
		e := w.changeNAT(w.natAddress, uint32(m.SwIfIndex), m.IsAdd)
		return one(&nat44_ed.Nat44AddDelInterfaceAddrReply{Retval: retval(e)})
	case *nat44_ed.Nat44AddDelIdentityMapping:
		e := w.changeNAT(w.natVXLAN, uint32(m.SwIfIndex), m.IsAdd)
		return one(&nat44_ed.Nat44AddDelIdentityMappingReply{Retval: retval(e)})
	}
	return nil
}

func (w *world) changeNAT(all map[uint32]bool, index uint32, add bool) api.VPPApiError {
	switch {
	case w.ifaces[index] == nil:
		return api.INVALID_SW_IF_INDEX
	case !w.natEnabled:
		return api.UNSUPPORTED
	case add && all[index]:
		return api.VALUE_EXIST
	case !add && !all[index]:
		return api.NO_SUCH_ENTRY
	}
	if add {
		all[index] = true
	} else {
		delete(all, index)
	}
	return 0
}
