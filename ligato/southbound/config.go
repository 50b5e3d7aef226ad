// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

var (
	errNoRules   = errors.New("the Linux plugins of Ligato have neither rules nor routing tables")
	errLinkLocal = errors.New("the Linux plugins of Ligato lose link-local addresses at a resync")
)

// CheckConfig fails if conf selects a network that the Linux plugins of Ligato cannot
// carry, for the node of a name.
func CheckConfig(conf *contivconf.Config, node string) error {
	c := conf.Cadastre
	refuse := func(key, value, lacks, want string) error {
		return fmt.Errorf("%s %q: the Linux plugins of Ligato have no %s: want %s", key, value, lacks, want)
	}
	var errs []error
	switch c.Transport {
	case contivconf.TransportVXLAN:
		errs = append(errs, refuse("cadastre.transport", string(c.Transport), "vxlan links", "nodeip, hostgw or none"))
	case contivconf.TransportWireGuard:
		errs = append(
			errs,
			refuse("cadastre.transport", string(c.Transport), "WireGuard links", "nodeip, hostgw or none"),
		)
	}
	if c.Dataplane != contivconf.DataplaneLinux && c.Dataplane != contivconf.DataplaneNone {
		errs = append(errs, fmt.Errorf("cadastre.dataplane %q: this agent has the Linux plugins of Ligato alone: "+
			"want linux or none", c.Dataplane))
	}
	if c.Dataplane == contivconf.DataplaneLinux && conf.Masquerades(node) {
		errs = append(errs, refuse("cadastre.masquerade", "true", "NAT of the node's address", "false"))
	}
	if c.PodTable != 0 {
		errs = append(errs, refuse("podVRFID", fmt.Sprint(c.PodTable), "routing tables", "1, the main table"))
	}
	if c.AllowForward {
		errs = append(errs, refuse("cadastre.allowForward", "true", "rules of a firewall", "false"))
	}
	if c.PodBlocks == contivconf.PodBlocksInterfaces || c.PodBlocks == contivconf.PodBlocksNetResource {
		errs = append(errs, refuse("cadastre.podBlocks", string(c.PodBlocks),
			"rules that select a network interface by the source address", "nodeid, podcidr or static"))
	}
	return errors.Join(errs...)
}
