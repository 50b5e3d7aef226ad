// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Resyncs put the same messages as before, other ones, or in another order; some fail.
// The sink and the records have what a map would have.
func TestRepeatedResyncsAgreeWithAModel(t *testing.T) {
	for seed := range uint64(10) {
		loopWith(t, func(*Config) {}, nil, func(g Gomega, r *rig) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			var order []string
			model := values{}
			change := func() (key string, m proto.Message) {
				key, m = fmt.Sprint("k", rnd.IntN(30)), wrapperspb.UInt64(rnd.Uint64())
				if rnd.IntN(2) == 0 {
					m = nil
				}
				return key, m
			}
			r.a.resync = func(txn ResyncOperations) error {
				for _, k := range order {
					g.Expect(txn.Get(k)).To(BeNil(), "nothing before the resync counts")
					txn.Put(k, wrapperspb.Bool(false))
					txn.Put(k, model[k])
					g.Expect(txn.Get(k) == model[k]).To(BeTrue())
				}
				return nil
			}
			r.a.update["x"] = func(txn UpdateOperations) error {
				for range rnd.IntN(3) {
					k, m := change()
					txn.Put(k, m)
					maps.Copy(model, values{k: m})
				}
				return nil
			}
			for range 100 {
				switch rnd.IntN(4) {
				case 0:
					k, m := change() // without an event
					model[k] = m
				case 1:
					rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
				case 2: // a resync that fails changes nothing
					before := maps.Clone(model)
					r.b.resync = func(txn ResyncOperations) error {
						txn.Put(fmt.Sprint("k", rnd.IntN(40)), wrapperspb.Bool(true))
						return errors.New("no")
					}
					had := r.sink.dumped()
					r.sync()
					g.Expect(r.sink.dumped()).To(same(had))
					r.b.resync, model = nil, before
				}
				if rnd.IntN(3) == 0 && r.Status().Resynced {
					r.push(&event{name: "x"})
				}
				for k := range model {
					if !slices.Contains(order, k) {
						order = append(order, k)
					}
				}
				r.sync()
				want := maps.Clone(model)
				maps.DeleteFunc(want, func(_ string, m proto.Message) bool { return m == nil })
				g.Expect(r.sink.dumped()).To(same(want))
				g.Expect(r.wanted.messages()).To(same(want))
				g.Expect(r.wanted.byKey).To(HaveLen(len(want)))
				rs, _ := r.Events(0)
				var texts []string
				for _, k := range slices.Sorted(maps.Keys(want)) {
					texts = append(texts, "put "+k)
				}
				g.Expect(rs[len(rs)-1].Txn).To(HaveExactElements(texts))
			}
		})
	}
}

// What updates put and delete leaves nothing behind, although no resync follows.
func TestUpdatesLeaveNothingBehind(t *testing.T) {
	loopWith(t, func(*Config) {}, nil, func(g Gomega, r *rig) {
		r.sync()
		for i := range 500 {
			k := fmt.Sprint("k", i)
			r.a.update["put"] = func(txn UpdateOperations) error { txn.Put(k, wrapperspb.Bool(true)); return nil }
			r.a.update["delete"] = func(txn UpdateOperations) error { txn.Delete(k); return nil }
			r.push(&event{name: "put"})
			r.push(&event{name: "delete"})
		}
		g.Expect(len(r.wanted.added) + len(r.wanted.sorted) + len(r.wanted.byKey)).To(BeNumerically("<", 100))
		g.Expect(r.applied).To(BeEmpty())
		g.Expect(r.sink.updates).To(BeEmpty())
	})
}

func TestVerificationFindsChangedMessage(t *testing.T) {
	loopWith(t, verifying, nil, func(g Gomega, r *rig) {
		m := wrapperspb.UInt64(1)
		r.a.resync = func(txn ResyncOperations) error { txn.Put("k", m); return nil }
		r.sync()
		r.a.update["x"] = func(UpdateOperations) error { m.Value = 2; return nil } // which a handler must not do
		r.push(&event{name: "x"})
		found := r.verifications()
		g.Expect(found[len(found)-1].Verification).To(HaveExactElements(HavePrefix("changed k: from UInt64Value{value:")))
	})
}
