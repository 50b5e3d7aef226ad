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

// kind holds what differs between the kinds of values. What is planned for a value depends on the
// value of the node, so it is planned anew for each call.
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
	strays func(wanted []southbound.Wanted[value]) (func() error, error)
	// noter returns notes for the operator. It may be nil.
	noter func() []string

	rest  *leftOver // of the last retrieve
	clear func() error
}

// value is the message of a value that can be planned.
type value = proto.Message

// of returns the kind for the scheduler.
func (k *kind) of() southbound.Kind[value] {
	return southbound.Kind[value]{
		Name:   k.name,
		Prefix: k.prefix,
		Read: func(key string, m value) (value, error) {
			_, err := k.plan(key, m, false)
			return m, err
		},
		Needs:     k.dependencies,
		Create:    func(ctx context.Context, key string, want value) error { return k.ensure(ctx, key, nil, want) },
		Update:    k.update,
		Delete:    k.remove,
		Recreates: k.recreates,
		Retrieve:  k.retrieve,
		Inspect:   k.inspect,
		Notes:     k.noter,
		Watch:     k.watchFor,
	}
}

// restName is the end of the key of what is left over of a kind.
const restName = "vpp-left-over"

// restKey returns the key of the value that stands for all objects that are left over.
func (k *kind) restKey() string {
	if strings.HasSuffix(k.prefix, "/") {
		return k.prefix + restName
	}
	return k.prefix + "/" + restName
}

// update changes a value in place.
func (k *kind) update(ctx context.Context, key string, was southbound.Made[value], want value) error {
	return k.ensure(ctx, key, was.Message, want)
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

// remove removes a value. While VPP is away, the kernel's part is removed.
func (k *kind) remove(ctx context.Context, key string, was southbound.Made[value]) error {
	if key == k.restKey() {
		return k.removeRest(ctx)
	}
	var err error
	// The actual value of a half made one cannot always be read. What it has is left over then.
	if p, unread := k.plan(key, was.Message, true); unread == nil && p != nil {
		err = k.change(ctx, func(x *change) error { return x.remove(p, nil) })
	}
	if k.gone == nil || err != nil && !errors.Is(err, southbound.ErrAway) {
		return err
	}
	return errors.Join(err, k.gone(ctx, key, was.Message))
}

// removeRest removes what the last retrieve found of no wanted value.
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

// retrieve returns the values that are made now. One that is complete is returned as wanted,
// of an incomplete one only that it is there. What no wanted value has is one further value.
func (k *kind) retrieve(ctx context.Context, wanted []southbound.Wanted[value]) ([]controller.Value, error) {
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
		made := controller.Value{Key: v.Key, Message: v.Message}
		if p == nil {
			all = append(all, made)
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
			all = append(all, made)
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

// inspect compares one value with VPP. Its error names each difference.
func (k *kind) inspect(ctx context.Context, key string, value proto.Message) error {
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

// watchFor tells the scheduler when VPP may have lost values of this kind.
func (k *kind) watchFor(ctx context.Context, changed func(key string)) error {
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
