// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// ErrDeposed is wrapped by the error of a fence if another process leads.
var ErrDeposed = errors.New("another process leads now")

// Fence keeps a leader that was deposed from writing. A controller reads what it
// is about to change, then calls Check, and then writes under the
// resourceVersion that it has read. So a later leader either reads the write, or
// has changed the object before it arrives, and the API server refuses it.
type Fence interface {
	// Term names this leadership; no other one has the same name.
	Term() string
	// Check returns nil if this process led at some moment after the call. The
	// error wraps ErrDeposed if another process leads.
	Check(ctx context.Context) error
}

// Term is one leadership of a process, or its whole run if there is no election.
// A Runner makes it, and gives it to the controllers of that leadership.
type Term struct {
	name   string
	since  time.Time
	fence  Fence                   // nil: no election
	depose context.CancelCauseFunc // ends the work of the leadership
}

var _ Fence = (*Term)(nil)

// Term implements Fence.
func (t *Term) Term() string { return t.name }

// Since returns when the leadership began: the fences of all earlier leaders
// fail from then on. It is zero without an election.
func (t *Term) Since() time.Time { return t.since }

// Check implements Fence. If another process leads, it also ends all controllers
// of this leadership. Without an election it fails only if ctx has ended.
func (t *Term) Check(ctx context.Context) error {
	if t.fence == nil {
		return ctx.Err()
	}
	err := t.fence.Check(ctx)
	if errors.Is(err, ErrDeposed) {
		t.depose(fmt.Errorf("the fence stopped the controllers: %w", err))
	}
	return err
}

// LeaseFence is the Fence of a leader that was elected by a Lease.
type LeaseFence struct {
	leases          coordination.LeasesGetter
	namespace, name string
	identity        string
	transitions     int32
	uid             types.UID // a Lease that is created again counts its transitions from 0 again
}

var _ Fence = (*LeaseFence)(nil)

// NewLeaseFence returns the fence of a leadership that has just been won:
// identity must hold the lease, and each process must have its own identity.
func NewLeaseFence(
	ctx context.Context,
	leases coordination.LeasesGetter,
	namespace, name, identity string,
) (*LeaseFence, error) {
	f := &LeaseFence{leases: leases, namespace: namespace, name: name, identity: identity, transitions: -1}
	return f, f.Check(ctx)
}

// Term implements Fence.
func (f *LeaseFence) Term() string { return fmt.Sprintf("%s/%d", f.identity, f.transitions) }

// Check implements Fence. It reads the lease from the API server. An expired
// lease is still this leader's as long as no other process has taken it.
func (f *LeaseFence) Check(ctx context.Context) error {
	lease, err := f.leases.Leases(f.namespace).Get(ctx, f.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the holder of lease %s/%s: %w", f.namespace, f.name, err)
	}
	var holder string
	var transitions int32
	if lease.Spec.HolderIdentity != nil {
		holder = *lease.Spec.HolderIdentity
	}
	if lease.Spec.LeaseTransitions != nil {
		transitions = *lease.Spec.LeaseTransitions
	}
	if f.transitions < 0 && holder == f.identity {
		f.transitions, f.uid = transitions, lease.UID
	}
	if holder != f.identity || transitions != f.transitions || lease.UID != f.uid {
		return fmt.Errorf("lease %s/%s is held by %q (%d): %w", f.namespace, f.name, holder, transitions, ErrDeposed)
	}
	return nil
}
