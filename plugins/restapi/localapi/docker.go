// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

// DockerPool is one pool of Docker's networks.
type DockerPool struct {
	ID           string `json:"id"` // as the engine names it
	AddressSpace string `json:"addressSpace"`
	CIDR         string `json:"cidr"`
	SubPool      string `json:"subPool,omitempty"` // --ip-range; "": all of CIDR
	Group        string `json:"group,omitempty"`   // --ipam-opt cadastre.group
	Chosen       bool   `json:"chosen"`            // the request named no subnet
	FromPods     bool   `json:"fromPods"`          // CIDR is a part of this node's pod block
	Requests     int    `json:"requests"`          // that the engine has not released yet
	Leases       int    `json:"leases"`            // addresses requested through it, gateways included
}

// DockerPoolRelease names a pool that the engine does not release itself. Force
// releases also one with leases.
type DockerPoolRelease struct {
	ID    string `json:"id"`
	Force bool   `json:"force,omitempty"`
}

// DockerPoolReleased has the leases that ended with the pool.
type DockerPoolReleased struct {
	ID     string  `json:"id"`
	Leases []Lease `json:"leases"`
}
