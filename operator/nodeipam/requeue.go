// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"sync"
	"time"
)

// requeuePolicy decides when one node is processed again. It belongs to one
// goroutine at a time.
type requeuePolicy interface {
	// after returns how long to wait after this outcome; false: until the next event.
	after(err error) (time.Duration, bool)
}

// retryErrors is the policy of a node that is processed again only after errors.
type retryErrors struct{ timeout Timeout }

func (p *retryErrors) after(err error) (time.Duration, bool) {
	p.timeout.Update(err == nil)
	return p.timeout.Next(), err != nil && !errors.Is(err, ErrQuarantined)
}

// requeuePolicies holds the policy of each node. Any goroutine may use it.
type requeuePolicies struct {
	mu     sync.Mutex
	byName map[string]requeuePolicy
}

// of returns the policy of a node; the first call for a node creates it.
func (p *requeuePolicies) of(name string, create func() requeuePolicy) requeuePolicy {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byName == nil {
		p.byName = map[string]requeuePolicy{}
	}
	policy := p.byName[name]
	if policy == nil {
		policy = create()
		p.byName[name] = policy
	}
	return policy
}

func (p *requeuePolicies) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, name)
}
