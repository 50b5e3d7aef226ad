// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"time"

	"github.com/moby/moby/client"

	"github.com/cadastre/cadastre/internal/backoff"
)

// Waits of Watch before it connects again.
const (
	firstWait = time.Second
	lastWait  = 30 * time.Second
)

// Watch calls changed after each event of a network or a container that may change a
// view. It also calls changed each time that it has connected, because it may have
// missed events before. It runs until ctx ends. changed must not wait. Without an
// engine to read Watch keeps trying; with None it waits for the end of ctx.
func (r *Reader) Watch(ctx context.Context, changed func()) {
	if r.options.Endpoint == None {
		<-ctx.Done()
		return
	}
	policy := backoff.Policy{First: firstWait, Limit: lastWait, Random: r.options.Random}
	for failures := 0; ctx.Err() == nil; {
		if r.follow(ctx, changed) {
			failures = 0
		}
		failures++
		select {
		case <-ctx.Done():
		case <-r.options.After(policy.After(failures)):
		}
	}
}

// follow calls changed for the events of one connection. It reports whether it has
// connected.
func (r *Reader) follow(ctx context.Context, changed func()) (connected bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	greeting, cancelGreeting := context.WithTimeout(ctx, r.options.Limit)
	defer cancelGreeting()
	c, err := connect(greeting, r.address())
	if err != nil {
		return false
	}
	defer c.close()
	filters := client.Filters{}.Add("type", "network", "container").
		Add("event", "create", "destroy", "remove", "connect", "disconnect", "start", "die", "rename")
	events := c.api.Events(ctx, client.EventsListOptions{Filters: filters})
	changed()
	for {
		select {
		case <-events.Messages:
			changed()
		case err := <-events.Err: // the connection is lost, or ctx has ended
			return err != nil || ctx.Err() == nil
		}
	}
}
