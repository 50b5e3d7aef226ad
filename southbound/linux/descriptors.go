// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/southbound"
)

// Options holds the options of Descriptors. The zero value is for the network namespace of
// the process.
type Options struct {
	// Namespace is the path of the node's network namespace, as in CNI_NETNS; "": that of
	// the process.
	Namespace string
	// PrivateKey is this node's WireGuard key, in base64; "": there are no WireGuard tunnels.
	PrivateKey string
	// AllowForward adds rules that let Docker's firewall forward the pods' packets.
	AllowForward bool
	// BootID is that of the present boot, for the identities of pods' network namespaces; "":
	// that of the kernel.
	BootID string
	// BareHostEnds leaves the host ends of wires without addresses, neighbours, routes and
	// rules, for another switch that reads the packets there and has host_mac as its own. The
	// kernel then has another MAC there, so it takes none of these packets.
	BareHostEnds bool
	Log          *slog.Logger                         // nil: no log
	Now          func() time.Time                     // nil: time.Now
	After        func(time.Duration) <-chan time.Time // nil: time.After

	monitor *monitor // of all descriptors that are opened together
}

func (opt Options) withDefaults() Options {
	if opt.BootID == "" {
		id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without one no identity is certain
		opt.BootID = strings.TrimSpace(string(id))
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.After == nil {
		opt.After = time.After
	}
	if opt.monitor == nil {
		opt.monitor = newMonitor(opt.Namespace, opt.After)
	}
	return opt
}

// Routes returns the descriptor of the routes to other nodes' pods alone, for a node whose
// wires another program makes.
func Routes(opt Options) ([]southbound.Descriptor, error) {
	return open(func() (southbound.Descriptor, error) { return newRoutes(opt) })
}

// Descriptors returns all descriptors of a node in the order in which a key is offered to
// them. They are closed by the scheduler.
func Descriptors(opt Options) ([]southbound.Descriptor, error) {
	opt = opt.withDefaults()
	overlay, err := newOverlay(opt, &forwarding{opt.Namespace, opt.Log})
	if err != nil {
		return nil, err
	}
	all, err := open(
		func() (southbound.Descriptor, error) { return newRoutes(opt) },
		func() (southbound.Descriptor, error) { return NewWires(opt) },
		func() (southbound.Descriptor, error) { return NewNetworks(opt) },
	)
	if err != nil {
		return nil, errors.Join(err, closeAll(overlay))
	}
	up, err := newUplinks(opt)
	if err != nil {
		return nil, errors.Join(err, closeAll(overlay), closeAll(all))
	}
	return slices.Concat(overlay, all, up), nil
}

// open calls constructors, and closes what was opened if one fails.
func open(constructors ...func() (southbound.Descriptor, error)) (all []southbound.Descriptor, err error) {
	for _, construct := range constructors {
		d, err := construct()
		if err != nil {
			return nil, errors.Join(err, closeAll(all))
		}
		all = append(all, d)
	}
	return all, nil
}

// closeAll closes descriptors that hold something open.
func closeAll(all []southbound.Descriptor) error {
	var errs []error
	for _, d := range all {
		if c, ok := d.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
