// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"log/slog"
	"os"
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
func Routes(opt Options) ([]*southbound.Descriptor, error) {
	d, err := openRoutes(opt)
	if err != nil {
		return nil, err
	}
	return []*southbound.Descriptor{d}, nil
}

func openRoutes(opt Options) (*southbound.Descriptor, error) {
	d, err := newRoutes(opt)
	if err != nil {
		return nil, err
	}
	return d.kind().Descriptor(), nil
}

func openNetworks(opt Options) (*southbound.Descriptor, error) {
	n, err := newNetworks(opt)
	if err != nil {
		return nil, err
	}
	return n.kind().Descriptor(), nil
}

// Descriptors returns all descriptors of a node in the order in which a key is offered to
// them. They are closed by the scheduler.
func Descriptors(opt Options) ([]*southbound.Descriptor, error) {
	opt = opt.withDefaults()
	overlay, err := newOverlay(opt, &forwarding{opt.Namespace, opt.Log})
	if err != nil {
		return nil, err
	}
	all := overlay
	for _, open := range []func(Options) (*southbound.Descriptor, error){openRoutes, Wires, openNetworks} {
		d, err := open(opt)
		if err != nil {
			return nil, errors.Join(err, closeAll(all))
		}
		all = append(all, d)
	}
	links, addresses, err := newUplinks(opt)
	if err != nil {
		return nil, errors.Join(err, closeAll(all))
	}
	return append(all, links.kind().Descriptor(), addresses.kind().Descriptor()), nil
}

// closeAll closes what kinds have opened.
func closeAll(all []*southbound.Descriptor) error {
	var errs []error
	for _, d := range all {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
