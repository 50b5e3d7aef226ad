// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"io"
	"os"

	"k8s.io/klog/v2"
)

// Options holds the parts of a process that Run uses.
type Options struct {
	Args           []string // without the program's name
	Stdout, Stderr io.Writer
}

// Run runs the program until ctx ends or a part of it fails, and returns its exit code.
func Run(ctx context.Context, o Options, more ...Option) int {
	h := host{hostname: os.Hostname, clients: connect, store: openStore, klog: klog.SetSlogLogger}
	for _, add := range more {
		add(&h)
	}
	return run(ctx, o.Args, o.Stdout, o.Stderr, h)
}
