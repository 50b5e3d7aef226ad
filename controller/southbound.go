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
		r.keepWanted(nil)
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
	began := c.deps.Now()
	err := r.send(ctx, txn)
	r.rec.SinkTook = c.deps.Now().Sub(began)
	if err != nil {
		err = fmt.Errorf("%s: commit southbound: %w", r.ev.name, err)
		r.rec.TxnError = err.Error()
		if r.reverts {
			return err
		}
	}
	outside := r.onlyOutside(err)
	r.keepApplied(values, err)
	r.keepWanted(values)
	if outside {
		r.outside = append(r.outside, err)
		return nil
	}
	return err
}

// southbound returns the values for the sink, in the order of their keys, and records them.
// For a resync these are all values, for an update those that were put and those that
// differ from the sink's.
func (r *run) southbound() []Value {
	if r.update == nil && len(r.c.external.names) == 0 {
		return r.internal()
	}
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
	if r.c.kept() {
		for _, v := range values {
			r.rec.Txn = append(r.rec.Txn, operation(v.Message)+" "+v.Key)
		}
	}
	return values
}

// internal returns the values of a resync without sources outside.
func (r *run) internal() []Value {
	v, kept := r.c.wanted, r.c.kept()
	all := v.inOrder()
	values := make([]Value, 0, len(all))
	if kept {
		r.rec.Txn = make([]string, 0, len(all))
	}
	for _, w := range all {
		m := w.message
		if r.ev.method != DownstreamResync {
			m = w.next
			if w.round != v.round {
				continue
			}
		}
		if m == nil {
			continue
		}
		values = append(values, Value{w.key(), m})
		if kept {
			r.rec.Txn = append(r.rec.Txn, w.text)
		}
	}
	return values
}

// had returns what the sink has got for a key before the event.
func (c *Controller) had(key string) (has sent, known bool) {
	if has, known = c.applied[key]; known {
		return has, true
	}
	m := c.wanted.get(key)
	return sent{message: m}, m != nil
}

// differs reports whether the sink has, or may have, another value than m.
func (r *run) differs(key string, m proto.Message) bool {
	has, known := r.c.had(key)
	return known && has.message == nil || !proto.Equal(has.message, m)
}

// touched returns the keys that the event may change southbound, in order.
func (r *run) touched() []string {
	keys := slices.AppendSeq(make([]string, 0, len(r.txn.changes)), maps.Keys(r.txn.changes))
	if change, ok := r.ev.Event.(*ExternalConfigChange); ok {
		keys = slices.AppendSeq(keys, maps.Keys(change.Values))
	}
	if r.update == nil {
		for _, w := range r.c.wanted.inOrder() {
			keys = append(keys, w.key())
		}
		for _, name := range r.c.external.names {
			keys = slices.AppendSeq(keys, maps.Keys(r.c.external.values[name]))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// wants returns the value that handlers want under key after the event, and reports
// whether one of them has changed it.
func (r *run) wants(key string) (m proto.Message, handled bool) {
	if m, ok := r.txn.change(key); ok {
		return m, true
	}
	if r.update == nil && r.ev.method != DownstreamResync {
		return nil, false
	}
	return r.c.wanted.get(key), false
}

// keepWanted stores what handlers want. values were sent.
func (r *run) keepWanted(values []Value) {
	c := r.c
	switch {
	case r.ev.method == DownstreamResync:
		return
	case r.update == nil:
		c.wanted.adopt(r.txn.puts)
		return
	}
	for k, m := range r.txn.changes {
		if m != nil {
			c.wanted.set(c.wanted.wish(k), m)
			continue
		}
		if had, _ := c.had(k); !contains(values, k) && had.message != nil {
			// From outside then, also if it is what it was.
			c.applied[k] = sent{had.message, true}
		}
		if w := c.wanted.byKey[k]; w != nil {
			c.wanted.set(w, nil)
		}
	}
}

// keepApplied stores what the sink was given, if it is not what handlers want, and which
// values failed.
func (r *run) keepApplied(values []Value, err error) {
	c, failed := r.c, valueErrors(err)
	open := func(k string) bool { return err != nil && (len(failed) == 0 || failed[k] != nil) }
	applied := c.applied
	if r.update == nil {
		applied = map[string]sent{}
	}
	if r.update == nil && err != nil {
		for _, w := range c.wanted.inOrder() {
			if k := w.key(); w.message != nil && open(k) {
				applied[k] = sent{}
			}
		}
		for k, had := range c.applied {
			if open(k) {
				applied[k] = sent{nil, had.outside}
			}
		}
	}
	if r.update == nil && err == nil && len(c.external.names) == 0 {
		values = nil // none differs from what handlers want
	}
	for _, v := range values {
		internal, _ := r.wants(v.Key)
		had, _ := c.had(v.Key)
		now := sent{v.Message, internal == nil && (v.Message != nil || had.outside)}
		if open(v.Key) {
			now.message = nil
		} else if now.message == internal {
			delete(applied, v.Key)
			continue
		}
		applied[v.Key] = now
	}
	c.applied = applied
}

// onlyOutside reports whether err is only of values that no handler wants or has
// wanted: a resync could not heal it.
func (r *run) onlyOutside(err error) bool {
	failed := valueErrors(err).failed()
	for _, k := range failed {
		_, touched := r.txn.change(k)
		had, known := r.c.had(k)
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
