// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import "time"

// GivenUp describes requests for a pool that no network of the engine accounts for.
type GivenUp struct {
	Requests int       `json:"requests"`
	Since    time.Time `json:"since"`
	Evidence string    `json:"evidence"`
}

// suspicion is the surplus of requests for a pool in the last observations.
type suspicion struct {
	engine  string // its ID
	used    uint64 // pool.used at the first of them
	surplus int
	first   time.Duration // uptime of the first of them
	pending bool
	since   time.Duration // uptime at which they became pending
}

