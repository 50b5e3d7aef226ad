// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
)

// sent holds the value that the sink has got for a key.
type sent struct {
	message proto.Message // nil: the sink has failed, and its value is unknown
	outside bool          // no handler has wanted anything there
}

// commitSink commits southbound what the event has changed, and remembers it.
func (r *run) commitSink(ctx context.Context) error {
	if r.unchanged {
		return nil
	}
	c, values := r.c, r.southbound()
	if r.update != nil && len(values) == 0 {
		r.keepWanted()
		return nil
	}
	retry := Retry{c.cfg.EnableRetry, c.cfg.DelayRetry, c.cfg.MaxRetryAttempts, c.cfg.EnableExpBackoffRetry}
	txn := Transaction{
		Seq:             r.rec.SeqNum,
		Method:          r.ev.method,
		Description:     r.describe(),
		Values:          values,
		RevertOnFailure: r.reverts,
		Retry:           retry,
	}
	if c.kept() {
		for _, v := range values {
			r.rec.Txn = append(r.rec.Txn, operation(v.Message)+" "+v.Key)
		}
	}
	err := guard(func() error { return c.deps.Sink.Commit(ctx, txn) })
	if err != nil {
		err = fmt.Errorf("%s: commit southbound: %w", r.ev.name, err)
		r.rec.TxnError = err.Error()
		if r.reverts {
			return err
		}
	}
	outside := r.onlyOutside(err)
	r.keepApplied(values, err)
	r.keepWanted()
	if outside {
		r.outside = append(r.outside, err)
		return nil
	}
	return err
}

// southbound returns the values for the sink, in the order of their keys: for a resync
// all, for an update those that were put and those that differ from the sink's.
func (r *run) southbound() []Value {
	var values []Value
	var refused []refusal
	for _, k := range r.touched() {
		internal, handled := r.wants(k)
		m, no := r.c.external.merge(k, internal)
		refused = append(refused, no...)
		put := handled && internal != nil
		if r.update == nil && m != nil || r.update != nil && (put || r.differs(k, m)) {
			values = append(values, Value{k, m})
		}
	}
	r.refuse(refused)
	return values
}

// differs reports whether the sink has, or may have, another value than m.
func (r *run) differs(key string, m proto.Message) bool {
	has, known := r.c.applied[key]
	return known && has.message == nil || !proto.Equal(has.message, m)
}

// touched returns the keys that the event may change southbound, in order.
func (r *run) touched() []string {
	keys := slices.AppendSeq(make([]string, 0, len(r.txn.changes)), maps.Keys(r.txn.changes))
	if change, ok := r.ev.Event.(*ExternalConfigChange); ok {
		keys = slices.AppendSeq(keys, maps.Keys(change.Values))
	}
	if r.update == nil {
		for _, name := range r.c.external.names {
			keys = slices.AppendSeq(keys, maps.Keys(r.c.external.values[name]))
		}
	}
	if r.ev.method == DownstreamResync {
		keys = slices.AppendSeq(keys, maps.Keys(r.c.wanted))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// wants returns the value that handlers want under key after the event, and reports
// whether one of them has changed it.
func (r *run) wants(key string) (m proto.Message, handled bool) {
	if m, ok := r.txn.changes[key]; ok {
		return m, true
	}
	if r.update == nil && r.ev.method != DownstreamResync {
		return nil, false
	}
	return r.c.wanted[key], false
}

// keepWanted stores what handlers want.
func (r *run) keepWanted() {
	c := r.c
	if r.ev.method == DownstreamResync {
		return
	}
	if r.update == nil {
		c.wanted = make(map[string]proto.Message, len(r.txn.changes))
	}
	for k, m := range r.txn.changes {
		if m != nil {
			c.wanted[k] = m
			continue
		}
		delete(c.wanted, k)
		if had := c.applied[k]; had.message != nil { // from outside then, also if it is what it was
			c.applied[k] = sent{had.message, true}
		}
	}
}

// keepApplied stores what the sink was given, and which values failed.
func (r *run) keepApplied(values []Value, err error) {
	c, failed := r.c, valueErrors(err)
	open := func(k string) bool { return err != nil && (len(failed) == 0 || failed[k] != nil) }
	before := c.applied
	if r.update == nil {
		c.applied = make(map[string]sent, len(values))
		for k, had := range before {
			if open(k) {
				c.applied[k] = sent{nil, had.outside}
			}
		}
	}
	for _, v := range values {
		internal, _ := r.wants(v.Key)
		now := sent{v.Message, internal == nil && (v.Message != nil || before[v.Key].outside)}
		switch {
		case open(v.Key):
			now.message = nil
		case v.Message == nil:
			delete(c.applied, v.Key)
			continue
		}
		c.applied[v.Key] = now
	}
}

// onlyOutside reports whether err is only of values that no handler wants or has
// wanted: a resync could not heal it.
func (r *run) onlyOutside(err error) bool {
	failed := valueErrors(err).failed()
	for _, k := range failed {
		_, touched := r.txn.changes[k]
		had, known := r.c.applied[k]
		if touched || known && !had.outside || !known && !r.c.external.has(k) {
			return false
		}
	}
	return len(failed) > 0
}

func (r *run) describe() string {
	s := r.ev.name
	for _, h := range r.rec.Handlers {
		if h.Change != "" {
			s += "\n* " + h.Handler + ": " + h.Change
		}
	}
	return s
}
