// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
)

// ExternalDB is the name of the source that a DBResync replaces.
const ExternalDB = "db"

// ExternalConfigChange changes values of a source outside of the handlers. They
// are merged with what handlers have put under the same southbound keys. The
// producer must not change the map or the messages after the push.
type ExternalConfigChange struct {
	Source   string
	Values   map[string]proto.Message // by southbound key; nil: the source has none any more
	Revision int64                    // of the database, for ExternalDB, as in KubeStateChange
	Blocking bool
	OnDone   func(error) // may be nil
}

// GetName is "External Config Change".
func (ev *ExternalConfigChange) GetName() string { return "External Config Change" }

func (ev *ExternalConfigChange) String() string {
	s := ev.GetName() + "\n* source: " + ev.Source
	for _, k := range slices.Sorted(maps.Keys(ev.Values)) {
		s += "\n* " + operation(ev.Values[k]) + " " + k
	}
	return s
}

// Method is Update.
func (ev *ExternalConfigChange) Method() EventMethodType { return Update }

// TransactionType is BestEffort.
func (ev *ExternalConfigChange) TransactionType() UpdateTransactionType { return BestEffort }

// Direction is Forward.
func (ev *ExternalConfigChange) Direction() UpdateDirectionType { return Forward }

// IsBlocking is as it was set.
func (ev *ExternalConfigChange) IsBlocking() bool { return ev.Blocking }

// Done calls OnDone.
func (ev *ExternalConfigChange) Done(err error) {
	if ev.OnDone != nil {
		ev.OnDone(err)
	}
}

// ExternalConfigResync replaces all values of a source outside of the handlers.
type ExternalConfigResync struct {
	Source         string
	ExternalConfig map[string]proto.Message // by southbound key
	Blocking       bool
	OnDone         func(error) // may be nil
}

// GetName is "External Config Resync".
func (ev *ExternalConfigResync) GetName() string { return "External Config Resync" }

func (ev *ExternalConfigResync) String() string {
	return fmt.Sprintf("%s\n* source: %s\n* values: %d", ev.GetName(), ev.Source, len(ev.ExternalConfig))
}

// Method is UpstreamResync.
func (ev *ExternalConfigResync) Method() EventMethodType { return UpstreamResync }

// IsBlocking is as it was set.
func (ev *ExternalConfigResync) IsBlocking() bool { return ev.Blocking }

// Done calls OnDone.
func (ev *ExternalConfigResync) Done(err error) {
	if ev.OnDone != nil {
		ev.OnDone(err)
	}
}

func operation(m proto.Message) string {
	if m == nil {
		return "delete"
	}
	return "put"
}

// sources are the values from outside. They belong to the loop.
type sources struct {
	names  []string // of sources that have values, in order
	values map[string]map[string]proto.Message
}

// refusal is a value from outside that cannot be merged.
type refusal struct {
	source, key string
	err         error
}

// set gives a source a value; nil takes it away.
func (s *sources) set(source, key string, m proto.Message) {
	if !valid(m) {
		delete(s.values[source], key)
		if len(s.values[source]) == 0 {
			s.remove(source)
		}
		return
	}
	if s.values[source] == nil {
		if s.values == nil {
			s.values = map[string]map[string]proto.Message{}
		}
		s.values[source] = map[string]proto.Message{}
		i, _ := slices.BinarySearch(s.names, source)
		s.names = slices.Insert(s.names, i, source)
	}
	s.values[source][key] = m
}

// replace gives a source these values and no others.
func (s *sources) replace(source string, values map[string]proto.Message) {
	s.remove(source)
	for k, m := range values {
		if k != "" {
			s.set(source, k, m)
		}
	}
}

func (s *sources) remove(source string) {
	delete(s.values, source)
	if i, ok := slices.BinarySearch(s.names, source); ok {
		s.names = slices.Delete(s.names, i, i+1)
	}
}

// valid is false for nil, also where it is one of a type.
func valid(m proto.Message) (ok bool) {
	return m != nil && guard(func() error { ok = m.ProtoReflect().IsValid(); return nil }) == nil && ok
}

// has reports whether any source has a value for key.
func (s *sources) has(key string) bool {
	return slices.ContainsFunc(s.names, func(name string) bool { return s.values[name][key] != nil })
}

// merge returns the value for the sink under key: the internal value, merged with
// those of the sources in the order of their names. It changes none of them.
func (s *sources) merge(key string, internal proto.Message) (merged proto.Message, refused []refusal) {
	merged = internal
	for _, name := range s.names {
		m := s.values[name][key]
		switch {
		case m == nil:
		case merged == nil:
			merged = m
		default:
			both, err := mergeTwo(merged, m)
			if err != nil {
				refused = append(
					refused,
					refusal{name, key, fmt.Errorf("value of source %q is refused: %w", name, err)},
				)
				continue
			}
			merged = both
		}
	}
	return merged, refused
}

func mergeTwo(onto, m proto.Message) (both proto.Message, err error) {
	err = guard(func() error {
		got, want := m.ProtoReflect().Descriptor().FullName(), onto.ProtoReflect().Descriptor().FullName()
		if got != want {
			return fmt.Errorf("%w: %s where %s is wanted", errMessageType, got, want)
		}
		both = proto.Clone(onto)
		proto.Merge(both, m)
		return nil
	})
	return both, err
}

// takeExternal notes what the event brings from outside, before handlers are called.
func (r *run) takeExternal() {
	s := &r.c.external
	switch ev := r.ev.Event.(type) {
	case *DBResync:
		if err := checkExternal(ExternalDB, ev.ExternalConfig); err != nil {
			r.outside = append(r.outside, malformed(r.ev.name, fmt.Errorf("%w: left out", err)))
		}
		s.replace(ExternalDB, ev.ExternalConfig)
		r.noteExternal(ExternalDB, ev.ExternalConfig)
	case *ExternalConfigResync:
		s.replace(ev.Source, ev.ExternalConfig)
		r.noteExternal(ev.Source, ev.ExternalConfig)
	case *ExternalConfigChange:
		for k, m := range ev.Values {
			s.set(ev.Source, k, m)
		}
		r.noteExternal(ev.Source, ev.Values)
	}
}

func (r *run) noteExternal(source string, values map[string]proto.Message) {
	if !r.c.kept() {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if k == "" { // left out
			continue
		}
		r.rec.External = append(r.rec.External, source+": "+operation(values[k])+" "+k)
	}
}

// brought reports whether the event has brought what was refused. Its producer is
// told; for all other events it is not a failure.
func (r *run) brought(x refusal) bool {
	switch ev := r.ev.Event.(type) {
	case *ExternalConfigResync:
		return ev.Source == x.source
	case *ExternalConfigChange:
		_, ok := ev.Values[x.key]
		return ok && ev.Source == x.source
	}
	return false
}

// refuse logs and records values from outside that could not be merged.
func (r *run) refuse(all []refusal) {
	if len(all) == 0 {
		return
	}
	own := ValueErrors{}
	for _, x := range all {
		r.c.deps.Log.Error("a value from outside is refused",
			"event", r.rec.Name, "seq", r.rec.SeqNum, "key", x.key, "error", x.err)
		r.rec.Refused = append(r.rec.Refused, x.key+": "+x.err.Error())
		if r.brought(x) {
			own[x.key] = errors.Join(own[x.key], x.err)
		}
	}
	if len(own) > 0 {
		r.outside = append(r.outside, fmt.Errorf("%s: %w", r.rec.Name, own))
	}
}
