// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ErrLeaseLost is returned by Run if the process led and could not renew its lease.
var ErrLeaseLost = errors.New("the lease could not be renewed, or another process leads")

// Election holds the Lease by which one of several processes is elected.
type Election struct {
	Leases          coordination.LeasesGetter
	Namespace, Name string
	LeaseDuration   time.Duration // how long candidates wait for a leader that does not renew
	RenewDeadline   time.Duration // how long the leader tries to renew before it gives up
	RetryPeriod     time.Duration // between two attempts to acquire or to renew
}

// elect waits for the lease, runs the controllers until ctx ends or the lease is
// lost, and renews the lease until they have ended. Only then it releases the
// lease, so no controller of this process works when the next leader begins.
func (r *Runner) elect(ctx context.Context) error {
	e, started := r.config.Election, make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          r.lock(),
		LeaseDuration: e.LeaseDuration,
		RenewDeadline: e.RenewDeadline,
		RetryPeriod:   e.RetryPeriod,
		Name:          e.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) { started <- leading },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("configure the election: %w", err)
	}
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		defer close(ended)
		elector.Run(electing)
	})
	r.config.Log.Info("waiting for the lease", "lease", e.Namespace+"/"+e.Name, "identity", r.config.Identity)
	select {
	case leading := <-started:
		err = r.lead(ctx, leading)
	case <-ended:
		err = ErrLeaseLost
	case <-ctx.Done():
	}
	stop()
	group.Wait()
	if !elector.IsLeader() {
		return err
	}
	if e := r.release(context.WithoutCancel(ctx)); e != nil {
		r.config.Log.Warn("the lease is not released; the next leader waits until it expires", "error", e)
	}
	return err
}

// lead runs the controllers until ctx or leading ends, or the fence finds
// another leader.
func (r *Runner) lead(ctx, leading context.Context) error {
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(leading, func() { cancel(ErrLeaseLost) })
	defer stop()
	term, err := r.term(working, cancel)
	if err == nil && term != nil {
		err = r.work(working, term)
	}
	cause := context.Cause(working)
	if ctx.Err() != nil || errors.Is(err, ErrDeposed) && errors.Is(cause, ErrDeposed) {
		return err
	}
	return errors.Join(cause, err)
}

// term returns the leadership that was just won, or nil if ctx ends before the
// API server has answered.
func (r *Runner) term(ctx context.Context, depose context.CancelCauseFunc) (*Term, error) {
	e := r.config.Election
	for {
		fence, err := Within(ctx, e.RenewDeadline, func(ctx context.Context) (*LeaseFence, error) {
			return NewLeaseFence(ctx, e.Leases, e.Namespace, e.Name, r.config.Identity)
		})
		switch {
		case err == nil:
			return &Term{name: fence.Term(), since: r.config.Now(), fence: fence, depose: depose}, nil
		case errors.Is(err, ErrDeposed):
			return nil, err
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // the context has ended
		}
		r.config.Log.Warn("the holder of the lease is not known, trying again", "in", e.RetryPeriod, "error", err)
		if Wait(ctx, e.RetryPeriod) != nil {
			return nil, nil //nolint:nilerr // the context has ended
		}
	}
}

// lock returns the Lease in the form that client-go's election uses.
func (r *Runner) lock() resourcelock.Interface {
	e := r.config.Election
	return &observedLock{runner: r, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name},
		Client:     e.Leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: r.config.Identity},
	}}
}

// release gives the lease back if this process still holds it.
func (r *Runner) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.Election.RenewDeadline)
	defer cancel()
	lock := r.lock()
	was, _, err := lock.Get(ctx)
	if err != nil {
		return fmt.Errorf("read the holder of lease %s: %w", lock.Describe(), err)
	}
	if was.HolderIdentity != r.config.Identity {
		return nil
	}
	now := metav1.NewTime(r.config.Now())
	free := resourcelock.LeaderElectionRecord{
		LeaderTransitions:    was.LeaderTransitions,
		LeaseDurationSeconds: 1,
		RenewTime:            now,
		AcquireTime:          now,
	}
	if err := lock.Update(ctx, free); err != nil {
		return fmt.Errorf("release lease %s: %w", lock.Describe(), err)
	}
	return nil
}

// observedLock records when the election last used the lease: Alive reports an
// election that has stopped.
type observedLock struct {
	resourcelock.Interface
	runner *Runner
}

func (l *observedLock) record() {
	l.runner.mu.Lock()
	defer l.runner.mu.Unlock()
	l.runner.lastAttempt = l.runner.config.Now()
}

// Get implements resourcelock.Interface.
func (l *observedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.record()
	return l.Interface.Get(ctx)
}

// Create implements resourcelock.Interface.
func (l *observedLock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.record()
	return l.Interface.Create(ctx, r)
}

// Update implements resourcelock.Interface.
func (l *observedLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	l.record()
	return l.Interface.Update(ctx, r)
}
