// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// termAnnotation of a NetResourceSet is Config.Term of the last manager.
const termAnnotation = "cadastre.dev/operator-term"

// takeOver returns when nothing of an earlier manager can come any more.
//
// That is so for NetResourceSets without any clock: who writes one has read it
// before, asks the fence, and sends what it has read by its resourceVersion. An
// earlier manager's fence lets nothing pass that was read after this manager has
// begun, and what was read before then is refused once this manager has written
// its term. What had arrived by then is in the answer, which the provider is told.
//
// Calls to the provider have no resourceVersion. What an earlier manager called
// is seen by a reading that begins Consistency after this one has begun, unless
// the call itself was later than that.
func (n *NetResourceSetManager) takeOver(ctx context.Context) error {
	if n.config.Term != "" {
		n.each(ctx, n.GetNodesByIPWatermark(), func(ctx context.Context, node *NetResource) { node.mark(ctx) })
	}
	if n.config.Since.IsZero() {
		return ctx.Err()
	}
	return runner.Wait(ctx, n.config.Since.Add(n.config.Consistency).Sub(n.config.Now()))
}

// mark writes the manager's term to the NetResourceSet, until that succeeds or
// ctx ends, and tells the provider what the newest version is.
func (n *NetResource) mark(ctx context.Context) {
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
		if err == nil || apierrors.IsInvalid(err) { // an invalid object is nobody's to write
			n.tell(n.manager.calls.brief())
			return
		}
		if ctx.Err() != nil {
			return
		}
		n.log.Warn("the NetResourceSet cannot be taken over yet; this is tried again, and until then nothing is changed", "in", c.RetryInterval, "error", err)
		if runner.Wait(ctx, c.RetryInterval) != nil {
			return
		}
	}
}
