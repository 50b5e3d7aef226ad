// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"go.fd.io/govpp/adapter"
)

// DefaultSocket is the path of VPP's API socket unless Options has another one.
const DefaultSocket = "/run/vpp/api.sock"

// Transport is a way to VPP's binary API.
type Transport interface {
	adapter.VppAPI
	// Lost returns a channel that is closed when a connection that Connect made has broken.
	Lost() <-chan struct{}
}

// Options holds the options of Descriptors.
type Options struct {
	// Socket is the path of VPP's API socket; "": DefaultSocket.
	Socket string
	// Open returns a transport for each connection; nil: one over Socket.
	Open func(ctx context.Context) (Transport, error)
	// Namespace is the path of the network namespace in which VPP and the node's own programs
	// run; "": that of the process.
	Namespace string
	// Main is the interface of the underlay.
	Main   MainInterface
	Log    *slog.Logger                         // nil: no log
	Now    func() time.Time                     // nil: time.Now
	After  func(time.Duration) <-chan time.Time // nil: time.After
	Random func() float64                       // nil: reconnections are not spread
}

// MainInterface is the interface by which VPP reaches other nodes.
type MainInterface struct {
	// Name is the kernel's name of a network interface of the node, which VPP takes over by
	// packet sockets; "": there is none, and VPP reaches the outside through the node.
	Name string
	// MTU is that of the underlay; 0: that of the interface in the kernel.
	MTU uint32
	// Gateways are the routers of the default routes, one of each family at most.
	Gateways []netip.Addr
}
