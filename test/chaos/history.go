// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cadastre/cadastre/internal/testkit/linear"
)

// Op is one request of a history. A GC is one Op for every attachment that it
// does not list.
type Op struct {
	Client     int
	Key        Key
	Verb       Verb
	Fate       Fate
	Addr       string // ADD: what was told; CHECK: what the caller believes, "" if it does not say
	Differs    bool   // CHECK: refused because another address is held
	Call, Back int64  // when its client began to connect, and when it was over, in ns
	Connected  int64  // when it was connected; 0: not known
}

// before reports whether the connection of op was made, and so accepted, before a client
// began to connect at this time.
func (op Op) before(call int64) bool { return op.Connected > 0 && op.Connected < call }

// read is the verb of what is seen when nothing is under way any more.
const read Verb = "READ"

// release is the verb of the agent's own taking back of an abandoned ADD.
const release Verb = "RELEASE"

// forever is after all histories.
const forever = math.MaxInt64

// unanswered is an address that is held without an answer to its client.
const unanswered = "?"

// attachment is the state of one attachment. Requests take effect in the order in which
// their connections were accepted. A DEL frees nothing of a later ADD that is answered, and
// an ADD takes nothing after a later DEL.
type attachment struct {
	addr    string // "": nothing is held; unanswered, or an address
	added   int64  // Call of the newest ADD that is answered
	deleted int64  // Call of the newest DEL that took effect
}

// history is a set of concurrent requests. Any goroutine may record.
type history struct {
	mu    sync.Mutex
	began time.Time
	ops   []Op
}

// newHistory is empty.
func newHistory() *history { return &history{began: time.Now()} }

// Now is the time in a history.
func (h *history) Now() int64 { return int64(time.Since(h.began)) }

// record adds an op that is over.
func (h *history) record(op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// ended is called when the abandoned requests are over too, with the leases of that moment.
// It returns the history with an end to the ops that are not over, and with reads of the
// leases: a lease without an answer does not stay.
func (h *history) ended(held map[Key]string) *history {
	h = &history{began: h.began, ops: h.Ops()}
	now := h.Now()
	seen := map[Key]bool{}
	var more []Op
	for i, op := range h.ops {
		h.ops[i].Back = min(op.Back, now)
		seen[op.Key] = true
		if op.Verb == Add && (op.Fate == Abandoned || op.Fate == Lost) {
			more = append(more, Op{Client: op.Client, Key: op.Key, Verb: release, Call: op.Call, Back: now})
		}
	}
	for k := range held {
		seen[k] = true
	}
	for k := range seen {
		more = append(
			more,
			Op{Client: 0, Key: k, Verb: read, Fate: Answered, Addr: held[k], Call: now + 1, Back: now + 2},
		)
	}
	h.ops = append(h.ops, more...)
	return h
}

// Ops are all ops so far, in the order of their calls.
func (h *history) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := slices.Clone(h.ops)
	slices.SortStableFunc(ops, func(x, y Op) int { return cmp.Compare(x.Call, y.Call) })
	return ops
}

// errNoOrder is returned for a history that no order of its ops explains.
var errNoOrder = errors.New("no order of these requests explains their answers")

// errNotChecked is returned if the search for an order took too many steps.
var errNotChecked = errors.New("the search for an order took too many steps")

// checkKeys looks at the ops of each key by themselves, for each in at most limit
// steps.
func (h *history) checkKeys(limit int64) error {
	byKey := map[Key][]Op{}
	for _, op := range h.Ops() {
		byKey[op.Key] = append(byKey[op.Key], op)
	}
	var errs []error
	for k, ops := range byKey {
		if err := search(keyModel(), ops, limit); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", k, err))
		}
	}
	return errors.Join(errs...)
}

// checkWhole looks at all keys at once: no address is held by two. It knows
// up to eight keys, and no abandoned ADD.
func (h *history) checkWhole(limit int64) error {
	ops := h.Ops()
	index := map[Key]int{}
	for _, op := range ops {
		if _, known := index[op.Key]; !known {
			index[op.Key] = len(index)
		}
	}
	if len(index) > len(whole{}) {
		return fmt.Errorf("%d keys, at most %d can be checked", len(index), len(whole{}))
	}
	return search(wholeModel(index), ops, limit)
}

func search(model porcupine.NondeterministicModel, ops []Op, limit int64) error {
	var history []porcupine.Operation
	for _, op := range ops {
		history = append(
			history,
			porcupine.Operation{ClientId: op.Client, Input: op, Output: op, Call: op.Call, Return: op.Back},
		)
	}
	switch linear.Check(model, history, limit) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%d requests: %w, more than %d", len(ops), errNotChecked, limit)
	}
	err := errNoOrder
	for _, op := range ops {
		err = fmt.Errorf("%w\n\t%s", err, op)
	}
	return err
}

