// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// termAnnotation of a NetResourceSet holds Config.Term of the last manager.
const termAnnotation = "cadastre.dev/operator-term"

// takeOver returns when no write of an earlier manager can arrive any more.
//
// For NetResourceSets this needs no clock. A manager reads one, calls its fence, and
// writes it under the resourceVersion that it has read. An earlier manager's fence fails
// for everything that it reads after this leadership began. The API server refuses what
// it read before, once this manager has written its term. Writes that had arrived by
// then are in the answer, which the provider receives.
//
// Calls of the provider have no resourceVersion. A reading that begins Consistency after
// Since shows the calls of an earlier manager, unless a call came later than that.
func (n *NetResourceSetManager) takeOver(ctx context.Context) error {
	if n.config.Term != "" {
		n.each(ctx, n.GetNodesByIPWatermark(), func(ctx context.Context, node *NetResource) { node.writeTerm(ctx) })
	}
	if n.config.Since.IsZero() {
		return ctx.Err()
	}
	return runner.Wait(ctx, n.config.Since.Add(n.config.Consistency).Sub(n.config.Now()))
}

// writeTerm writes the manager's term to the NetResourceSet until that succeeds or ctx
// ends, and passes the newest version to the provider.
func (n *NetResource) writeTerm(ctx context.Context) {
	c := n.manager.config
	for {
		err := n.put(ctx, "term", c.API.Update, func(base *v1alpha1.NetResourceSet) *v1alpha1.NetResourceSet {
			if base.Annotations[termAnnotation] == c.Term {
				return nil
			}
			next := base.DeepCopy()
			if next.Annotations == nil {
				next.Annotations = map[string]string{}
			}
			next.Annotations[termAnnotation] = c.Term
			return next
		})
		if err == nil || apierrors.IsInvalid(err) { // no manager can write an invalid object
			n.notifyProvider(n.manager.calls.shortWait())
			return
		}
		if ctx.Err() != nil {
			return
		}
		n.log.Warn("the NetResourceSet cannot be taken over yet, trying again; nothing is changed until then",
			"in", c.RetryInterval, "error", err)
		if runner.Wait(ctx, c.RetryInterval) != nil {
			return
		}
	}
}
