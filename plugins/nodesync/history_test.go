// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/cadastre/cadastre/internal/testkit/linear"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// historyIDs bounds the IDs for the nodes of a history.
const historyIDs = 3

// register holds what the cluster agrees on: the holder of each ID, and the number of
// its changes.
type register [historyIDs]struct {
	holder     string
	generation uint64
}

// request is a claim, or a release by name, and its answer.
type request struct {
	name    string
	release bool
	pinned  uint32
	held    nodesync.Held
	err     error
}

func (r request) String() string {
	verb := fmt.Sprintf("claim of %s (pinned %d)", r.name, r.pinned)
	if r.release {
		verb = "release of " + r.name
	}
	return fmt.Sprintf("%s: %v, %v", verb, r.held, r.err)
}

// unknown reports whether the answer does not tell what was done.
func (r request) unknown() bool {
	return r.err != nil && !errors.Is(r.err, nodesync.ErrIDTaken) && !errors.Is(r.err, nodesync.ErrNoID) && !errors.Is(r.err, nodesync.ErrNoNode)
}

// done are the registers that s may become if the request is done, with the
// answer that it then has.
func (r request) done(s register) (next []register, answers []request) {
	own := -1
	for i, x := range s {
		if x.holder == r.name {
			own = i
		}
	}
	add := func(s register, id int, err error) {
		answer := request{err: err}
		if err == nil {
			answer.held = nodesync.Held{ID: uint32(id + 1), Generation: s[id].generation}
		}
		next, answers = append(next, s), append(answers, answer)
	}
	take := func(id int) {
		t := s
		if own >= 0 {
			t[own].holder = ""
		}
		t[id].holder = r.name
		t[id].generation++
		add(t, id, nil)
	}
	switch pin := int(r.pinned) - 1; {
	case r.release && own < 0:
		add(s, 0, nodesync.ErrNoNode)
	case r.release:
		t := s
		t[own].holder = ""
		add(t, own, nil)
	case pin >= 0 && own != pin && s[pin].holder != "":
		add(s, 0, nodesync.ErrIDTaken)
	case pin >= 0 && own != pin:
		take(pin)
	case own >= 0:
		add(s, own, nil)
	default:
		for id, x := range s {
			if x.holder == "" {
				take(id)
			}
		}
		if next == nil {
			add(s, 0, nodesync.ErrNoID)
		}
	}
	return next, answers
}

// registerModel is the model of a store with transactions, or without them (loose). Without
// them a node that moves has two IDs for a moment, and who comes then may be refused what
// is free a moment later. Nothing is done by a refusal.
func registerModel(loose bool) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, _ any) (next []any) {
			r, s := input.(request), state.(register)
			all, answers := r.done(s)
			if r.unknown() || loose && (errors.Is(r.err, nodesync.ErrIDTaken) || errors.Is(r.err, nodesync.ErrNoID)) {
				next = append(next, s)
			}
			for i, t := range all {
				same := errors.Is(r.err, answers[i].err) && r.held.ID == answers[i].held.ID
				if r.unknown() || same && (r.release || r.held == answers[i].held) {
					next = append(next, t)
				}
			}
			return next
		},
	}
}

