// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
)

// Descriptor is a Kind as the scheduler calls it. Its methods are for a kind that is built upon
// another one, and for callers without a scheduler. They read the messages that they get.
type Descriptor struct {
	name, prefix string

	read      func(key string, m proto.Message) (any, error)
	needs     func(v *value) []string
	create    func(ctx context.Context, key string, want *value) error
	update    func(ctx context.Context, key string, was, want *value) error
	remove    func(ctx context.Context, key string, was *value) error
	retrieve  func(ctx context.Context, wanted []wanted) ([]controller.Value, error)
	same      func(x, y *value) bool
	recreates func(key string, was, want *value) bool
	standIn   func(want *value) proto.Message
	inspect   func(ctx context.Context, key string, want *value) error
	prepare   func(ctx context.Context, keys []string) error
	sweep     func(ctx context.Context) (more bool, err error)
	notes     func() []string
	watch     func(ctx context.Context, changed func(key string)) error
	close     func() error
}

// value is the message of a value with its plan.
type value struct {
	message proto.Message
	plan    any
	isRead  bool
}

// made returns a value as its kind knows it.
func made[P any](v *value) Made[P] {
	m := Made[P]{Message: v.message, IsRead: v.isRead}
	if v.isRead {
		m.Plan = v.plan.(P)
	}
	return m
}

// wanted is a value that is wanted.
type wanted struct {
	key string
	*value
}

// Descriptor returns the kind for a Scheduler.
func (k Kind[P]) Descriptor() *Descriptor {
	d := &Descriptor{
		name:    k.Name,
		prefix:  k.Prefix,
		prepare: k.Prepare,
		sweep:   k.Sweep,
		notes:   k.Notes,
		watch:   k.Watch,
		close:   k.Close,
		read:    func(key string, m proto.Message) (any, error) { return k.Read(key, m) },
		create:  func(ctx context.Context, key string, want *value) error { return k.Create(ctx, key, want.plan.(P)) },
		remove:  func(ctx context.Context, key string, was *value) error { return k.Delete(ctx, key, made[P](was)) },
		same:    func(x, y *value) bool { return proto.Equal(x.message, y.message) },
		needs:   func(*value) []string { return nil },
		standIn: func(*value) proto.Message { return nil },
	}
	d.update = func(ctx context.Context, key string, _, want *value) error { return d.create(ctx, key, want) }
	d.recreates = func(string, *value, *value) bool { return false }
	if k.Update != nil {
		d.update = func(ctx context.Context, key string, was, want *value) error {
			return k.Update(ctx, key, made[P](was), want.plan.(P))
		}
	}
	d.retrieve = func(ctx context.Context, all []wanted) ([]controller.Value, error) {
		typed := make([]Wanted[P], 0, len(all))
		for _, w := range all {
			typed = append(typed, Wanted[P]{w.key, w.message, w.plan.(P)})
		}
		return k.Retrieve(ctx, typed)
	}
	if k.Needs != nil {
		d.needs = func(v *value) []string { return k.Needs(v.plan.(P)) }
	}
	if k.Same != nil {
		d.same = func(x, y *value) bool { return x.isRead && y.isRead && k.Same(x.plan.(P), y.plan.(P)) }
	}
	if k.Recreates != nil {
		d.recreates = func(key string, was, want *value) bool {
			return k.Recreates(key, made[P](was), want.plan.(P))
		}
	}
	if k.StandIn != nil {
		d.standIn = func(want *value) proto.Message { return k.StandIn(want.plan.(P)) }
	}
	if k.Inspect != nil {
		d.inspect = func(ctx context.Context, key string, want *value) error {
			return k.Inspect(ctx, key, want.plan.(P))
		}
	}
	return d
}

// Name names the kind in logs and in the status.
func (d *Descriptor) Name() string { return d.name }

// Handles reports whether the values under key are of this kind.
func (d *Descriptor) Handles(key string) bool {
	return key == d.prefix || strings.HasSuffix(d.prefix, "/") && strings.HasPrefix(key, d.prefix)
}

// Validate returns the reason why a value can never be made.
func (d *Descriptor) Validate(key string, m proto.Message) error {
	_, err := d.read(key, m)
	return err
}

// value reads a message. One that cannot be read only describes.
func (d *Descriptor) value(key string, m proto.Message) (*value, error) {
	if d == nil {
		return &value{message: m}, nil
	}
	v := &value{message: m}
	err := guard(func() (err error) {
		v.plan, err = d.read(key, m)
		return err
	})
	v.isRead = err == nil
	return v, err
}

// Create makes a value.
func (d *Descriptor) Create(ctx context.Context, key string, m proto.Message) error {
	v, err := d.value(key, m)
	if err != nil {
		return err
	}
	return d.create(ctx, key, v)
}

// Update changes a value that was made.
func (d *Descriptor) Update(ctx context.Context, key string, before, m proto.Message) error {
	v, err := d.value(key, m)
	if err != nil {
		return err
	}
	was, _ := d.value(key, before) // it may only describe
	return d.update(ctx, key, was, v)
}

// Delete removes a value, or what Retrieve has found.
func (d *Descriptor) Delete(ctx context.Context, key string, m proto.Message) error {
	was, _ := d.value(key, m) // it may only describe
	return d.remove(ctx, key, was)
}

// Retrieve returns the values that are made now. wanted is ordered by key.
func (d *Descriptor) Retrieve(ctx context.Context, values []controller.Value) ([]controller.Value, error) {
	var all []wanted
	for _, v := range values {
		if x, err := d.value(v.Key, v.Message); err == nil {
			all = append(all, wanted{v.Key, x})
		}
	}
	return d.retrieve(ctx, all)
}

// Inspect compares one value with the actual state; nil if the kind has no Inspect.
func (d *Descriptor) Inspect(ctx context.Context, key string, m proto.Message) error {
	v, err := d.value(key, m)
	if err != nil || d.inspect == nil {
		return err
	}
	return d.inspect(ctx, key, v)
}

// Sweep removes a batch of detached objects and reports whether there are more.
func (d *Descriptor) Sweep(ctx context.Context) (more bool, err error) {
	if d.sweep == nil {
		return false, nil
	}
	return d.sweep(ctx)
}

// Watch tells of values that may not be complete any more, until ctx ends.
func (d *Descriptor) Watch(ctx context.Context, changed func(key string)) error {
	if d.watch == nil {
		<-ctx.Done()
		return nil
	}
	return d.watch(ctx, changed)
}

// Notes returns what the operator should know beside the values.
func (d *Descriptor) Notes() []string {
	if d.notes == nil {
		return nil
	}
	return d.notes()
}

// Close releases what the kind has opened.
func (d *Descriptor) Close() error {
	if d.close == nil {
		return nil
	}
	return d.close()
}
