// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// doubt tells how far the made value can be relied on.
type doubt int

const (
	sure   doubt = iota
	unread       // the actual state could not be read
	broken       // a failure may have left it incomplete, or removed
)

// item holds what is wanted and what is made under one key.
type item struct {
	key    string
	kind   *Descriptor // nil: the value is only kept
	wanted *value      // nil: nothing
	made   *value      // nil: nothing
	stands bool        // made only stands in for a pending value
	needs  []string    // dependencies of wanted
	uses   []string    // dependencies of made
	doubt  doubt
	err    error     // of the last attempt
	retry  *attempts // nil: err is not repeated

	ensuring, removing bool // methods of run that are at it
}

// equal reports whether the made value is v.
func (it *item) equal(v *value) bool {
	switch {
	case it.made == nil || v == nil:
		return it.made == nil && v == nil
	case it.made == v || it.made.message == v.message:
		return true
	case it.kind == nil:
		return proto.Equal(it.made.message, v.message)
	}
	return it.kind.same(it.made, v)
}

// substitute returns the value that stands in for the wanted one while that is pending, nil
// for none.
func (it *item) substitute() *value {
	if it.kind == nil || it.wanted == nil || !it.wanted.isRead {
		return nil
	}
	m := it.kind.standIn(it.wanted)
	if m == nil {
		return nil
	}
	v, _ := it.kind.value(it.key, m) // a value that stands in can be read
	return v
}

// substituted reports whether the made value is the one that stands in for the wanted one.
func (it *item) substituted() bool {
	v := it.substitute()
	return v != nil && it.equal(v)
}

// ready reports whether a value is made and does not only stand in for the wanted one.
func (it *item) ready() bool { return it.made != nil && !it.stands }

// gone reports whether the value waits for its release: its owner has ended.
func (it *item) gone() bool { return errors.Is(it.err, ErrGone) }

// unchanged reports whether the made value is the wanted one, as far as is known.
func (it *item) unchanged() bool { return it.doubt == sure && it.err == nil && it.equal(it.wanted) }

// kindOf returns the kind of a key, nil if its values are only kept.
func (s *Scheduler) kindOf(key string) *Descriptor {
	for _, d := range s.kinds {
		if d.Handles(key) {
			return d
		}
	}
	return nil
}

// read returns the value of a message, nil without one, or the reason why it can never be made.
// The message of a wanted value is not read again.
func (s *Scheduler) read(v controller.Value) (*value, error) {
	if v.Message == nil {
		return nil, nil // a removal of an impossible value does nothing
	}
	if it := s.items[v.Key]; it != nil && it.wanted != nil && it.wanted.message == v.Message && it.wanted.isRead {
		return it.wanted, nil
	}
	read, err := s.check(v)
	if err != nil {
		return nil, fmt.Errorf("invalid value %q: %w", fmt.Sprint(v.Message), err)
	}
	return read, nil
}

func (s *Scheduler) check(v controller.Value) (*value, error) {
	d, message := s.kindOf(v.Key), kv.SinkMessage(v.Key)
	switch {
	case d == nil && message == nil:
		return nil, errors.New("the southbound has no such key")
	case message != nil:
		have, want := v.Message.ProtoReflect().Descriptor().FullName(), message.ProtoReflect().Descriptor().FullName()
		if have != want {
			return nil, fmt.Errorf("it is a %s, not a %s", have, want)
		}
	}
	return d.value(v.Key, v.Message)
}

// dependencies returns the keys that a value depends on.
func (it *item) dependencies(v *value) []string {
	if v == nil || it.kind == nil || !v.isRead {
		return nil
	}
	return it.kind.needs(v)
}

// item returns the item of a key, and makes one if there is none.
func (r *run) item(key string) *item {
	it := r.s.items[key]
	if it == nil {
		it = &item{key: key, kind: r.s.kindOf(key)}
		r.s.items[key] = it
	}
	return it
}

func (r *run) setWanted(it *item, v *value) {
	it.wanted = v
	it.stands = it.stands && !it.equal(v) || it.substituted()
	it.needs = r.s.relate(it, it.needs, it.dependencies(v))
}

func (r *run) setMade(it *item, v *value) {
	it.made, it.doubt = v, sure
	it.stands = it.substituted()
	it.uses = r.s.relate(it, it.uses, it.dependencies(v))
}

// relate changes the keys that an item depends on, and returns them.
func (s *Scheduler) relate(it *item, before, after []string) []string {
	for _, key := range after {
		if s.users[key] == nil {
			s.users[key] = map[*item]int{}
		}
		s.users[key][it]++
	}
	for _, key := range before {
		if s.users[key][it]--; s.users[key][it] == 0 {
			delete(s.users[key], it)
		}
		if len(s.users[key]) == 0 {
			delete(s.users, key)
		}
	}
	return after
}

// usersOf returns the items that need or use a key, in order.
func (s *Scheduler) usersOf(key string) []*item {
	all := make([]*item, 0, len(s.users[key]))
	for it := range s.users[key] {
		all = append(all, it)
	}
	slices.SortFunc(all, func(x, y *item) int { return cmp.Compare(x.key, y.key) })
	return all
}

// missing returns the keys that the wanted value depends on and that are not made, or are
// about to be removed.
func (s *Scheduler) missing(it *item) (keys []string) {
	for _, key := range it.needs {
		if d := s.items[key]; d == nil || !d.ready() || d.wanted == nil || d.doubt == broken || d.removing {
			keys = append(keys, key)
		}
	}
	return keys
}
