// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"fmt"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/af_packet"
	"go.fd.io/govpp/binapi/fib"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/ip"
	"go.fd.io/govpp/binapi/ip_neighbor"
	"go.fd.io/govpp/binapi/l2"
	"go.fd.io/govpp/binapi/vpe"
	"go.fd.io/govpp/binapi/vxlan"
)

// needed returns the messages without which no value can be made. Those of the
// plugin nat are missing in a VPP that does not load it.
func needed() []api.Message {
	return []api.Message{
		&interfaces.SwInterfaceDump{},
		&interfaces.WantInterfaceEvents{},
		&interfaces.SwInterfaceTagAddDel{},
		&interfaces.SwInterfaceSetFlags{},
		&interfaces.SwInterfaceSetMtu{},
		&interfaces.SwInterfaceSetTable{},
		&interfaces.SwInterfaceGetTable{},
		&interfaces.SwInterfaceSetUnnumbered{},
		&interfaces.SwInterfaceAddDelAddress{},
		&interfaces.CreateLoopbackInstance{},
		&interfaces.DeleteLoopback{},
		&fib.FibSourceDump{},
		&fib.FibSourceAdd{},
		&ip.IPTableDump{},
		&ip.IPTableAddDelV2{},
		&ip.IPAddressDump{},
		&ip.IPUnnumberedDump{},
		&ip.IPRouteV2Dump{},
		&ip.IPRouteAddDelV2{},
		&ip_neighbor.IPNeighborDump{},
		&ip_neighbor.IPNeighborAddDel{},
		&l2.BridgeDomainDump{},
		&l2.BridgeDomainAddDelV2{},
		&l2.SwInterfaceSetL2Bridge{},
		&l2.L2FibTableDump{},
		&l2.L2fibAddDel{},
		&af_packet.AfPacketCreateV3{},
		&af_packet.AfPacketDelete{},
		&vxlan.VxlanAddDelTunnelV3{},
		&vxlan.VxlanTunnelV2Dump{},
	}
}

// unknown returns an error that names the first message that VPP does not have in this form.
func (s *session) unknown(messages []api.Message) error {
	for _, m := range messages {
		if !s.knows(m) {
			return fmt.Errorf("it has no message %s with the CRC %s, which is that of VPP 25.10: "+
				"want that version, with the plugin of the message loaded", m.GetMessageName(), m.GetCrcString())
		}
	}
	return nil
}

// version returns the version that VPP reports.
func (s *session) version(ctx context.Context) string {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	reply, err := vpe.NewServiceClient(s.conn).ShowVersion(ctx, &vpe.ShowVersion{})
	if err != nil {
		return "unknown"
	}
	return reply.Version
}
