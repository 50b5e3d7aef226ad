// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

const (
	firstPause = 50 * time.Millisecond
	maxPause   = 2 * time.Second
)

// follower prints events as they happen. Sequence numbers name an event within
// one run of the agent only, so it remembers which run it has read how far.
type follower struct {
	a       *app
	c       *client
	started string // of the run, as the agent says; "": not known
	filter  eventFilter
	next    uint64 // what is to be printed next
	certain bool   // there must be an event of that number
	reached bool   // an agent has answered once
	away    bool   // a message said that it does not any more
}

// errRestarted ends a stream that began in the middle of another run.
var errRestarted = errors.New("the agent was restarted")

// follow goes on until ctx ends, which is its ordinary end. An agent that goes
// away is waited for; one that was never there is an error.
func (a *app) follow(ctx context.Context, from uint64, filter eventFilter) error {
	f := &follower{a: a, c: a.client(), filter: filter, next: from}
	for pause := firstPause; ; {
		before := f.next
		err := f.stream(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user has interrupted it
		}
		if errors.Is(err, errRestarted) {
			continue
		}
		if err != nil && !errors.Is(err, errBrokeOff) || !f.reached {
			return err
		}
		if f.next != before {
			pause = firstPause
		}
		f.gone()
		if a.pause(ctx, pause) != nil {
			return nil //nolint:nilerr // the user has interrupted it
		}
		pause = min(2*pause, maxPause)
	}
}

// stream prints what comes until the connection ends; nil if the agent has
// ended it in good order.
func (f *follower) stream(ctx context.Context) error {
	query := f.filter.query(f.next)
	query.Set("follow", "true")
	resp, err := f.c.send(ctx, http.MethodGet, localapi.PathEvents+"?"+query.Encode(), nil)
	if err != nil {
		var refused *refusedError
		if f.reached && !errors.As(err, &refused) {
			err = errBrokeOff // also where half of a head has come
		}
		return err
	}
	defer resp.Body.Close()
	f.reached = true
	if started := resp.Header.Get(localapi.EventsStarted); started != f.started {
		other := f.started != ""
		f.started = started
		if other {
			f.restarted()
			return errRestarted // what this stream leaves out is new, too
		}
	}
	f.back()
	return eachEvent(ctx, f.c, resp.Body, f.print)
}

// print prints an event that was not printed yet.
func (f *follower) print(raw json.RawMessage) error {
	var r struct{ SeqNum *uint64 }
	if err := json.Unmarshal(raw, &r); err != nil || r.SeqNum == nil {
		return fmt.Errorf("read the agent's answer: %.80q is not an event", raw)
	}
	seq := *r.SeqNum
	switch {
	case seq < f.next && f.started != "":
		return nil // it was
	case seq < f.next:
		f.restarted() // the agent does not say when it has started, but this does
	case seq > f.next && f.certain:
		f.a.note("cadastre: events #%d to #%d are not recorded any more", f.next, seq-1)
	}
	if f.filter.selects(raw) {
		if err := f.a.printEvent(raw); err != nil {
			return err
		}
	}
	f.next, f.certain = seq+1, f.filter == eventFilter{} // a filter leaves numbers out
	return nil
}

func (f *follower) restarted() {
	f.a.note("cadastre: agent restarted: it counts events anew")
	f.next, f.certain, f.away = 0, false, false
}

// gone says once that there is no agent.
func (f *follower) gone() {
	if !f.away {
		f.a.note("cadastre: the agent at %s is gone, waiting for it", columns.Clean(f.c.socket))
		f.away = true
	}
}

func (f *follower) back() {
	if f.away {
		f.a.note("cadastre: the agent is back")
		f.away = false
	}
}

// sleep waits for d, or returns why it did not.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
