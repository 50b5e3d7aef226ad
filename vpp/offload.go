// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of the kernel's ethtool interface.
const (
	getTransmitChecksum = 0x16
	setTransmitChecksum = 0x17
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// disableOffloads makes the kernel compute the checksums of what it sends over a link of the
// current network namespace: VPP passes packets on as it reads them. Without these, the kernel
// does not send larger segments than the MTU either.
func disableOffloads(name string) error {
	on, err := transmitChecksum(name, getTransmitChecksum)
	if err == nil && on {
		_, err = transmitChecksum(name, setTransmitChecksum)
	}
	if err != nil {
		return fmt.Errorf("switch the checksum offload of %s off: %w", name, err)
	}
	return nil
}

// offloadsDisabled reports whether disableOffloads would change nothing.
func offloadsDisabled(name string) (bool, error) {
	on, err := transmitChecksum(name, getTransmitChecksum)
	return !on, err
}

func transmitChecksum(name string, command uint32) (on bool, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	value := ethtoolValue{command: command}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	request.data = unsafe.Pointer(&value)
	_, _, number := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if number != 0 {
		return false, number
	}
	return value.data != 0, nil
}
