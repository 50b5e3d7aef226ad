// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import "time"

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
	// GivenUp holds the requests that no network of the engine accounts for; null: none.
	GivenUp *DockerGivenUp `json:"givenUp,omitempty"`
}

// DockerGivenUp describes requests that are taken back after a time, unless they are kept.
type DockerGivenUp struct {
	Requests int       `json:"requests"`
	Since    time.Time `json:"since"`
	Evidence string    `json:"evidence"`
}

// DockerPoolKeep names a pool of which no requests are to be given up.
type DockerPoolKeep struct {
	ID string `json:"id"`
}

// DockerPoolRelease names a pool that the engine does not release itself. Force
// releases also one with leases, and one that is in use.
type DockerPoolRelease struct {
	ID     string `json:"id"`
	Force  bool   `json:"force,omitempty"`
	DryRun bool   `json:"dryRun,omitempty"` // only say what would end
}

// DockerPoolReleased has the leases that ended with the pool, or would end, and what the
// witnesses show of the pool.
type DockerPoolReleased struct {
	ID     string  `json:"id"`
	Leases []Lease `json:"leases"`
	InUse
}
