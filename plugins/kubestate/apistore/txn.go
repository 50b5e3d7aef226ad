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
	if err := s.ready(); err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	at, others, err := s.sort(conds, ops)
	if err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	if err := s.hold(ctx, others); err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	for i, op := range ops {
		c, conditional := at[op.Key]
		if rev, err = s.write(ctx, op, c, conditional); err != nil {
			return 0, fmt.Errorf("apply transaction: %w", err)
		}
		if k, _, _, _ := s.reader.kindOf(op.Key); k.counts && i < len(ops)-1 {
			others = append(others, kvdb.Cond{Key: op.Key, ModRevision: rev})
		}
	}
	if len(ops) == 0 {
		return s.seen(), nil
	}
	if err := s.hold(ctx, others); err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	return rev, nil
}

// sort separates the conditions on written keys from the others.
func (s *Store) sort(conds []kvdb.Cond, ops []kvdb.Op) (at map[string]kvdb.Cond, others []kvdb.Cond, err error) {
	if len(conds) > kvdb.MaxOps || len(ops) > kvdb.MaxOps {
		return nil, nil, fmt.Errorf("%d conditions and %d writes: %w", len(conds), len(ops), kvdb.ErrTooManyOps)
	}
	written := map[string]bool{}
	for _, op := range ops {
		if k, _, _, ok := s.reader.kindOf(op.Key); !ok || k.encode == nil {
			return nil, nil, fmt.Errorf("write %q: %w", op.Key, ErrReadOnly)
		}
		if written[op.Key] {
			return nil, nil, fmt.Errorf("write %s twice: %w", op.Key, kvdb.ErrKey)
		}
		written[op.Key] = true
	}
	at = map[string]kvdb.Cond{}
	for _, c := range conds {
		old, twice := at[c.Key]
		if twice && old != c {
			return nil, nil, kvdb.ErrConditions
		}
		if at[c.Key] = c; !twice && !written[c.Key] {
			others = append(others, c)
		}
	}
	return at, others, nil
}

// hold returns kvdb.ErrConditions unless all conditions hold.
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

// tries limits the attempts of a write without a condition.
const tries = 100

// write does one write and returns its revision.
func (s *Store) write(ctx context.Context, op kvdb.Op, c kvdb.Cond, conditional bool) (rev int64, err error) {
	k, _, name, _ := s.reader.kindOf(op.Key)
	for range tries {
		var old *unstructured.Unstructured
		if !conditional || k.counts || k.status || op.Delete {
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
		case op.Delete && old != nil:
			return 0, kvdb.ErrConditions
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
	return 0, fmt.Errorf("write %s: gave up after %d conflicting writes: %w", op.Key, tries, err)
}

// lost reports whether the API server refused a write because another one was faster.
func lost(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) && !missing(err)
}

// placed holds the object that a write is for.
type placed struct {
	kind    kind
	name    string
	version string // the one to replace; "": there is none
	old     *unstructured.Unstructured
}

func (s *Store) writeAt(ctx context.Context, op kvdb.Op, p placed) (rev int64, err error) {
	resource := s.client.Resource(p.kind.resource)
	if op.Delete {
		if p.version == "" {
			return 0, nil
		}
		err := s.ask(ctx, func(ctx context.Context) error {
			condition := &metav1.Preconditions{ResourceVersion: &p.version}
			return resource.Delete(ctx, p.name, metav1.DeleteOptions{Preconditions: condition})
		})
		if apierrors.IsForbidden(err) {
			err = known(p.kind, err)
		}
		return 0, err
	}
	u, err := p.object(op.Value)
	if err != nil {
		return 0, err
	}
	err = s.ask(ctx, func(ctx context.Context) (err error) {
		switch {
		case p.version == "":
			u, err = resource.Create(ctx, u, metav1.CreateOptions{})
		case p.kind.status:
			u, err = resource.UpdateStatus(ctx, u, metav1.UpdateOptions{})
		default:
			u, err = resource.Update(ctx, u, metav1.UpdateOptions{})
		}
		return err
	})
	switch {
	case apierrors.IsNotFound(err) && missing(err), apierrors.IsForbidden(err):
		return 0, known(p.kind, err)
	case err != nil:
		return 0, err
	}
	if rev, err = revision(u.GetResourceVersion()); err == nil {
		s.note(rev)
	}
	return rev, err
}

// object returns the object to write for a value.
func (p placed) object(value []byte) (*unstructured.Unstructured, error) {
	o, err := p.kind.encode(value, p.name, p.old)
	if err != nil {
		return nil, err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(p.kind.object))
	if u.GetName() != p.name {
		return nil, fmt.Errorf("the value is of %q: %w", u.GetName(), kvdb.ErrKey)
	}
	u.SetResourceVersion(p.version)
	return u, nil
}
