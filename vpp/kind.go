// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// kind is the descriptor of the values of one kind. What differs between the kinds are its
// functions.
type kind struct {
	*shared
	name   string
	prefix string // of the keys; a whole key if it does not end with a slash
	roles  map[string]bool
	// routes reports whether a route over an interface of a role is of this kind; nil: none is.
	routes func(at place, p path, role string) bool

	translates bool // it has the translation of outgoing packets

	// plan returns the objects in VPP, nil for none. If live is false, the value is only
	// validated, and the state of the kernel does not matter.
	plan func(key string, value proto.Message, live bool) (*plan, error)
	// dependencies returns the keys that are made before.
	dependencies func(value proto.Message) []string
	// before makes the kernel's objects, which VPP's need. ready reports whether these are
	// complete, gone removes them. Each may be nil.
	before func(ctx context.Context, key string, was, value proto.Message) error
	ready  func(value proto.Message) (bool, error)
	gone   func(ctx context.Context, key string, value proto.Message) error
	// strays returns a function that removes what the kernel has of no wanted value, nil if it
	// has nothing. It may be nil.
	strays func(wanted []controller.Value) (func() error, error)
	// noter returns notes for the operator. It may be nil.
	noter func() []string

	rest  *leftOver // of the last Retrieve
	clear func() error
}

var (
	_ southbound.Descriptor = (*kind)(nil)
	_ southbound.Watcher    = (*kind)(nil)
	_ southbound.Inspector  = (*kind)(nil)
	_ southbound.Noter      = (*kind)(nil)
)

// restName is the end of the key of what is left over of a kind.
const restName = "vpp-left-over"

// restKey returns the key of the value that stands for all objects that are left over.
func (k *kind) restKey() string {
	if strings.HasSuffix(k.prefix, "/") {
		return k.prefix + restName
	}
	return k.prefix + "/" + restName
}

// Name returns the name of the descriptor.
func (k *kind) Name() string { return k.name }

// Handles reports whether key is of this kind.
func (k *kind) Handles(key string) bool {
	return key == k.prefix || strings.HasSuffix(k.prefix, "/") && strings.HasPrefix(key, k.prefix) || key == k.restKey()
}

// Validate returns the reason why a value can never be made.
func (k *kind) Validate(key string, value proto.Message) error {
	_, err := k.plan(key, value, false)
	return err
}

// Dependencies returns the keys of the values that must be made before.
func (k *kind) Dependencies(_ string, value proto.Message) []string {
	if k.dependencies == nil {
		return nil
	}
	return k.dependencies(value)
}

// Create makes a value, or repairs it.
func (k *kind) Create(ctx context.Context, key string, value proto.Message) error {
	return k.ensure(ctx, key, nil, value)
}

// Update changes a value in place.
func (k *kind) Update(ctx context.Context, key string, before, value proto.Message) error {
	return k.ensure(ctx, key, before, value)
}

// ensure makes the objects of a value, and removes those that it had before.
func (k *kind) ensure(ctx context.Context, key string, was, value proto.Message) error {
	if k.before != nil {
		if err := k.before(ctx, key, was, value); err != nil {
			return err
		}
	}
	return k.change(ctx, func(x *change) error {
		p, err := k.plan(key, value, true)
		if err != nil || p == nil {
			return err
		}
		if was != nil {
			// The actual value of a half made one cannot always be read.
			if old, err := k.plan(key, was, true); err == nil && old != nil {
				if err := x.remove(old, p); err != nil {
					return err
				}
			}
		}
		return x.make(p)
	})
}

// Delete removes a value. While VPP is away, the kernel's part is removed.
func (k *kind) Delete(ctx context.Context, key string, value proto.Message) error {
	if key == k.restKey() {
		return k.removeRest(ctx)
	}
	var err error
	// The actual value of a half made one cannot always be read. What it has is left over then.
	if p, unread := k.plan(key, value, true); unread == nil && p != nil {
		err = k.change(ctx, func(x *change) error { return x.remove(p, nil) })
	}
	if k.gone == nil || err != nil && !errors.Is(err, southbound.ErrAway) {
		return err
	}
	return errors.Join(err, k.gone(ctx, key, value))
}

// removeRest removes what the last Retrieve found of no wanted value.
func (k *kind) removeRest(ctx context.Context) error {
	if rest := k.rest; rest != nil {
		if err := k.change(ctx, func(x *change) error { return x.removeRest(rest) }); err != nil {
			return err
		}
	}
	if k.clear == nil {
		return nil
	}
	return k.clear()
}

// Retrieve returns the values that are made now. One that is complete is returned as wanted,
// of an incomplete one only that it is there. What no wanted value has is one further value.
func (k *kind) Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error) {
	st, err := k.snapshot(ctx, k.name)
	if err != nil {
		return nil, err
	}
	var all []controller.Value
	claimed := newClaims()
	for _, v := range wanted {
		p, err := k.plan(v.Key, v.Message, true)
		if err != nil {
			continue // it cannot be made
		}
		if p == nil {
			all = append(all, v)
			continue
		}
		claimed.add(p)
		some, differs := st.differences(p)
		ready := true
		if k.ready != nil {
			if ready, err = k.ready(v.Message); err != nil {
				return nil, err
			}
		}
		switch {
		case differs == nil && ready:
			all = append(all, v)
		case some || ready && k.ready != nil:
			all = append(all, controller.Value{Key: v.Key, Message: kv.SinkMessage(v.Key)})
		}
	}
	k.rest, k.clear = st.leftOver(k, claimed), nil
	if k.strays != nil {
		if k.clear, err = k.strays(wanted); err != nil {
			return nil, err
		}
	}
	if k.rest != nil || k.clear != nil {
		all = append(all, controller.Value{Key: k.restKey(), Message: k.empty()})
	}
	return all, nil
}

// empty returns an empty message of this kind.
func (k *kind) empty() proto.Message {
	if strings.HasSuffix(k.prefix, "/") {
		return kv.SinkMessage(k.restKey())
	}
	return kv.SinkMessage(k.prefix)
}

// Inspect compares one value with VPP. Its error names each difference.
func (k *kind) Inspect(ctx context.Context, key string, value proto.Message) error {
	p, err := k.plan(key, value, true)
	if err != nil || p == nil {
		return err
	}
	st, err := k.snapshot(ctx, k.name)
	if err != nil {
		return err
	}
	_, differs := st.differences(p)
	if k.ready != nil {
		ready, err := k.ready(value)
		if err != nil {
			return err
		}
		if !ready {
			differs = errors.Join(differs, fmt.Errorf("the kernel's part of %s is missing or differs", key))
		}
	}
	return differs
}

// Watch tells the scheduler when VPP may have lost values of this kind.
func (k *kind) Watch(ctx context.Context, changed func(key string)) error {
	k.watchMu.Lock()
	k.watchers[k] = changed
	k.watchMu.Unlock()
	defer func() {
		k.watchMu.Lock()
		delete(k.watchers, k)
		k.watchMu.Unlock()
	}()
	if k.prefix == kv.SinkNode {
		return k.watch(ctx)
	}
	<-ctx.Done()
	return nil
}

// Notes returns notes for the operator.
func (k *kind) Notes() []string {
	if k.noter == nil {
		return nil
	}
	return k.noter()
}
