// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"errors"
	"fmt"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/memif"
)

// createMemif makes an interface of shared memory, and its socket.
func (x *change) createMemif(l *link) (index uint32, name, device string, err error) {
	socket, err := x.call("make socket "+l.path, &memif.MemifSocketFilenameAddDelV2{
		IsAdd:          true,
		SocketID:       none,
		SocketFilename: l.path,
	})
	if err != nil {
		return 0, "", "", err
	}
	id := socket.(*memif.MemifSocketFilenameAddDelV2Reply).SocketID
	reply, err := x.call("make a memif interface", &memif.MemifCreateV2{
		Role:     memif.MEMIF_ROLE_API_MASTER,
		Mode:     memif.MEMIF_MODE_API_ETHERNET,
		SocketID: id,
		HwAddr:   l.mac,
	})
	if err != nil {
		return 0, "", "", errors.Join(err, x.removeSocket(id))
	}
	return uint32(reply.(*memif.MemifCreateV2Reply).SwIfIndex), fmt.Sprintf("memif%d/0", id), memifDevice, nil
}

// removeMemif removes an interface of shared memory, and its socket.
func (x *change) removeMemif(a *actual) error {
	request := &memif.MemifDelete{SwIfIndex: interface_types.InterfaceIndex(a.index)}
	if err := x.do("remove "+a.name, request, api.INVALID_SW_IF_INDEX); err != nil {
		return err
	}
	var id, number uint32
	if _, err := fmt.Sscanf(a.name, "memif%d/%d", &id, &number); err != nil {
		return fmt.Errorf("remove the socket of %s: its name has no number: %w", a.name, err)
	}
	return x.removeSocket(id)
}

// removeSocket removes a socket of memif, which nothing else does.
func (x *change) removeSocket(id uint32) error {
	request := &memif.MemifSocketFilenameAddDelV2{SocketID: id}
	return x.do(fmt.Sprintf("remove socket %d of memif", id), request, api.INVALID_ARGUMENT)
}
