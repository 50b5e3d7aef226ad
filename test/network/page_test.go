// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import "time"

// figure is a measurement of a run.
type figure struct {
	layout layout
	damage string
	healed time.Duration
	loss   loss
}

// record keeps a figure for the page.
func (c *cluster) record(f figure) {}
