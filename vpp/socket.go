// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"fmt"
	"net"
	"sync"

	"go.fd.io/govpp/adapter/socketclient"
)

// socketTransport is a connection to VPP's API socket.
type socketTransport struct {
	*socketclient.Client
	path string

	lost chan struct{}
	once sync.Once
	// alive is a second connection, over which nothing is sent: VPP's end closes it. The
	// client of govpp does not tell that its own one has ended.
	alive net.Conn
	// connected reports whether Connect has succeeded: Disconnect of the client panics otherwise.
	connected bool
}

// openSocket returns a transport over the socket at path.
func openSocket(ctx context.Context, path string) (Transport, error) {
	var d net.Dialer
	alive, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	t := &socketTransport{
		Client: socketclient.NewVppClient(path),
		path:   path,
		lost:   make(chan struct{}),
		alive:  alive,
	}
	t.SetClientName("cadastre")
	go t.listen()
	return t, nil
}

// listen waits until VPP ends, or Disconnect is called.
func (t *socketTransport) listen() {
	one := make([]byte, 1)
	for {
		if _, err := t.alive.Read(one); err != nil {
			t.once.Do(func() { close(t.lost) })
			return
		}
	}
}

// Lost returns a channel that is closed when VPP has ended.
func (t *socketTransport) Lost() <-chan struct{} { return t.lost }

// Connect connects to VPP.
func (t *socketTransport) Connect() error {
	err := t.Client.Connect()
	t.connected = err == nil
	return err
}

// Disconnect closes both connections.
func (t *socketTransport) Disconnect() error {
	_ = t.alive.Close() // nothing was sent over it
	if !t.connected {
		return nil
	}
	t.connected = false
	if err := t.Client.Disconnect(); err != nil {
		return fmt.Errorf("disconnect from %s: %w", t.path, err)
	}
	return nil
}
