// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// errLost is why an operator ends that led.
var errLost = errors.New("the lease could not be renewed, or another operator leads")

// lead works while this process leads, until ctx ends. The lease is renewed
// until the work has ended, and only then given back, so that the next leader
// finds nobody at work.
func (p *operator) lead(ctx context.Context) error {
	if !p.options.elect.enabled {
		p.log.Info("the operator works without an election: no other one may run")
		return p.work(ctx, nil)
	}
	e, started := p.options.elect, make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: p.lock(), LeaseDuration: e.leaseDuration, RenewDeadline: e.renewDeadline, RetryPeriod: e.retryPeriod, Name: e.name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("make the election: %w", err)
	}
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(ended)
		elector.Run(electing)
	})
	p.log.Info("the operator waits for its lease", "lease", e.namespace+"/"+e.name, "identity", p.identity)
	select {
	case leading := <-started:
		err = p.leadOnce(ctx, leading)
	case <-ended:
		err = errLost
	case <-ctx.Done():
	}
	stop()
	group.Wait()
	if !elector.IsLeader() {
		return err
	}
	if e := p.release(context.WithoutCancel(ctx)); e != nil {
		p.log.Warn("the lease could not be given back; the next leader waits until it runs out", "error", e)
	}
	return err
}

// leadOnce works until ctx ends, or leading does.
func (p *operator) leadOnce(ctx, leading context.Context) error {
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(leading, func() { cancel(errLost) })
	defer stop()
	fence, err := p.fence(working)
	if err == nil && fence != nil {
		err = p.work(working, fence)
	}
	if leading.Err() != nil && ctx.Err() == nil {
		err = errors.Join(errLost, err)
	}
	return err
}

// fence is that of a leadership that was just won. It is nil where the context
// has ended before the API server could be asked.
func (p *operator) fence(ctx context.Context) (nodeipam.Fence, error) {
	e := p.options.elect
	for {
		asking, cancel := context.WithTimeout(ctx, e.renewDeadline)
		fence, err := nodeipam.NewLeaseFence(asking, p.clients.leases, e.namespace, e.name, p.identity)
		cancel()
		switch {
		case err == nil:
			return fence, nil
		case errors.Is(err, nodeipam.ErrDeposed):
			return nil, err
		case ctx.Err() != nil:
			return nil, nil
		}
		p.log.Warn("it cannot be looked up who leads; this is tried again", "in", e.retryPeriod, "error", err)
		select {
		case <-time.After(e.retryPeriod):
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// lock is the lease, as an election uses it.
func (p *operator) lock() resourcelock.Interface {
	e := p.options.elect
	return &seenLock{p: p, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
		Client:     p.clients.leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: p.identity},
	}}
}

// release gives the lease back, if this process has it.
func (p *operator) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.options.elect.renewDeadline)
	defer cancel()
	lock := p.lock()
	was, _, err := lock.Get(ctx)
	if err != nil {
		return fmt.Errorf("look who holds lease %s: %w", lock.Describe(), err)
	}
	if was.HolderIdentity != p.identity {
		return nil
	}
	now := metav1.Now()
	free := resourcelock.LeaderElectionRecord{LeaderTransitions: was.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now}
	if err := lock.Update(ctx, free); err != nil {
		return fmt.Errorf("give back lease %s: %w", lock.Describe(), err)
	}
	return nil
}

// seenLock notes when the lease was last asked for, by which it is known that
// the election goes on.
type seenLock struct {
	resourcelock.Interface
	p *operator
}

func (l *seenLock) note() {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.lookedFor = time.Now()
}

// Get implements resourcelock.Interface.
func (l *seenLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.note()
	return l.Interface.Get(ctx)
}

// Create implements resourcelock.Interface.
func (l *seenLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.note()
	return l.Interface.Create(ctx, r)
}

// Update implements resourcelock.Interface.
func (l *seenLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.note()
	return l.Interface.Update(ctx, r)
}

// work runs the controllers until ctx ends or one of them fails, and waits for all.
func (p *operator) work(ctx context.Context, fence nodeipam.Fence) error {
	works, err := p.wire(fence)
	if err != nil {
		return err
	}
	p.setWorks(true, works)
	defer p.setWorks(false, nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	errs := make([]error, len(works))
	for i, c := range works {
		p.log.Info("a controller runs", "controller", c.name)
		group.Go(func() {
			err := c.run(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("it has ended by itself")
			}
			if err != nil {
				errs[i] = fmt.Errorf("controller %s: %w", c.name, err)
			}
			cancel() // none goes on without the others
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (p *operator) setWorks(leading bool, works []controller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading, p.works = leading, works
}
