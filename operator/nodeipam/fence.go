// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"time"

	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/cadastre/cadastre/operator/runner"
)

// ErrDeposed is wrapped by the errors of a leader that was deposed.
var ErrDeposed = runner.ErrDeposed

// Fence keeps a leader that was deposed from assigning blocks.
//
// A leader first writes to a node which blocks the node is about to get
// (IntentAnnotation), and then calls the fence. After that it patches the podCIDRs
// of the node under the resourceVersion that the node had before the call. A new
// leader first lists the nodes. A patch that an older leader has under way was
// fenced before the new leader was elected. So the list shows either what the patch
// is about to write, or a node that has changed since, for which the API server
// refuses the patch. The new leader reserves these blocks for their nodes and
// assigns all others at once. It writes to no node first, and no clock is involved.
// An Allocator is for one leadership: a process that is elected again makes a new
// one, with a new Fence.
type Fence = runner.Fence

// LeaseFence is the Fence of a leader that was elected by a Lease.
type LeaseFence = runner.LeaseFence

// NewLeaseFence returns the fence of a leadership that has just been won:
// identity must hold the lease, and each process must have its own identity.
func NewLeaseFence(
	ctx context.Context,
	leases coordination.LeasesGetter,
	namespace, name, identity string,
) (*LeaseFence, error) {
	return runner.NewLeaseFence(ctx, leases, namespace, name, identity)
}

// gateOf returns a gate that calls f once for all callers that wait. It always
// succeeds without a fence.
func gateOf(f Fence, timeout time.Duration) *runner.Gate {
	if f == nil {
		return runner.NewGate(nil, timeout)
	}
	return runner.NewGate(f.Check, timeout)
}
