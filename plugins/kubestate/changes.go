// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
)

// entry holds one value of the store.
type entry struct {
	resource string        // "" for external configuration
	message  proto.Message // nil: it cannot be read, or is of another program
	revision int64
}

// entries decodes values.
func (s *Source) entries(kvs []kvdb.KeyValue) map[string]entry {
	all := make(map[string]entry, len(kvs))
	for _, x := range kvs {
		all[x.Key] = s.decode(x)
	}
	return all
}

// resyncOf returns the resync event of a state.
func resyncOf(entries map[string]entry, rev int64) *controller.DBResync {
	ev := &controller.DBResync{Revision: rev, KubeState: stateOf(entries), ExternalConfig: map[string]proto.Message{}}
	for key, e := range entries {
		if sinkKey, ok := kv.External(key); ok && e.message != nil {
			ev.ExternalConfig[sinkKey] = e.message
		}
	}
	return ev
}

// changes pushes the changes of one transaction of the store.
func (s *Source) changes(ctx context.Context, batch []kvdb.Event) error {
	if slices.ContainsFunc(batch, needsRepair) {
		s.before = append(s.before, maps.Clone(s.known))
	}
	var events []controller.Event
	var deleted []string
	for _, ev := range batch {
		if change := s.take(ev); change != nil {
			events = append(events, change)
		}
		if ev.Deleted {
			deleted = append(deleted, ev.Key)
		}
	}
	s.setStatus(func(st *Status) { st.Revision = max(st.Revision, batch[0].ModRevision) }) // there are two watches
	s.note(ctx, batch)
	for _, ev := range events {
		if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
			return err
		}
	}
	if len(s.before) == 0 || !slices.ContainsFunc(batch, mayEndRepair) {
		return nil
	}
	written, err := s.repair(ctx, s.before, s.known, deleted)
	switch {
	case err != nil:
		s.deleted = deleted
	case !written: // otherwise the event of the write will cause another repair
		s.before = nil
	}
	return err
}

// needsRepair reports whether Repair may have something to write because of ev.
func needsRepair(ev kvdb.Event) bool {
	r, _ := kv.ResourceOf(ev.Key)
	return r.Name == Pools || r.Name == CustomNetworks || r.Name == NodeRecords && ev.Deleted
}

// mayEndRepair reports whether Repair may have nothing left to write after ev.
func mayEndRepair(ev kvdb.Event) bool {
	r, _ := kv.ResourceOf(ev.Key)
	return needsRepair(ev) || r.Name == NodeRecords
}

// take makes one change known and returns its event for the loop. It returns nil if
// the loop need not know: a value that cannot be read counts as absent.
func (s *Source) take(ev kvdb.Event) controller.Event {
	prev, known := s.known[ev.Key]
	now := entry{}
	if ev.Deleted {
		delete(s.known, ev.Key)
	} else {
		now = s.decode(ev.KeyValue)
		s.known[ev.Key] = now
	}
	if known && prev.message == nil || !ev.Deleted && now.message == nil {
		s.setStatus(func(st *Status) { st.Unreadable, st.Hidden = s.unreadable() })
	}
	if prev.message == nil && now.message == nil {
		return nil
	}
	if sinkKey, ok := kv.External(ev.Key); ok {
		return &controller.ExternalConfigChange{
			Source:   externalSource,
			Revision: ev.ModRevision,
			Values:   map[string]proto.Message{sinkKey: now.message},
		}
	}
	resource, _ := kv.ResourceOf(ev.Key)
	return &controller.KubeStateChange{
		Key:      ev.Key,
		Resource: resource.Name,
		Revision: ev.ModRevision,
		Prev:     prev.message,
		New:      now.message,

		Overtakable: s.overtakable(prev.message, now.message),
	}
}

// overtakable reports whether the addresses of new pods do not depend on a change: it is of
// other nodes only, or of a Pod object. What this node allocates from follows from its own
// objects and claims, and from pools.
func (s *Source) overtakable(messages ...proto.Message) bool {
	for _, m := range messages {
		switch m := m.(type) {
		case nil, *kv.Pod:
		case *kv.NodeRecord:
			if m.Name == s.deps.Node {
				return false
			}
		case *kv.Node:
			if m.Name == s.deps.Node {
				return false
			}
		case *kv.PrefixClaim:
			if m.Node == s.deps.Node {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// decode returns the entry of a value.
func (s *Source) decode(x kvdb.KeyValue) entry {
	e := entry{revision: x.ModRevision}
	if sinkKey, ok := kv.External(x.Key); ok {
		e.message = kv.SinkMessage(sinkKey)
	} else if r, ok := kv.ResourceOf(x.Key); ok {
		e.resource, e.message = r.Name, r.New()
	}
	if e.message == nil {
		return e
	}
	err := proto.Unmarshal(x.Value, e.message)
	if m, ok := e.message.(*kv.NodeRecord); err == nil && ok && kv.NodeRecordKey(m.Id) != x.Key {
		err = fmt.Errorf("it is the record of node ID %d", m.Id)
	}
	if err != nil {
		s.deps.Log.Warn("a value of the store cannot be read and is left out", "key", x.Key, "error", err)
		return entry{revision: x.ModRevision}
	}
	return e
}

// unreadable returns the keys of node records, and those of pods and Nodes, that cannot
// be read.
func (s *Source) unreadable() (records, hidden []string) {
	for key, e := range s.known {
		if e.message != nil {
			continue
		}
		switch r, _ := kv.ResourceOf(key); {
		case kv.NodeRecordID(key) != 0:
			records = append(records, key)
		case r.Name == Pods || r.Name == Nodes:
			hidden = append(hidden, key)
		}
	}
	slices.Sort(records)
	slices.Sort(hidden)
	return records, hidden
}
