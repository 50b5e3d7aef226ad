// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"encoding/binary"
	"iter"
	"math/bits"
)

// table finds the holding of an owner. To find one costs two reaches into
// memory: one for a slot, which has the number of the holding and a part of the
// owner's hash, and one for the holding itself. A Go map needs about twice as
// many, and with 65 536 owners little else takes time.
//
// Slots are probed one after the other; a removal moves later ones up, so that
// there are no gaps within a run.
type table struct {
	slots  []slot
	count  int
	chunks [][]holding // holding n is chunks[n/chunk][n%chunk]; they never move
	made   uint32      // holdings that there are, in use or not
	idle   []uint32    // those that are not
}

// slot is empty where number is 0.
type slot struct{ number, hash uint32 }

const chunk = 512

// hash mixes all bits: UIDs are random, but nothing depends on it.
func (id *ID) hash() uint32 {
	const k = 0x9E3779B97F4A7C15
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(id[:8])^k, binary.LittleEndian.Uint64(id[8:])|1)
	hi, lo = bits.Mul64(hi^lo, k)
	return uint32(hi ^ lo)
}

func (t *table) at(number uint32) *holding { return &t.chunks[number/chunk][number%chunk] }

// find is the holding of an owner, nil where it has none.
func (t *table) find(id ID) *holding {
	if len(t.slots) == 0 {
		return nil
	}
	hash, mask := id.hash(), uint32(len(t.slots)-1)
	for i := hash & mask; t.slots[i].number != 0; i = (i + 1) & mask {
		if t.slots[i].hash == hash {
			if h := t.at(t.slots[i].number); h.owner.ID == id {
				return h
			}
		}
	}
	return nil
}

// take is a holding that nobody has; put makes it known, or give takes it back.
func (t *table) take(o Owner) *holding {
	if n := len(t.idle); n > 0 {
		h := t.at(t.idle[n-1])
		t.idle = t.idle[:n-1]
		h.owner, h.blocks = o, h.room[:0]
		return h
	}
	if t.made++; t.made%chunk == 0 || len(t.chunks) == 0 {
		t.chunks = append(t.chunks, make([]holding, chunk)) // number 0 is never used
	}
	h := t.at(t.made)
	h.number, h.owner, h.blocks = t.made, o, h.room[:0]
	return h
}

func (t *table) give(h *holding) {
	*h = holding{number: h.number}
	t.idle = append(t.idle, h.number)
}

func (t *table) put(h *holding) {
	if t.count++; t.count*2 > len(t.slots) {
		t.grow()
	}
	t.insert(slot{h.number, h.owner.ID.hash()})
}

func (t *table) insert(s slot) {
	mask := uint32(len(t.slots) - 1)
	i := s.hash & mask
	for t.slots[i].number != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]slot, max(16, 2*len(old)))
	for _, s := range old {
		if s.number != 0 {
			t.insert(s)
		}
	}
}

// remove is the reverse of put, and gives h back.
func (t *table) remove(h *holding) {
	mask := uint32(len(t.slots) - 1)
	i := h.owner.ID.hash() & mask
	for t.slots[i].number != h.number {
		i = (i + 1) & mask
	}
	for next := (i + 1) & mask; t.slots[next].number != 0; next = (next + 1) & mask {
		// What lies at or behind its own place may fill the gap, if that is
		// not before this place.
		if home := t.slots[next].hash & mask; (next-home)&mask >= (next-i)&mask {
			t.slots[i] = t.slots[next]
			i = next
		}
	}
	t.slots[i] = slot{}
	t.count--
	t.give(h)
}

// all yields every holding that is known.
func (t *table) all() iter.Seq[*holding] {
	return func(yield func(*holding) bool) {
		for _, s := range t.slots {
			if s.number != 0 && !yield(t.at(s.number)) {
				return
			}
		}
	}
}
