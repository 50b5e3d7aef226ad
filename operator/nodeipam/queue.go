// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// queue has the names of nodes that are to be looked at. Before it is opened,
// and after it was closed, what is added is lost.
type queue struct {
	mu    sync.Mutex
	work  workqueue.TypedDelayingInterface[string]
	paces map[string]pace
}

// pace is when one node is looked at again after it was looked at.
type pace interface {
	// after is how long to wait; false: until something happens.
	after(err error) (time.Duration, bool)
}

// untilItWorks is the pace of a node that is looked at again after errors only.
type untilItWorks struct{ timeout Timeout }

func (p *untilItWorks) after(err error) (time.Duration, bool) {
	p.timeout.Update(err == nil)
	return p.timeout.Next(), err != nil && !errors.Is(err, ErrQuarantined)
}

func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "cidrallocator_node"})
	q.paces = map[string]pace{}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work.ShutDown()
	q.work = nil
}

func (q *queue) add(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.work != nil {
		q.work.Add(name)
	}
}

func (q *queue) addAfter(name string, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.work != nil {
		q.work.AddAfter(name, d)
	}
}

// paceOf is the pace of a node.
func (q *queue) paceOf(name string, fresh func() pace) pace {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := q.paces[name]
	if p == nil {
		p = fresh()
		q.paces[name] = p
	}
	return p
}

func (q *queue) forget(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.paces, name)
}
