// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import "sync"

// queue is the keys that are to be looked at, each once, in the order in which
// they came.
type queue struct {
	ready chan struct{} // there are keys

	mu   sync.Mutex
	keys []string
	in   map[string]bool
}

func newQueue() *queue {
	return &queue{ready: make(chan struct{}, 1), in: map[string]bool{}}
}

// add adds keys; empty ones are none.
func (q *queue) add(keys ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, key := range keys {
		if key != "" && !q.in[key] {
			q.in[key] = true
			q.keys = append(q.keys, key)
		}
	}
	q.signal()
}

// take is the next key.
func (q *queue) take() (key string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.keys) == 0 {
		q.keys = nil
		return "", false
	}
	key, q.keys = q.keys[0], q.keys[1:]
	delete(q.in, key)
	q.signal()
	return key, true
}

func (q *queue) signal() {
	if len(q.keys) == 0 {
		return
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.keys)
}
