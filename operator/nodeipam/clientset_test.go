// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// clientset is the server as programs see it: client-go's own types, on top of
// which its informers work as they do with a real API server.
func (s *server) clientset() *fake.Clientset {
	c := &fake.Clientset{}
	c.AddReactor("*", "nodes", s.react)
	c.AddWatchReactor("nodes", func(action clienttesting.Action) (bool, watch.Interface, error) {
		from, err := strconv.Atoi(action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion)
		if err != nil {
			return true, nil, fmt.Errorf("a watch without a resourceVersion: %w", err)
		}
		return true, s.follow(from), nil
	})
	return c
}

// react answers the requests that have one answer.
func (s *server) react(action clienttesting.Action) (bool, runtime.Object, error) {
	ctx := context.Background()
	switch a := action.(type) {
	case clienttesting.GetActionImpl:
		node, err := s.get(ctx, a.GetName())
		return true, node, err
	case clienttesting.ListActionImpl:
		all, err := s.list(ctx)
		if err != nil {
			return true, nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return true, &v1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.rv)}, Items: all}, nil
	case clienttesting.PatchActionImpl:
		if a.GetSubresource() == "status" {
			return true, &v1.Node{}, s.patchStatus(ctx, a.GetName(), a.GetPatch())
		}
		node, err := s.patch(ctx, a.GetName(), a.GetPatch())
		return true, node, err
	}
	return true, nil, fmt.Errorf("no such request: %s", action.GetVerb())
}

// change holds an event of a watch, and its time.
type change struct {
	rv    int
	event watch.Event
}

// changed notes that node is as it is now, and tells all who watch. It is called
// with the lock held.
func (s *server) changed(kind watch.EventType, node *v1.Node) {
	node = node.DeepCopy()
	node.ResourceVersion = strconv.Itoa(s.rv)
	c := change{s.rv, watch.Event{Type: kind, Object: node}}
	s.history = append(s.history, c)
	s.followers = slices.DeleteFunc(s.followers, func(f *follower) bool { return !f.tell(c) })
}

// follow is a watch of all that happens after from.
func (s *server) follow(from int) *follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &follower{events: make(chan watch.Event, 10000)}
	for _, c := range s.history {
		if c.rv > from {
			f.tell(c)
		}
	}
	s.followers = append(s.followers, f)
	return f
}

// hangUp ends all watches, as an API server does that restarts.
func (s *server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followers {
		f.Stop()
	}
	s.followers = nil
}

// follower is one watch.
type follower struct {
	mu     sync.Mutex
	events chan watch.Event
	over   bool
}

var _ watch.Interface = (*follower)(nil)

// tell returns false after the watch has ended.
func (f *follower) tell(c change) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	f.events <- watch.Event{Type: c.event.Type, Object: c.event.Object.DeepCopyObject()}
	return true
}

func (f *follower) ResultChan() <-chan watch.Event { return f.events }

func (f *follower) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.over = true
		close(f.events)
	}
}
