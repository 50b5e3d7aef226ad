// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"fmt"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// Holder names what a lease of a Docker pool is for. The engine tells a driver
// neither the network nor the container.
type Holder struct {
	PoolID   string // the pool through which the address was requested
	Endpoint string // its name or MAC, as far as the engine has told them
	MAC      string
	Gateway  bool // a gateway of PoolID, not an endpoint
	Fixed    bool // Endpoint is a container that does not run, whose user has fixed the address
}

// HolderOf returns the holder of a lease that the engine has requested; ok is
// false for every other lease.
func HolderOf(l ledger.Lease) (h Holder, ok bool) {
	o := holder(l)
	switch {
	case l.Purpose == ledger.ForDocker:
	case l.Purpose != ledger.ForInfra || !o.gateway || !strings.HasPrefix(l.Pool, ledgerPrefix):
		return Holder{}, false
	}
	return Holder{PoolID: l.Key.Network, Endpoint: o.name, MAC: o.mac, Gateway: o.gateway, Fixed: o.fixed}, true
}

// String describes the holder: the gateway, or the endpoint as far as it is known.
func (h Holder) String() string {
	switch {
	case h.Gateway:
		return "the gateway"
	case h.Fixed:
		return fmt.Sprintf("container %q, which does not run", h.Endpoint)
	case h.Endpoint != "" && h.Endpoint != h.MAC && h.MAC != "":
		return fmt.Sprintf("endpoint %q with MAC %s", h.Endpoint, h.MAC)
	case h.MAC != "":
		return "the endpoint with MAC " + h.MAC
	case h.Endpoint != "":
		return fmt.Sprintf("endpoint %q", h.Endpoint)
	}
	return "an endpoint that the engine has not named"
}
