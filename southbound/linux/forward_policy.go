// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and layouts of linux/netfilter_ipv4/ip_tables.h; those of IPv6 have the same
// numbers.
const (
	legacyGetInfo    = 64
	legacyGetEntries = 65
	legacyInfoSize   = 84 // struct ipt_getinfo
	legacyUnderflow  = 56 // in it: offset of the policy of each hook
	legacySize       = 80 // in it: size of the entries
	legacyNameSize   = 32
	legacyEntriesAt  = 40 // in struct ipt_get_entries
	legacyTargetSize = 32 // struct xt_entry_target, in front of the verdict
	legacyDrop       = -1 // verdict NF_DROP
)

// legacyFamily holds what differs between the tables of IPv4 and of IPv6.
type legacyFamily struct {
	program  string
	tables   string // path of the list of tables, in the namespace of the calling thread
	family   int
	level    int
	targetAt int // field target_offset of struct ipt_entry
}

func legacyFamilies() []legacyFamily {
	return []legacyFamily{
		{"iptables-legacy", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.SOL_IP, 88},
		{"ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6, 140},
	}
}

// drops reports whether the policy of chain FORWARD is DROP. It needs no program, so that a
// container without one sees it too. It is called within the namespace.
func (f legacyFamily) drops() (bool, error) {
	fd, err := unix.Socket(f.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	info := make([]byte, legacyInfoSize)
	copy(info, filterTable)
	if err := f.get(fd, legacyGetInfo, info); err != nil {
		return false, err
	}
	policy := binary.NativeEndian.Uint32(info[legacyUnderflow+4*unix.NF_INET_FORWARD:])
	size := binary.NativeEndian.Uint32(info[legacySize:])
	entries := make([]byte, legacyEntriesAt+size)
	copy(entries, filterTable)
	binary.NativeEndian.PutUint32(entries[legacyNameSize:], size)
	if err := f.get(fd, legacyGetEntries, entries); err != nil {
		return false, err
	}
	at := legacyEntriesAt + int(policy)
	if at+f.targetAt+2 > len(entries) {
		return false, fmt.Errorf("read the tables of %s: the policy is behind their end", f.program)
	}
	at += int(binary.NativeEndian.Uint16(entries[at+f.targetAt:])) + legacyTargetSize
	if at+4 > len(entries) {
		return false, fmt.Errorf("read the tables of %s: the verdict is behind their end", f.program)
	}
	return int32(binary.NativeEndian.Uint32(entries[at:])) == legacyDrop, nil
}

// get fills buffer with the answer to a request.
func (f legacyFamily) get(fd, request int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(
		unix.SYS_GETSOCKOPT,
		uintptr(fd),
		uintptr(f.level),
		uintptr(request),
		uintptr(unsafe.Pointer(&buffer[0])),
		uintptr(unsafe.Pointer(&size)),
		0,
	)
	if errno != 0 {
		return fmt.Errorf("read the tables of %s: %w", f.program, os.NewSyscallError("getsockopt", errno))
	}
	return nil
}
