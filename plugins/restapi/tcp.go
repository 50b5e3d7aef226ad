// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/httpserver"
)

// TCP describes a listener on the network.
type TCP struct {
	Listener net.Listener // nil: Serve listens on Address
	Address  string
	TLS      *tls.Config // nil: plain text
	Limits   httpserver.Limits
}

// endpoint is a listener on the network, with the key of its configuration.
type endpoint struct {
	key     string
	tcp     *TCP // nil: it is not configured
	handler http.Handler
}

// listenAgain is the time between two attempts to listen on an address.
const listenAgain = 2 * time.Second

// unheard holds why listeners on the network are not open, by the key of their
// configuration.
type unheard struct {
	mu  sync.Mutex
	why map[string]string
}

// note records why key's listener is not open, nil if it is, and reports whether that
// is news.
func (u *unheard) note(key string, err error) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := u.why[key]
	if err == nil {
		delete(u.why, key)
		return was != ""
	}
	if u.why == nil {
		u.why = map[string]string{}
	}
	u.why[key] = err.Error()
	return was != err.Error()
}

func (u *unheard) notes() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Sorted(maps.Values(u.why))
}

// open listens on e's address, and tries until ctx ends. Any user of the machine may
// have taken the port before the agent started, and must not keep pods from getting
// addresses on the local socket.
func (p *RESTAPI) open(ctx context.Context, e endpoint) (net.Listener, error) {
	if e.tcp.Listener != nil {
		return e.tcp.Listener, nil
	}
	for {
		l, err := net.Listen("tcp", e.tcp.Address)
		if err != nil {
			err = fmt.Errorf("cadastre.%s %s: %w", e.key, e.tcp.Address, err)
		}
		if p.unheard.note(e.key, err) && err != nil {
			p.Log.Warn("a listener is not open, and is tried again", "error", err, "every", listenAgain)
		}
		if err == nil {
			return l, nil
		}
		select {
		case <-p.Listen.After(listenAgain):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// serveTCP answers on e's address until ctx ends.
func (p *RESTAPI) serveTCP(ctx, base context.Context, e endpoint) error {
	l, err := p.open(ctx, e)
	if err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	return httpserver.New(httpserver.Config{
		Listener: l, TLS: e.tcp.TLS, Handler: e.handler, Limits: e.tcp.Limits, Log: p.Log, Base: base,
	}).Serve(ctx)
}
