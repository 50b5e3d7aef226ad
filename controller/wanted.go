// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// wish holds what handlers want under one key.
type wish struct {
	text    string        // "put KEY", for records
	message proto.Message // nil: nothing yet
	frozen  proto.Message // a copy of message as it was put, for verification
	at      int           // index in wanted.order; -1: in none
	gone    bool          // nothing is wanted any more

	next  proto.Message // that the resync of round has put
	round uint64
}

const putText = "put "

func (w *wish) key() string { return w.text[len(putText):] }

// wanted holds what handlers want. A resync usually puts the same messages as the one
// before it, in the same order. Therefore a resync in progress marks the wishes that exist
// already and changes them only at its end. The loop owns it.
type wanted struct {
	byKey  map[string]*wish
	order  []*wish // as the last resync has put them; some are gone
	sorted []*wish // by key; some are gone
	added  []*wish // that are not in sorted yet
	left   int     // number of wishes in sorted and added that are gone
	round  uint64  // number of resyncs
	verify bool    // freeze messages
}

func newWanted(verify bool) *wanted { return &wanted{byKey: map[string]*wish{}, verify: verify} }

// get returns the message of a key, nil if there is none.
func (v *wanted) get(key string) proto.Message {
	if w := v.byKey[key]; w != nil {
		return w.message
	}
	return nil
}

// wish returns the wish of a key, a new one if there is none.
func (v *wanted) wish(key string) *wish {
	w := v.byKey[key]
	if w == nil {
		w = &wish{text: putText + key, at: -1}
		v.byKey[w.key()] = w
		v.added = append(v.added, w)
	}
	return w
}

func (v *wanted) set(w *wish, m proto.Message) {
	if m == nil {
		delete(v.byKey, w.key())
		w.gone, w.message = true, nil
		if v.left++; v.left > len(v.byKey)+64 { // or they would stay until the next resync
			v.compact()
		}
		return
	}
	if v.verify && w.message != m {
		w.frozen = proto.Clone(m)
	}
	w.message = m
}

// adopt replaces everything by what the resync in progress has put.
func (v *wanted) adopt(puts []*wish) {
	kept := 0
	for i, w := range puts {
		if w.next != nil {
			kept++
		}
		w.at = i
		v.set(w, w.next)
		w.next = nil
	}
	if kept < len(v.byKey) {
		for _, w := range v.byKey {
			if w.round != v.round {
				v.set(w, nil)
			}
		}
	}
	v.order = puts
}

// inOrder returns the wishes in the order of their keys. Those without a message are of a
// resync that is in progress or has failed.
func (v *wanted) inOrder() []*wish {
	v.compact()
	if len(v.added) == 0 {
		return v.sorted
	}
	byKey := func(x, y *wish) int { return strings.Compare(x.text, y.text) }
	slices.SortFunc(v.added, byKey)
	merged := make([]*wish, 0, len(v.sorted)+len(v.added))
	sorted := v.sorted
	for _, w := range v.added {
		i, _ := slices.BinarySearchFunc(sorted, w, byKey)
		merged = append(append(merged, sorted[:i]...), w)
		sorted = sorted[i:]
	}
	v.sorted, v.added = append(merged, sorted...), nil
	return v.sorted
}

// compact forgets the wishes that are gone.
func (v *wanted) compact() {
	if v.left == 0 {
		return
	}
	gone := func(w *wish) bool { return w.gone }
	v.sorted, v.added, v.left = slices.DeleteFunc(v.sorted, gone), slices.DeleteFunc(v.added, gone), 0
}

// messages returns the messages by key, as they were when they were put.
func (v *wanted) messages() map[string]proto.Message {
	all := map[string]proto.Message{}
	for k, w := range v.byKey {
		switch {
		case w.message != nil && v.verify:
			all[k] = w.frozen
		case w.message != nil:
			all[k] = w.message
		}
	}
	return all
}
