// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"io/fs"
	"strconv"
)

// Settings of IFLA_INET6_CONF, which is an array.
const (
	inet6Conf       = 2  // IFLA_INET6_CONF
	inet6Forwarding = 0  // DEVCONF_FORWARDING
	inet6AcceptRA   = 3  // DEVCONF_ACCEPT_RA
	inet6GenMode    = 47 // DEVCONF_ADDR_GEN_MODE
)

// obeysRouters reports whether the kernel gives a link with these settings the addresses and
// the default route that a router advertises.
func obeysRouters(acceptRA, forwarding uint32) bool {
	return acceptRA == 2 || acceptRA == 1 && forwarding == 0
}

// linkObeysRouters reads the settings of a link in the network namespace of the calling
// thread.
func linkObeysRouters(link string) bool {
	var have [2]uint32
	for i, name := range []string{".accept_ra", ".forwarding"} {
		text, err := readSetting("net.ipv6.conf." + link + name)
		if err != nil {
			return false // the kernel has no IPv6, or the link is gone
		}
		number, _ := strconv.ParseUint(text, 10, 32) // the kernel writes numbers
		have[i] = uint32(number)
	}
	return obeysRouters(have[0], have[1])
}

// ignoreRouters makes a link ignore router advertisements, in the network namespace of the
// calling thread. No pod and no other node is a router of this node, and one that says so
// would get all IPv6 packets of the node. A setting that cannot be written is not an error
// while the kernel ignores them for another reason.
func ignoreRouters(link string) error {
	err := writeSetting("net.ipv6.conf."+link+".accept_ra", "0")
	if errors.Is(err, fs.ErrNotExist) || err != nil && !linkObeysRouters(link) {
		return nil
	}
	return err
}
