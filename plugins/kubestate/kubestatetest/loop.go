// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestatetest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// loop is an event loop that records a fault for every event that does not fit the
// earlier ones.
type loop struct {
	mu       sync.Mutex
	state    map[string]proto.Message
	revision int64 // of the last snapshot; the real loop ignores older changes
	taken    map[string]bool
	remote   int // snapshots of the store
	local    int
	faults   []string
}

func (l *loop) PushEvent(ev controller.Event) error {
	return l.PushEventWait(context.Background(), ev)
}

func (l *loop) PushEventWait(_ context.Context, ev controller.Event) error {
	l.mu.Lock()
	switch ev := ev.(type) {
	case *controller.DBResync:
		l.resync(ev)
	case *controller.KubeStateChange:
		l.change(ev)
	default:
		l.fault("unexpected event %s", ev.GetName())
	}
	l.mu.Unlock()
	ev.Done(nil)
	return nil
}

func (l *loop) resync(ev *controller.DBResync) {
	if ev.Local {
		if l.local++; l.remote > 0 {
			return // like the real loop
		}
	} else {
		l.remote++
	}
	l.state, l.taken, l.revision = map[string]proto.Message{}, map[string]bool{}, ev.Revision
	for resource, messages := range ev.KubeState {
		for key, m := range messages {
			l.state[resource+" "+key] = m
		}
	}
}

func (l *loop) change(ev *controller.KubeStateChange) {
	at := ev.Resource + " " + ev.Key
	have := l.state[at]
	once := fmt.Sprint(at, "@", ev.Revision)
	switch {
	case l.remote == 0:
		l.fault("a change before the first snapshot of the store: %s", at)
		return
	case (have == nil) != (ev.Prev == nil) || have != nil && !proto.Equal(have, ev.Prev):
		l.fault("%s: it was %v, the change says %v", at, have, ev.Prev)
	case ev.Revision <= l.revision:
		l.fault("%s: revision %d is in the snapshot of %d", at, ev.Revision, l.revision)
	case l.taken[once]:
		l.fault("%s came twice", once)
	}
	l.taken[once] = true
	if delete(l.state, at); ev.New != nil {
		l.state[at] = ev.New
	}
}

func (l *loop) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// seen returns the loop's state. Of Nodes it has only this one: not all worlds deliver
// other nodes.
func (l *loop) seen() (state map[string]string, faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state = map[string]string{}
	for at, m := range l.state {
		if n, ok := m.(*kv.Node); !ok || n.Name == thisNode {
			state[at] = describe(m)
		}
	}
	return state, append([]string{}, l.faults...)
}

// uid returns the UID of this node's Node, "" for none.
func (l *loop) uid() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := l.state[kubestate.Nodes+" "+kv.NodeKey(thisNode)].(*kv.Node)
	return n.GetUid()
}

// snapshots returns the number of snapshots of the store and of the mirror.
func (l *loop) snapshots() (remote, local int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remote, l.local
}

// describe returns the content of a message that all worlds have in common.
func describe(m proto.Message) string {
	switch m := m.(type) {
	case *kv.Node:
		return strings.Join(m.PodCidrs, ",")
	case *kv.Pod:
		return strings.Join(m.IpAddresses, ",")
	case *kv.CustomNetwork:
		return m.SubnetCidr
	case *kv.NodeConfig:
		return m.Gateway
	case *kv.Pool:
		return fmt.Sprint(m.Generation)
	case *kv.NodeRecord:
		return m.Name
	}
	return "?"
}

func marshal(x *harness, m proto.Message) []byte {
	value, err := proto.Marshal(m)
	x.Expect(err).NotTo(HaveOccurred())
	return value
}

// mirror is a kubestate.Mirror in memory.
type mirror struct {
	mu       sync.Mutex
	kvs      map[string]kvdb.KeyValue
	revision int64
}

func (m *mirror) Load(context.Context) (all []kvdb.KeyValue, revision int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for x := range maps.Values(m.kvs) {
		all = append(all, x)
	}
	return all, m.revision, nil
}

func (m *mirror) Replace(_ context.Context, kvs []kvdb.KeyValue, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kvs, m.revision = map[string]kvdb.KeyValue{}, revision
	for _, x := range kvs {
		m.kvs[x.Key] = x
	}
	return nil
}

func (m *mirror) Apply(_ context.Context, events []kvdb.Event, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision = revision
	for _, ev := range events {
		if m.kvs[ev.Key] = ev.KeyValue; ev.Deleted {
			delete(m.kvs, ev.Key)
		}
	}
	return nil
}
