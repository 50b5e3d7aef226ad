// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Try does in a namespace of its own what a CNI plugin does in a node's: it
// makes a bridge and a pair of veth interfaces and turns forwarding on. The
// error says what of it this process may not do here.
func Try() (err error) {
	n, err := New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return n.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "try-bridge"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make a bridge: %w", err)
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "try-veth"}, PeerName: "try-peer"}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make a pair of veth interfaces: %w", err)
		}
		// os.WriteFile would create what is not there
		f, err := os.OpenFile("/proc/sys/net/ipv4/ip_forward", os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("turn forwarding on: %w", err)
		}
		_, err = f.WriteString("1")
		return errors.Join(err, f.Close())
	})
}

// Enter makes cmd start as root of a new user namespace and of a new network
// namespace that belongs to it. Outside, it stays who this process is.
func Enter(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
}
