// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/cadastre/cadastre/operator/fence"
)

// ErrDeposed is wrapped by the errors of a leader that was deposed.
var ErrDeposed = errors.New("another process leads now")

// Fence keeps a leader that was deposed from giving blocks.
//
// It is one half of what does so. A leader first writes to a node which blocks
// the node is about to get (IntentAnnotation), then asks the fence, and only then
// patches the podCIDRs of the node as it was read before it asked. A new leader
// first lists the nodes. A patch that an older leader has under way was fenced
// before the new leader was elected, so the list shows either what the patch is
// about to write, or a node that has changed since, for which the API server
// refuses the patch. The new leader keeps these blocks for their nodes and gives
// all others at once. It need not write to any node first, and no clock is
// involved. An Allocator is for one leadership: a process that is elected again
// makes a new one, with a new Fence.
type Fence interface {
	// Term names this leadership; no other one has the same name.
	Term() string
	// Check returns nil where, at some moment after it was called, this
	// process led. It wraps ErrDeposed where it does not.
	Check(ctx context.Context) error
}

// LeaseFence is the Fence of a leader that was elected by a Lease.
type LeaseFence struct {
	leases          coordination.LeasesGetter
	namespace, name string
	identity        string
	transitions     int32
	uid             types.UID // of the lease: one that was made anew counts from 0 again
}

var _ Fence = (*LeaseFence)(nil)

// NewLeaseFence is called by whoever was just elected: identity must hold the
// lease, and every process must have an identity of its own.
func NewLeaseFence(ctx context.Context, leases coordination.LeasesGetter, namespace, name, identity string) (*LeaseFence, error) {
	f := &LeaseFence{leases: leases, namespace: namespace, name: name, identity: identity, transitions: -1}
	return f, f.Check(ctx)
}

// Term implements Fence.
func (f *LeaseFence) Term() string { return fmt.Sprintf("%s/%d", f.identity, f.transitions) }

// Check implements Fence. It reads the lease from the API server. That the
// lease may have run out does not matter, as long as nobody has taken it.
func (f *LeaseFence) Check(ctx context.Context) error {
	lease, err := f.leases.Leases(f.namespace).Get(ctx, f.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look who holds lease %s/%s: %w", f.namespace, f.name, err)
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

// gateOf asks a fence for all who wait together. Without one all is well.
func gateOf(f Fence, timeout time.Duration) *fence.Gate {
	if f == nil {
		return fence.NewGate(nil, timeout)
	}
	return fence.NewGate(f.Check, timeout)
}
