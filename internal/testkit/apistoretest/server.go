// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package apistoretest provides an API server in memory for tests of package apistore,
// and a suite that it and a real API server must both pass.
//
// A Server speaks HTTP and JSON on loopback for the kinds that apistore reads and
// writes. It serves get, list (also as of an earlier resourceVersion), watch, create,
// update, merge patch, delete, and the status of nodes and pods. It counts
// resourceVersions and selects by metadata.name and spec.nodeName. On request it
// compacts its history and fails requests. It has no schemas, admission, finalizers or
// authorization.
//
// The Server owns its state; every method may be called from any goroutine.
// Close ends all requests and waits for them.
package apistoretest

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// Server is an API server in memory. Use New.
type Server struct {
	http *httptest.Server

	mu        sync.Mutex
	rev       int64
	born      int64                // objects so far, for their UIDs
	compacted int64                // the oldest revision that is known
	objects   map[string][]version // by path, oldest version first
	log       []change             // since compacted
	undefined map[string]bool      // resources that do not exist
	changed   chan struct{}        // closed at the next change of anything here
	plans     []Plan
	count     int
	down      bool // no request is answered
	epoch     int  // watches of earlier ones are cut off
	cycle     int  // watches of earlier ones end in good order
	expired   int  // watches of earlier ones end, for they are too old
	bookmarks int
	closed    bool
}

// object is a JSON object. It is never modified.
type object = map[string]any

// version is an object since a revision; nil: it was deleted.
type version struct {
	rev int64
	now object
}

// change is one change of an object.
type change struct {
	rev       int64
	at        string
	prev, now object
}

// New starts an empty Server.
func New() *Server {
	s := &Server{objects: map[string][]version{}, undefined: map[string]bool{}, changed: make(chan struct{}), rev: 1}
	s.http = httptest.NewServer(s)
	return s
}

// Config returns the configuration for clients.
func (s *Server) Config() *rest.Config { return &rest.Config{Host: s.http.URL} }

// Close ends the Server.
func (s *Server) Close() {
	s.alter(func() { s.closed = true })
	s.http.CloseClientConnections()
	s.http.Close()
}

// alter changes state that watches depend on, and wakes them.
func (s *Server) alter(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Revision returns the highest resourceVersion so far.
func (s *Server) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rev
}

// Compact forgets the history.
func (s *Server) Compact() {
	s.alter(func() {
		s.compacted = s.rev // running watches go on: the log keeps the events that they still have to send
		for at, all := range s.objects {
			last := all[len(all)-1]
			if s.objects[at] = []version{last}; last.now == nil {
				delete(s.objects, at)
			}
		}
	})
}

// Expire ends all watches as if the next revision were compacted.
func (s *Server) Expire() { s.alter(func() { s.expired++ }) }

// EndWatches ends all watches in good order.
func (s *Server) EndWatches() { s.alter(func() { s.cycle++ }) }

// CutWatches breaks the connections of all watches.
func (s *Server) CutWatches() { s.alter(func() { s.epoch++ }) }

// Bookmark sends a bookmark to all watches that want them.
func (s *Server) Bookmark() { s.alter(func() { s.bookmarks++ }) }

// Down breaks all connections and refuses new ones.
func (s *Server) Down() { s.alter(func() { s.down = true; s.epoch++ }) }

// Undefine removes the definition of a resource, or with gone false restores it.
func (s *Server) Undefine(resource string, gone bool) {
	s.alter(func() { s.undefined[resource] = gone })
}

// Snapshot holds the state of a Server.
type Snapshot struct {
	rev, born int64
	objects   map[string]object
}

// Snapshot returns the present state.
func (s *Server) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := Snapshot{s.rev, s.born, map[string]object{}}
	for at, versions := range s.objects {
		if now := versions[len(versions)-1].now; now != nil {
			all.objects[at] = now
		}
	}
	return all
}

// Restore replaces the state by then, as a restart with an older copy of the store
// does. The counter continues from the one of then, or with bump from the present one.
func (s *Server) Restore(then Snapshot, bump bool) {
	s.alter(func() {
		if s.rev++; !bump {
			s.rev = then.rev
		}
		s.born = max(s.born, then.born)
		s.compacted, s.log, s.epoch = s.rev, nil, s.epoch+1
		s.objects = map[string][]version{}
		for at, now := range then.objects {
			s.objects[at] = []version{{then.rev, now}}
		}
	})
}

// resources returns the resources that exist.
func resources() map[schema.GroupResource]resource {
	all := map[schema.GroupResource]resource{
		{Resource: "nodes"}:  {kind: "Node", status: true, lax: true},
		{Resource: "pods"}:   {kind: "Pod", status: true, lax: true, namespaced: true},
		{Resource: "events"}: {kind: "Event", namespaced: true},
	}
	for name, kind := range map[string]string{
		v1alpha1.CustomNetworks: "CustomNetwork", v1alpha1.NodeConfigs: "NodeConfig", v1alpha1.NodeIDs: "NodeID",
		v1alpha1.NodeNames: "NodeName", v1alpha1.NodeBeats: "NodeBeat", v1alpha1.Pools: "Pool", v1alpha1.PoolChanges: "PoolChange",
		v1alpha1.PrefixClaims: "PrefixClaim", v1alpha1.ClusterChecks: "ClusterCheck",
	} {
		all[v1alpha1.Resource(name).GroupResource()] = resource{kind: kind}
	}
	all[v1alpha1.Resource(v1alpha1.NetResourceSets).GroupResource()] = resource{kind: "NetResourceSet", status: true}
	return all
}

// resource holds the properties of a resource.
type resource struct {
	kind               string
	status, namespaced bool
	lax                bool // an update may be of any version
}

// put stores an object, nil to remove it, and returns its new version.
func (s *Server) put(at string, now object) object {
	s.rev++
	prev := s.at(at)
	stored := now
	if now == nil {
		stored = runtime.DeepCopyJSON(prev)
	}
	meta(stored)["resourceVersion"] = fmt.Sprint(s.rev)
	if now == nil {
		s.objects[at] = append(s.objects[at], version{s.rev, nil})
		s.log = append(s.log, change{s.rev, at, stored, nil})
	} else {
		s.objects[at] = append(s.objects[at], version{s.rev, stored})
		s.log = append(s.log, change{s.rev, at, prev, stored})
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return stored
}

// at returns the object of a path, nil for none.
func (s *Server) at(at string) object {
	versions := s.objects[at]
	if len(versions) == 0 {
		return nil
	}
	return versions[len(versions)-1].now
}

// list returns the objects below a path, in order, as of a revision.
func (s *Server) list(below string, rev int64, match func(object) bool) []any {
	all := []any{}
	for _, at := range slices.Sorted(maps.Keys(s.objects)) {
		if !strings.HasPrefix(at, below) {
			continue
		}
		var then object
		for _, v := range s.objects[at] {
			if v.rev <= rev {
				then = v.now
			}
		}
		if then != nil && match(then) {
			all = append(all, then)
		}
	}
	return all
}

// meta returns the metadata of an object that is not stored yet.
func meta(o object) object {
	m, ok := o["metadata"].(object)
	if !ok {
		m = object{}
		o["metadata"] = m
	}
	return m
}

func expiredError(rev int64) *apierrors.StatusError {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", rev))
}

// tooLarge returns the error for a resourceVersion in the future.
func tooLarge(rev, now int64) *apierrors.StatusError {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rev, now), 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"},
	}
	return err
}
