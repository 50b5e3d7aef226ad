// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// uptime returns the time since boot, which the agent and this program share; 0: not known.
func uptime() time.Duration {
	const clockBoottime = 7
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}

// beganAt returns the time of a DEL for an agent that reads the DEL later. It is zero if
// the machine does not tell.
func beganAt(uptime time.Duration) cni.Began {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || uptime == 0 {
		return cni.Began{}
	}
	return cni.Began{BootID: string(bytes.TrimSpace(id)), Uptime: uptime}
}