// historyOf has nodes claim and others release, over links that are not good.
func historyOf(t *testing.T, seed uint64, kind func(kvdb.Store) kvdb.Store) (ops []porcupine.Operation) {
	synctest.Test(t, func(t *testing.T) {
		store := newPast()
		var mu sync.Mutex
		var late, clients sync.WaitGroup
		for client := range 6 {
			rnd := rand.New(rand.NewPCG(seed, uint64(client)))
			l := newLink(store, rnd.Uint64(), &late)
			l.timely = true
			if client < 2 {
				l.set(rough)
			}
			clients.Go(func() {
				time.Sleep(time.Duration(client)) // two releases of one moment are one release
				for range 8 {
					r := request{name: fmt.Sprint("n", client), release: client >= 4}
					if r.release {
						r.name = fmt.Sprint("n", rnd.IntN(4))
					} else if rnd.IntN(3) == 0 {
						r.pinned = 1 + rnd.Uint32N(historyIDs)
					}
					op := porcupine.Operation{ClientId: client, Call: time.Now().UnixNano(), Return: math.MaxInt64}
					r.do(t, kind(slowly{l}), fmt.Sprint(seed, client))
					if !r.unknown() {
						op.Return = time.Now().UnixNano()
					}
					op.Input, op.Output = r, r
					mu.Lock()
					ops = append(ops, op)
					mu.Unlock()
					time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
				}
			})
		}
		clients.Wait()
		late.Wait()
	})
	return ops
}

// do sends the request. No beat is fresh: that is another promise.
func (r *request) do(t *testing.T, slow kvdb.Store, session string) {
	if r.release {
		r.held.ID, r.err = nodesync.Release(t.Context(), slow, nodesync.Gone{Name: r.name, Fresh: -time.Hour}, time.Now())
		return
	}
	w := with(pinned(r.name, r.pinned), func(w *nodesync.Identity) { w.Limit, w.Fresh, w.Session = limit(historyIDs), -time.Hour, session })
	r.held, r.err = nodesync.Claim(t.Context(), slow, w, nodesync.Held{}, time.Now())
}

// Claims and releases of many, at the same time and over bad links, are as if
// one came after the other, and no ID is given to two.
func TestHistories(t *testing.T) {
	for name, kind := range stores() {
		t.Run(name, func(t *testing.T) {
			loose, seeds, steps, unanswered := name == "without transactions", uint64(200), int64(5e6), 0
			if loose {
				seeds, steps = 100, 5e5 // there is more that may have been
			}
			for seed := range seeds {
				ops := historyOf(t, seed, kind)
				if loose {
					ops = append(ops, repeated(ops)...)
				}
				switch linear.Check(registerModel(loose), ops, steps) {
				case porcupine.Ok:
					continue
				case porcupine.Unknown:
					if unanswered++; !loose || unanswered > 30 {
						t.Fatalf("seed %d: no answer in %d steps for %d requests", seed, steps, len(ops))
					}
					continue
				}
				t.Fatalf("seed %d: no order of these requests explains their answers:\n%s", seed, describe(ops))
			}
		})
	}
}

// repeated returns requests that may have been done once more. Without transactions a
// release or a move cannot know whether it was contested before or after it was done. So
// it is done again, even if another request came in between.
func repeated(ops []porcupine.Operation) (all []porcupine.Operation) {
	for _, op := range ops {
		if r := op.Input.(request); (r.release || r.pinned != 0) && r.err == nil {
			r.err = errors.New("done again, or not")
			op.Input, op.Output = r, r
			all = append(all, op)
		}
	}
	return all
}

// A history in which an answer is not true must be found.
func TestAFalseHistoryIsFound(t *testing.T) {
	found := 0
	for seed := range uint64(12) { // of which some take too many steps
		ops := historyOf(t, seed, func(s kvdb.Store) kvdb.Store { return s })
		rnd := rand.New(rand.NewPCG(seed, 99))
		for {
			i := rnd.IntN(len(ops))
			if r := ops[i].Input.(request); r.err == nil {
				r.held.ID = r.held.ID%historyIDs + 1
				ops[i].Input = r
				break
			}
		}
		if linear.Check(registerModel(false), ops, 1e6) == porcupine.Illegal {
			found++
		}
	}
	if found < 9 {
		t.Fatalf("it found %d of 12", found)
	}
}

func describe(ops []porcupine.Operation) string {
	var all []string
	for _, op := range ops {
		all = append(all, fmt.Sprintf("%20d - %20d %s", op.Call, op.Return, op.Input))
	}
	return strings.Join(all, "\n")
}
