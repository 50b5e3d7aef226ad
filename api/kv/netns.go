// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv

import "fmt"

// NetNSID identifies a network namespace. The zero value is that of an unknown one. A path
// identifies none: another namespace can be mounted there, and the kernel gives the number of
// a process that has ended to another one.
type NetNSID struct {
	Boot   string // boot ID of the machine; the kernel counts the rest anew in each boot
	Dev    uint64
	Inode  uint64 // the kernel uses the number again once the namespace has ended
	Cookie uint64 // the kernel uses no number again; 0: not known
}

// Known reports whether anything is known of the namespace.
func (id NetNSID) Known() bool { return id.Boot != "" && id.Inode != 0 }

// Is reports whether both are the same network namespace. certain is false if that cannot be
// told: equal inodes without both cookies may be those of two namespaces, one after the other.
func (id NetNSID) Is(other NetNSID) (same, certain bool) {
	switch {
	case !id.Known() || !other.Known():
		return false, false
	case id.Boot != other.Boot || id.Dev != other.Dev || id.Inode != other.Inode:
		return false, true
	case id.Cookie == 0 || other.Cookie == 0:
		return false, false
	}
	return id.Cookie == other.Cookie, true
}

// IsNot reports whether both are certainly two network namespaces.
func (id NetNSID) IsNot(other NetNSID) bool {
	same, certain := id.Is(other)
	return certain && !same
}

// String returns the numbers that "ip netns" and "lsns" show, or "" for an unknown namespace.
func (id NetNSID) String() string {
	switch {
	case !id.Known():
		return ""
	case id.Cookie == 0:
		return fmt.Sprintf("net:[%d]", id.Inode)
	}
	return fmt.Sprintf("net:[%d] (cookie %d)", id.Inode, id.Cookie)
}

// Message returns the identity as it is stored, nil if it is not known.
func (id NetNSID) Message() *NetworkNamespace {
	if !id.Known() {
		return nil
	}
	return &NetworkNamespace{BootId: id.Boot, Device: id.Dev, Inode: id.Inode, Cookie: id.Cookie}
}

// ID returns the identity that a message holds.
func (x *NetworkNamespace) ID() NetNSID {
	return NetNSID{x.GetBootId(), x.GetDevice(), x.GetInode(), x.GetCookie()}
}
