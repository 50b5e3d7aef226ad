// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cadastre/cadastre/internal/testkit/linear"
	. "github.com/onsi/gomega"
)

// Verbs of idOps.
const (
	claimID   Verb = "CLAIM"
	releaseID Verb = "RELEASE"
	readIDs   Verb = "READ"
)

// maxInstances limits the instances of one history of node IDs.
const maxInstances = 16

// owned is which ID each instance has, 0 for none.
type owned [maxInstances]uint32

// idOp is one request of a history of node IDs.
type idOp struct {
	Verb       Verb
	Instance   int  // CLAIM
	Name       int  // CLAIM and RELEASE
	Fate       Fate // Refused: nothing is changed
	None       bool // RELEASE that was refused because no node of this name has an ID
	ID         uint32
	All        owned // READ
	Call, Back int64
}

func (op idOp) String() string {
	s := fmt.Sprintf("%12d - %12d %s name %d instance %d: %s %d", op.Call, op.Back, op.Verb, op.Name, op.Instance, op.Fate, op.ID)
	if op.Verb == readIDs {
		s += fmt.Sprint(" ", op.All)
	}
	return s
}

// idHistory is a set of concurrent requests about node IDs.
type idHistory struct {
	names []int // of each instance

	mu    sync.Mutex
	began time.Time
	ops   []idOp
}

// newIDHistory is empty; names are those of the instances.
func newIDHistory(names ...int) *idHistory { return &idHistory{names: names, began: time.Now()} }

func (h *idHistory) now() int64 { return int64(time.Since(h.began)) }

// do records what f makes of op. What may still be done afterwards has no end.
func (h *idHistory) do(op idOp, f func(*idOp)) idOp {
	op.Name, op.Call = h.nameOf(op), h.now()
	f(&op)
	op.Back = h.now()
	if op.Fate == Lost {
		op.Back = forever
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	return op
}

func (h *idHistory) nameOf(op idOp) int {
	if op.Verb == claimID {
		return h.names[op.Instance]
	}
	return op.Name
}

// end is called when nothing can be done any more, with what is there then.
func (h *idHistory) end(all owned) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for i := range h.ops {
		h.ops[i].Back = min(h.ops[i].Back, now)
	}
	h.ops = append(h.ops, idOp{Verb: readIDs, All: all, Fate: Answered, Call: now + 1, Back: now + 2})
}

// check looks for an order of the requests that explains all answers, in at most
// limit steps.
func (h *idHistory) check(limit int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.SortStableFunc(h.ops, func(x, y idOp) int { return cmp.Compare(x.Call, y.Call) })
	var seen []uint32 // an ID that was never seen counts as none
	var history []porcupine.Operation
	for i, op := range h.ops {
		seen = append(append(seen, op.ID), op.All[:]...)
		history = append(history, porcupine.Operation{ClientId: i, Input: op, Output: op, Call: op.Call, Return: op.Back})
	}
	slices.Sort(seen)
	seen = slices.DeleteFunc(slices.Compact(seen), func(id uint32) bool { return id == 0 })
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{owned{}} },
		Step: func(state, input, _ any) (next []any) {
			for _, s := range input.(idOp).next(state.(owned), seen, h.names) {
				next = append(next, s)
			}
			return next
		},
	}
	switch linear.Check(m, history, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%d requests: %w, more than %d", len(h.ops), errNotChecked, limit)
	}
	err := errNoOrder
	for _, op := range h.ops {
		err = fmt.Errorf("%w\n\t%s", err, op)
	}
	return err
}

// next are the states that may follow s; none where op cannot have had its
// answer in s.
func (op idOp) next(s owned, seen []uint32, names []int) []owned {
	switch {
	case op.Verb == readIDs && op.Fate == Answered:
		if s == op.All {
			return []owned{s}
		}
		return nil
	case op.Fate == Refused && op.None:
		for i, id := range s {
			if id != 0 && names[i] == op.Name {
				return nil
			}
		}
		return []owned{s}
	case op.Fate == Refused, op.Verb == readIDs:
		return []owned{s}
	case op.Verb == claimID:
		return op.claimed(s, seen)
	}
	return op.released(s, names)
}

func (op idOp) claimed(s owned, seen []uint32) (next []owned) {
	give := func(id uint32) {
		if has := s[op.Instance]; has == id || has == 0 && !slices.Contains(s[:], id) {
			n := s
			n[op.Instance] = id
			next = append(next, n)
		}
	}
	if op.Fate == Answered {
		give(op.ID)
		return next
	}
	if s[op.Instance] == 0 {
		next = append(next, s)
	}
	for _, id := range seen {
		give(id)
	}
	return next
}

func (op idOp) released(s owned, names []int) (next []owned) {
	n, found := s, false
	for i, id := range s {
		if i < len(names) && names[i] == op.Name && id != 0 {
			found = found || id == op.ID
			n[i] = 0
		}
	}
	if op.Fate != Answered {
		return []owned{s, n}
	}
	if found {
		return []owned{n}
	}
	return nil
}

