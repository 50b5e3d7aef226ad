// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/runner"
)

// IntentAnnotation of a NetResourceSet announces the keys that its pool is about to get,
// separated by commas. The write that gives them removes it. The manager writes it only for
// a provider whose Traits say that it reads them.
//
// A manager (1) announces the keys, (2) calls its fence, and (3) writes the pool under the
// resourceVersion that it has read before (2). A write (3) of an earlier manager may still
// be under way when this one begins. The API server refuses it if the object has changed
// since it was read. If the object has not changed, it shows the announcement. So a new
// manager learns from the objects alone which keys may still arrive, and needs to write none
// of them before it serves others. An announcement that arrives later has no effect: the
// fence of its manager fails.
const IntentAnnotation = v1alpha1.Group + "/pool-intent"

// IntentOf returns the keys that a NetResourceSet announces.
func IntentOf(resource *v1alpha1.NetResourceSet) []string {
	text := resource.Annotations[IntentAnnotation]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// takeOver returns when the provider shows the calls of every earlier manager. Such calls
// have no resourceVersion. A reading that begins Consistency after Since shows them, unless
// a call came later than that.
func (n *NetResourceSetManager) takeOver(ctx context.Context) error {
	if n.config.Since.IsZero() {
		return ctx.Err()
	}
	return runner.Wait(ctx, n.config.Since.Add(n.config.Consistency).Sub(n.config.Now()))
}

// towards returns the next version of base on the way to a pool, nil if base has the pool.
// That is a version with an announcement if the pool has new keys.
func (n *NetResource) towards(
	base *v1alpha1.NetResourceSet,
	pool v1alpha1.AllocationMap,
) (next *v1alpha1.NetResourceSet, announces bool) {
	announced, some := base.Annotations[IntentAnnotation]
	if !some && maps.Equal(base.Spec.IPAM.Pool, pool) {
		return nil, false
	}
	next = base.DeepCopy()
	if intent := intentFor(
		base.Spec.IPAM.Pool,
		pool,
	); intent != "" && intent != announced &&
		n.manager.provider.Traits().ReadsIntents {
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[IntentAnnotation] = intent
		return next, true
	}
	delete(next.Annotations, IntentAnnotation)
	next.Spec.IPAM.Pool = maps.Clone(pool)
	return next, false
}

// intentFor returns the announcement of the keys that a pool has and had does not.
func intentFor(had, pool v1alpha1.AllocationMap) string {
	var added []string
	for key := range pool {
		if _, ok := had[key]; !ok {
			added = append(added, key)
		}
	}
	slices.Sort(added)
	return strings.Join(added, ",")
}
