// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
)

// Txn implements kvdb.Store, write by write; see the package.
func (s *Store) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (rev int64, err error) {
	if len(conds) > kvdb.MaxOps || len(ops) > kvdb.MaxOps {
		return 0, fmt.Errorf("%d conditions and %d writes: %w", len(conds), len(ops), kvdb.ErrTooManyOps)
	}
	written := map[string]bool{}
	for _, op := range ops {
		if k, _, _, ok := kindOf(op.Key, s.node); !ok || k.encode == nil {
			return 0, fmt.Errorf("write %s: %w", op.Key, ErrReadOnly)
		}
		if written[op.Key] {
			return 0, fmt.Errorf("write %s twice: %w", op.Key, kvdb.ErrKey)
		}
		written[op.Key] = true
	}
	at := map[string]kvdb.Cond{}
	var others []kvdb.Cond
	for _, c := range conds {
		if old, twice := at[c.Key]; twice && old != c {
			return 0, kvdb.ErrConditions
		}
		at[c.Key] = c
		if !written[c.Key] {
			others = append(others, c)
		}
	}
	if err := s.hold(ctx, others); err != nil {
		return 0, err
	}
	for _, op := range ops {
		c, conditional := at[op.Key]
		done, err := s.write(ctx, op, c, conditional)
		if err != nil {
			return 0, err
		}
		rev = max(rev, done)
	}
	if len(ops) == 0 {
		return 0, nil
	}
	return rev, s.hold(ctx, others)
}

// hold fails with kvdb.ErrConditions unless all conditions do.
func (s *Store) hold(ctx context.Context, conds []kvdb.Cond) error {
	for _, c := range conds {
		_, u, err := s.get(ctx, c.Key)
		if err != nil {
			return err
		}
		var rev int64
		if u != nil {
			if rev, err = revision(u.GetResourceVersion()); err != nil {
				return fmt.Errorf("get %s: %w", c.Key, err)
			}
		}
		if rev != c.ModRevision {
			return kvdb.ErrConditions
		}
	}
	return nil
}

// tries is how often a write without a condition is tried against others.
const tries = 20

// write does one write, and tells its revision.
func (s *Store) write(ctx context.Context, op kvdb.Op, c kvdb.Cond, conditional bool) (rev int64, err error) {
	k, _, name, _ := kindOf(op.Key, s.node)
	for range tries {
		var old *unstructured.Unstructured
		if !conditional || k.counts {
			if _, old, err = s.get(ctx, op.Key); err != nil {
				return 0, err
			}
		}
		version := ""
		switch {
		case conditional && c.ModRevision != 0:
			version = strconv.FormatInt(c.ModRevision, 10)
		case !conditional && old != nil:
			version = old.GetResourceVersion()
		}
		rev, err = s.writeAt(ctx, op, placed{k, name, version, old})
		switch {
		case err == nil:
			return rev, nil
		case !lost(err):
			return 0, fmt.Errorf("write %s: %w", op.Key, err)
		case conditional:
			return 0, kvdb.ErrConditions
		}
	}
	return 0, fmt.Errorf("write %s: others were faster %d times: %w", op.Key, tries, err)
}

// lost is whether the API server has refused a write because the object is not
// as it was to be.
func lost(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && !missing(err)
}

// placed is which object is written, over which version of it.
type placed struct {
	kind    kind
	name    string
	version string // "": there is none
	old     *unstructured.Unstructured
}

func (s *Store) writeAt(ctx context.Context, op kvdb.Op, p placed) (int64, error) {
	ctx, cancel := s.request(ctx)
	defer cancel()
	resource := s.client.Resource(p.kind.resource)
	if op.Delete {
		if p.version == "" {
			return 0, nil
		}
		return 0, resource.Delete(ctx, p.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &p.version}})
	}
	o, err := p.kind.encode(op.Value, p.name, p.old)
	if err != nil {
		return 0, err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return 0, err
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(p.kind.object))
	if u.GetName() != p.name {
		return 0, fmt.Errorf("the value is of %q: %w", u.GetName(), kvdb.ErrKey)
	}
	if p.version == "" {
		u, err = resource.Create(ctx, u, metav1.CreateOptions{})
	} else {
		u.SetResourceVersion(p.version)
		u, err = resource.Update(ctx, u, metav1.UpdateOptions{})
	}
	if err != nil {
		if apierrors.IsNotFound(err) && missing(err) {
			return 0, noDefinition(p.kind, err)
		}
		return 0, err
	}
	return revision(u.GetResourceVersion())
}
