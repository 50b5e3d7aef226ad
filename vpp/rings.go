// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import "go.fd.io/govpp/binapi/af_packet"

const (
	// ringFrames is the number of packets in a ring of a packet interface.
	ringFrames = 512
	// frameUnit divides the size of a frame, so that blocks end with a page.
	frameUnit = 2048
	// frameHeaders is more than the kernel and Ethernet put before a packet in a frame.
	frameHeaders = 128
)

// request returns the request for a packet interface. The kernel locks the memory of its rings:
// with the default of VPP, whose frames hold 64 KiB, 138 MB for each interface, and VPP ended
// before it had 100 of them. The link of the underlay keeps it, because a NIC joins received
// packets.
func (l *link) request() *af_packet.AfPacketCreateV3 {
	r := &af_packet.AfPacketCreateV3{
		Mode:       af_packet.AF_PACKET_API_MODE_ETHERNET,
		HwAddr:     l.mac,
		HostIfName: l.hostName,
		Flags:      af_packet.AF_PACKET_API_FLAG_VERSION_2,
	}
	if l.tag == mainTag() || l.mtu == 0 {
		return r
	}
	size := (l.mtu + frameHeaders + frameUnit - 1) / frameUnit * frameUnit
	r.RxFrameSize, r.TxFrameSize = size, size
	r.RxFramesPerBlock, r.TxFramesPerBlock = ringFrames, ringFrames
	return r
}
