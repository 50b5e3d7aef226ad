// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import "sync/atomic"

// counts holds the numbers of events for the metrics.
type counts struct {
	assigned, released    atomic.Uint64
	noAddress             atomic.Uint64
	forcedENIs, forcedIPs atomic.Uint64
}