// The model is tried with histories that are right, and with lies.
func TestHistoriesOfNodeIDs(t *testing.T) {
	claim := func(call, back int64, instance int, id uint32) idOp {
		return idOp{Verb: claimID, Instance: instance, Fate: Answered, ID: id, Call: call, Back: back}
	}
	lost := func(call int64, instance int) idOp {
		return idOp{Verb: claimID, Instance: instance, Fate: Lost, Call: call, Back: 90}
	}
	release := func(call, back int64, name int, id uint32) idOp {
		return idOp{Verb: releaseID, Name: name, Fate: Answered, ID: id, Call: call, Back: back}
	}
	none := func(call, back int64, name int) idOp {
		return idOp{Verb: releaseID, Name: name, Fate: Refused, None: true, Call: call, Back: back}
	}
	reads := func(all ...uint32) idOp {
		op := idOp{Verb: readIDs, Fate: Answered, Call: 91, Back: 92}
		copy(op.All[:], all)
		return op
	}
	for name, c := range map[string]struct {
		ok  bool
		ops []idOp
	}{
		"one after the other":               {true, []idOp{claim(1, 2, 0, 1), claim(3, 4, 1, 2), reads(1, 2)}},
		"claimed again":                     {true, []idOp{claim(1, 2, 0, 1), claim(3, 4, 0, 1), reads(1)}},
		"one ID for two":                    {false, []idOp{claim(1, 2, 0, 1), claim(3, 4, 1, 1)}},
		"one ID for two at once":            {false, []idOp{claim(1, 4, 0, 1), claim(2, 3, 1, 1)}},
		"another ID for one who has one":    {false, []idOp{claim(1, 2, 0, 1), claim(3, 4, 0, 2)}},
		"after a release":                   {true, []idOp{claim(1, 2, 0, 1), release(3, 4, 0, 1), claim(5, 6, 1, 1), reads(0, 1)}},
		"while it is released":              {true, []idOp{claim(1, 2, 0, 1), release(3, 9, 0, 1), claim(4, 5, 1, 1), reads(0, 1)}},
		"before it is released":             {false, []idOp{claim(1, 2, 0, 1), claim(3, 4, 1, 1), release(5, 6, 0, 1)}},
		"a lost claim was done":             {true, []idOp{lost(1, 0), claim(3, 4, 1, 2), reads(1, 2)}},
		"it was not":                        {true, []idOp{lost(1, 0), claim(3, 4, 1, 1), reads(0, 1)}},
		"it is done late":                   {true, []idOp{lost(1, 0), claim(3, 4, 1, 1), release(5, 6, 1, 1), reads(1)}},
		"it is read back":                   {true, []idOp{lost(1, 0), claim(3, 4, 0, 3), reads(3)}},
		"it is forgotten":                   {false, []idOp{lost(1, 0), claim(3, 4, 0, 3), reads()}},
		"held by none":                      {false, []idOp{claim(1, 2, 0, 1), reads()}},
		"held by another":                   {false, []idOp{claim(1, 2, 0, 1), reads(0, 1)}},
		"two of one name":                   {true, []idOp{claim(1, 2, 1, 1), claim(3, 4, 2, 2), reads(0, 1, 2)}},
		"which are released together":       {true, []idOp{claim(1, 2, 1, 1), claim(3, 4, 2, 2), release(5, 6, 1, 2), reads()}},
		"or not at all":                     {false, []idOp{claim(1, 2, 1, 1), claim(3, 4, 2, 2), release(5, 6, 1, 2), reads(0, 1)}},
		"a release of an unheld ID":         {true, []idOp{none(1, 2, 0), claim(3, 4, 0, 1), reads(1)}},
		"a release that does not see it":    {false, []idOp{claim(1, 2, 0, 1), none(3, 4, 0)}},
		"a release of another ID":           {false, []idOp{claim(1, 2, 0, 1), release(3, 4, 0, 2)}},
		"a lost release was done":           {true, []idOp{claim(1, 2, 0, 1), {Verb: releaseID, Fate: Lost, Call: 3, Back: 90}, claim(5, 6, 1, 1), reads(0, 1)}},
		"an ID that was given away is back": {false, []idOp{claim(1, 2, 0, 1), release(3, 4, 0, 1), claim(5, 6, 1, 1), claim(7, 8, 0, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := newIDHistory(0, 1, 1)
			for _, op := range c.ops {
				if op.Verb == claimID {
					op.Name = h.names[op.Instance]
				}
				h.ops = append(h.ops, op)
			}
			err := h.check(searchLimit)
			g.Expect(err == nil).To(Equal(c.ok), "%v", err)
			g.Expect(errors.Is(err, errNotChecked)).To(BeFalse())
		})
	}
}
