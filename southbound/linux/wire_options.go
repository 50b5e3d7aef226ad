// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"log/slog"
	"time"
)

// WireOptions holds the options of NewWires. The zero value is for the network namespace
// of the process.
type WireOptions struct {
	// Namespace is the path of the node's network namespace; "": that of the process.
	Namespace string
	Log       *slog.Logger                         // nil: no log
	Now       func() time.Time                     // nil: time.Now
	After     func(time.Duration) <-chan time.Time // nil: time.After
}

func (opt WireOptions) withDefaults() WireOptions {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.After == nil {
		opt.After = time.After
	}
	return opt
}