// String is one line.
func (op Op) String() string {
	s := fmt.Sprintf(
		"%12d - %12d client %d: %s %s %s %s",
		op.Call,
		op.Back,
		op.Client,
		op.Verb,
		op.Key,
		op.Fate,
		op.Addr,
	)
	if op.Differs {
		s += " (another)"
	}
	return s
}

// keyModel is one attachment.
func keyModel() porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init: func() []any { return []any{attachment{}} },
		Step: func(state, input, _ any) []any {
			var next []any
			for _, s := range input.(Op).next(state.(attachment)) {
				next = append(next, s)
			}
			return next
		},
	}
}

// next are the states that may follow s; none where op cannot have had its
// answer in s.
func (op Op) next(s attachment) []attachment {
	switch op.Verb {
	case Add:
		return op.nextOfAdd(s)
	case Del:
		return op.freed(s)
	case GC:
		return []attachment{s} // what it does not list waits for the witnesses
	case Check:
		var all []attachment
		for _, addr := range op.nextOfCheck(s.addr) {
			all = append(all, attachment{addr, s.added, s.deleted})
		}
		return all
	case release:
		if s.addr == unanswered {
			return []attachment{s, {"", s.added, s.deleted}}
		}
		return []attachment{s}
	case read:
		if s.addr == op.Addr {
			return []attachment{s}
		}
	}
	return nil
}

func (op Op) nextOfAdd(s attachment) []attachment {
	overtaken := op.before(s.deleted)
	switch {
	case op.Fate == Answered && !overtaken && (s.addr == "" || s.addr == unanswered || s.addr == op.Addr):
		return []attachment{{op.Addr, max(s.added, op.Call), s.deleted}}
	case op.Fate == Answered:
		return nil
	case s.addr == "" && (op.Fate == Abandoned || op.Fate == Lost) && !overtaken:
		return []attachment{s, {unanswered, s.added, s.deleted}}
	}
	return []attachment{s}
}

func (op Op) freed(s attachment) []attachment {
	freed := attachment{"", s.added, max(s.deleted, op.Call)}
	switch {
	case op.Fate == Refused || op.Fate == NotSent || op.before(s.added):
		return []attachment{s}
	case op.Fate == Answered:
		return []attachment{freed}
	}
	return []attachment{freed, s}
}

func (op Op) nextOfCheck(s string) []string {
	var ok bool
	switch {
	case op.Fate == Answered && op.Addr == "":
		ok = s != ""
	case op.Fate == Answered && s == unanswered:
		return []string{op.Addr}
	case op.Fate == Answered:
		ok = s == op.Addr
	case op.Fate == Refused && op.Differs:
		ok = s != "" && s != op.Addr
	case op.Fate == Refused:
		ok = s == ""
	default:
		ok = true
	}
	if ok {
		return []string{s}
	}
	return nil
}

// whole holds eight attachments.
type whole [8]attachment

// wholeModel is all attachments: each as in keyModel, and no address twice.
func wholeModel(index map[Key]int) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init: func() []any { return []any{whole{}} },
		Step: func(state, input, _ any) []any {
			w, op := state.(whole), input.(Op)
			i := index[op.Key]
			var next []any
			for _, s := range op.next(w[i]) {
				n := w
				holder := slices.IndexFunc(w[:], func(x attachment) bool { return x.addr == s.addr })
				if s.addr != "" && s.addr != w[i].addr && holder >= 0 {
					continue
				}
				n[i] = s
				next = append(next, n)
			}
			return next
		},
	}
}

// checkAddresses looks at the times at which an address was held for certain:
// from the answer of an ADD to the next request that may have freed it. Those
// of different keys must not overlap.
func (h *history) checkAddresses() error {
	type span struct {
		key      Key
		from, to int64
	}
	ops := h.Ops()
	byAddr := map[string][]span{}
	for _, add := range ops {
		if add.Verb != Add || add.Fate != Answered {
			continue
		}
		s := span{add.Key, add.Back, forever}
		for _, op := range ops {
			if op.Verb == Del && op.Key == add.Key && op.Back >= add.Call && op.Fate != NotSent && op.Fate != Refused {
				s.to = min(s.to, op.Call)
			}
		}
		if s.from < s.to {
			byAddr[add.Addr] = append(byAddr[add.Addr], s)
		}
	}
	var errs []error
	for a, spans := range byAddr {
		for i, x := range spans {
			for _, y := range spans[:i] {
				if x.key != y.key && x.from < y.to && y.from < x.to {
					errs = append(
						errs,
						fmt.Errorf(
							"%s is held by %s (%d - %d) and by %s (%d - %d)",
							a,
							x.key,
							x.from,
							x.to,
							y.key,
							y.from,
							y.to,
						),
					)
				}
			}
		}
	}
	return errors.Join(errs...)
}
