// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// The address spaces of the own ledger.
const (
	ownLocal  = "PluginLocal"
	ownGlobal = "PluginGlobal"
)

// maxBody is far above the size of any request and any answer.
const maxBody = 1 << 20

// proxy sends each request to the owner of its address space or pool: the agent, or
// the own ledger. Any goroutine may call it.
type proxy struct {
	log    *slog.Logger
	socket string       // the agent's
	client *http.Client // of the agent
	own    http.Handler
	seen   atomic.Bool  // an agent has answered this process or an earlier one
	note   func() error // makes seen durable
}

func newProxy(log *slog.Logger, socket string, seen bool, note func() error) *proxy {
	p := &proxy{log: log, socket: socket, note: note}
	p.seen.Store(seen)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}
	// Each request has its own connection: if a shared one broke, the outcome of the
	// request would not be known.
	p.client = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	return p
}

// around returns the proxy with the handler of the own ledger.
func (p *proxy) around(own http.Handler) http.Handler {
	p.own = own
	return p
}

// ServeHTTP answers the engine.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/IpamDriver.GetDefaultAddressSpaces":
		p.spaces(w, r)
		return
	case "/IpamDriver.RequestPool",
		"/IpamDriver.ReleasePool",
		"/IpamDriver.RequestAddress",
		"/IpamDriver.ReleaseAddress":
	default:
		p.own.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var args struct{ AddressSpace, PoolID string }
	if err == nil {
		err = json.Unmarshal(body, &args)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil || p.isOwn(args.AddressSpace, args.PoolID) {
		p.own.ServeHTTP(w, r) // which refuses what cannot be read
		return
	}
	status, answer, err := p.forward(r, body)
	if err != nil {
		p.refuse(w, err)
		return
	}
	write(w, status, answer)
}

// isOwn reports whether a request is for the own ledger: its space or pool is the own
// one, or no agent has answered yet.
func (p *proxy) isOwn(space, pool string) bool {
	if pool != "" {
		space, _, _ = strings.Cut(pool, "/")
	}
	return space == ownLocal || space == ownGlobal || !p.seen.Load()
}

// spaces selects the ledger of a new pool: the engine asks for the spaces before each.
func (p *proxy) spaces(w http.ResponseWriter, r *http.Request) {
	status, answer, err := p.forward(r, nil)
	switch {
	case err == nil && !p.seen.Load():
		if err := p.note(); err != nil {
			p.refuse(w, fmt.Errorf("record that an agent has answered: %w", err))
			return
		}
		p.seen.Store(true)
		p.log.Info("an agent answers: new pools are its own from now on", "socket", p.socket)
		fallthrough
	case err == nil:
		write(w, status, answer)
	case p.seen.Load():
		p.refuse(w, err)
	default:
		p.own.ServeHTTP(w, r)
	}
}

// forward sends a request to the agent; an error means that the agent has not answered.
func (p *proxy) forward(r *http.Request, body []byte) (status int, answer []byte, err error) {
	url := "http://agent" + r.URL.Path
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", r.Header.Get("Accept"))
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("the agent at %s does not answer: %w", p.socket, err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, nil, fmt.Errorf("the agent at %s has not finished its answer: %w", p.socket, err)
	}
	return resp.StatusCode, answer, nil
}

func (p *proxy) refuse(w http.ResponseWriter, err error) {
	p.log.Warn("Docker's request failed", "error", err)
	answer, err := json.Marshal(map[string]string{"Err": err.Error(), "Error": err.Error()})
	if err != nil {
		answer = []byte("{}")
	}
	write(w, http.StatusServiceUnavailable, answer)
}

func write(w http.ResponseWriter, status int, answer []byte) {
	w.Header().Set("Content-Type", "application/vnd.docker.plugins.v1.2+json")
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// Status describes the owner of the addresses.
func (p *proxy) Status() string {
	if p.seen.Load() {
		return "requests are forwarded to the agent at " + p.socket + "; this ledger keeps the pools of the time before"
	}
	return "no agent has ever answered at " + p.socket + ": this ledger is Docker's own and does not share the pods' plan"
}
