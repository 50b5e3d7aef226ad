// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// syncToAPIServer writes the NetResourceSet if it differs.
func (n *NetResource) syncToAPIServer(ctx context.Context) error {
	if err := n.acquireTurn(ctx); err != nil {
		return err
	}
	defer n.releaseTurn()
	if err := n.write(ctx); err != nil {
		return err
	}
	if n.due() {
		n.manager.maintain.Add(n.name, "sync", 0)
	}
	return nil
}

// write writes the status and then the spec, so that no agent allocates an address before
// the status describes it. The pool is the one from before the status was written.
func (n *NetResource) write(ctx context.Context) (err error) {
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.unwritten++; err == nil {
			n.unwritten = 0
		}
	}()
	n.mu.Lock()
	known, pool, uid := n.known, n.pool(), n.resource.UID
	n.mu.Unlock()
	if err := n.writeStatus(ctx); err != nil {
		return err
	}
	if !known {
		return nil
	}
	for announced := true; announced; {
		announced = false
		err := n.put(ctx, "spec", n.manager.config.API.Update,
			func(base *v1alpha1.NetResourceSet) (next *v1alpha1.NetResourceSet) {
				if announced = false; base.UID == uid {
					next, announced = n.towards(base, pool)
				}
				return next
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeStatus writes the operator's part of the status. Fields that the provider cannot
// give stay as they are, and the status says why.
func (n *NetResource) writeStatus(ctx context.Context) error {
	return n.put(
		ctx,
		"status",
		n.manager.config.API.UpdateStatus,
		func(base *v1alpha1.NetResourceSet) *v1alpha1.NetResourceSet {
			err := n.plan(ctx)
			copied := *base // all but the status is only read
			r := &copied
			r.Status = *base.Status.DeepCopy()
			n.PopulateIPReleaseStatus(r)
			n.mu.Lock()
			r.Status.IPAM.OperatorStatus.Error = n.lastError
			if n.known {
				r.Status.Addresses = v1alpha1.AddressCounts{
					Used:      n.stats.UsedIPs,
					Available: n.stats.AvailableIPs,
					Capacity:  n.marks().Max,
				}
			}
			n.mu.Unlock()
			own, err2 := nodeCall(ctx, n, "Describe", func(ctx context.Context) (*v1alpha1.NetResourceSet, error) {
				own := r.DeepCopy() // half of a description is none
				return own, n.manager.provider.Describe(ctx, own)
			})
			if err2 == nil {
				r.Status = own.Status
			}
			if err = errors.Join(err, err2); err != nil && r.Status.IPAM.OperatorStatus.Error == "" {
				r.Status.IPAM.OperatorStatus.Error = err.Error()
			}
			if equality.Semantic.DeepEqual(&base.Status, &r.Status) {
				return nil
			}
			return r
		},
	)
}

// errMadeAgain ends a write to a NetResourceSet that was deleted and made again. The caller
// tries again when it has received the new one.
var errMadeAgain = errors.New("it was deleted and made again")

// put writes the version that change derives from the newest one, unless that is
// nil. After a conflict it reads the newest version and tries once more. It
// succeeds without a write if the NetResourceSet is gone.
func (n *NetResource) put(
	ctx context.Context,
	what string,
	write func(a, b *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error),
	change func(*v1alpha1.NetResourceSet) *v1alpha1.NetResourceSet,
) error {
	var next *v1alpha1.NetResourceSet
	_, err := runner.Write[*v1alpha1.NetResourceSet]{
		Fence: n.manager.checkFence,
		Done: func(base *v1alpha1.NetResourceSet) bool {
			if n.isRemoved() {
				return true
			}
			next = change(base) // base stays as it is: versions are replaced as a whole
			return next == nil
		},
		Send: func(_ context.Context, base *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
			written, err := write(base, next)
			if err == nil && written != nil {
				n.learn(written)
			}
			return written, err
		},
		Read: func(context.Context) (*v1alpha1.NetResourceSet, error) {
			fresh, err := n.manager.config.API.Get(n.name)
			if err != nil {
				return nil, fmt.Errorf("read it after a conflict: %w", err)
			}
			if !n.learn(fresh) {
				return nil, errMadeAgain
			}
			return n.newest(), nil
		},
		Retry:    apierrors.IsConflict,
		Attempts: 2,
	}.Do(ctx, n.newest())
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("write the %s of NetResourceSet %s: %w", what, n.name, err)
}
