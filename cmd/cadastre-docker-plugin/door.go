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

// maxBody is far above any request and any answer.
const maxBody = 1 << 20

// door sends each request to whoever has the address space or the pool: the
// agent, or the own ledger. Any goroutine may call it.
type door struct {
	log    *slog.Logger
	socket string       // the agent's
	client *http.Client // of the agent
	own    http.Handler
	seen   atomic.Bool  // an agent has answered, now or in an earlier life
	note   func() error // makes that durable
}

func newDoor(log *slog.Logger, socket string, seen bool, note func() error) *door {
	d := &door{log: log, socket: socket, note: note}
	d.seen.Store(seen)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", d.socket)
	}
	// A connection for each request: one that broke would hide whether the agent
	// has heard it.
	d.client = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	return d
}

// around makes the door of the own ledger's handler.
func (d *door) around(own http.Handler) http.Handler {
	d.own = own
	return d
}

// ServeHTTP answers the engine.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/IpamDriver.GetDefaultAddressSpaces":
		d.spaces(w, r)
		return
	case "/IpamDriver.RequestPool", "/IpamDriver.ReleasePool", "/IpamDriver.RequestAddress", "/IpamDriver.ReleaseAddress":
	default:
		d.own.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var args struct{ AddressSpace, PoolID string }
	if err == nil {
		err = json.Unmarshal(body, &args)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil || d.isOwn(args.AddressSpace, args.PoolID) {
		d.own.ServeHTTP(w, r) // which refuses what cannot be read
		return
	}
	status, answer, err := d.forward(r, body)
	if err != nil {
		d.refuse(w, err)
		return
	}
	write(w, status, answer)
}

// isOwn is true for what the own ledger has given, and for everything as long as
// there was no agent.
func (d *door) isOwn(space, pool string) bool {
	if pool != "" {
		space, _, _ = strings.Cut(pool, "/")
	}
	return space == ownLocal || space == ownGlobal || !d.seen.Load()
}

// spaces decides where new pools are made: the engine asks before each of them.
func (d *door) spaces(w http.ResponseWriter, r *http.Request) {
	status, answer, err := d.forward(r, nil)
	switch {
	case err == nil && !d.seen.Load():
		if err := d.note(); err != nil {
			d.refuse(w, fmt.Errorf("write down that there is an agent: %w", err))
			return
		}
		d.seen.Store(true)
		d.log.Info("an agent answers: new pools are its own from now on", "socket", d.socket)
		fallthrough
	case err == nil:
		write(w, status, answer)
	case d.seen.Load():
		d.refuse(w, err)
	default:
		d.own.ServeHTTP(w, r)
	}
}

// forward asks the agent; an error means that it has not answered.
func (d *door) forward(r *http.Request, body []byte) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, "http://agent"+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", r.Header.Get("Accept"))
	resp, err := d.client.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("the agent at %s does not answer: %w", d.socket, err)
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return 0, nil, fmt.Errorf("the agent at %s has not finished its answer: %w", d.socket, err)
	}
	return resp.StatusCode, answer, nil
}

func (d *door) refuse(w http.ResponseWriter, err error) {
	d.log.Warn("Docker's request failed", "error", err)
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

// Status says whose addresses these are.
func (d *door) Status() string {
	if d.seen.Load() {
		return "requests are forwarded to the agent at " + d.socket + "; what this ledger has is of the time before"
	}
	return "no agent has ever answered at " + d.socket + ": this ledger is Docker's own and does not share the pods' plan"
}
