// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type values = map[string]proto.Message

// file is a message with a scalar and a list.
func file(name string, list ...string) *descriptorpb.FileDescriptorProto {
	m := &descriptorpb.FileDescriptorProto{Dependency: list}
	if name != "" {
		m.Name = &name
	}
	return m
}

// wire is a sink that keeps the transactions and can fail single values.
type wire struct {
	MemorySink
	txns []Transaction
	fail func(Transaction) error
}

func (w *wire) Commit(ctx context.Context, txn Transaction) error {
	w.txns = append(w.txns, txn)
	var err error
	if w.fail != nil {
		err = w.fail(txn)
	}
	applied := txn
	if err != nil {
		failed := valueErrors(err)
		if len(failed) == 0 {
			return err
		}
		applied.Values = nil
		for _, v := range txn.Values {
			if failed[v.Key] == nil {
				applied.Values = append(applied.Values, v)
			}
		}
	}
	if serr := w.MemorySink.Commit(ctx, applied); serr != nil {
		return serr
	}
	return err
}

// sent are the values of the last transaction.
func (w *wire) sent() values {
	vs := values{}
	for _, v := range w.txns[len(w.txns)-1].Values {
		vs[v.Key] = v.Message
	}
	return vs
}

func same(want values) OmegaMatcher {
	return WithTransform(func(got values) string { return fmt.Sprint(compare(want, got)) }, Equal("[]"))
}

// outsideLoop is a loop in sync with a wire, in which handler a puts internal at each resync.
func outsideLoop(t *testing.T, internal values, change func(*Config), f func(g Gomega, r *rig, w *wire)) {
	t.Helper()
	w := &wire{}
	loopWith(t, change, func(d *Deps) { d.Sink = w }, func(g Gomega, r *rig) {
		r.a.resync = func(txn ResyncOperations) error {
			for k, m := range internal {
				txn.Put(k, m)
			}
			return nil
		}
		r.sync()
		f(g, r, w)
	})
}

func (w *wire) has(g Gomega, want values) {
	dump, err := w.Dump(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	g.ExpectWithOffset(1, dump).To(same(want))
}

func TestNamesAndMethodsOfExternalEvents(t *testing.T) {
	g := NewWithT(t)
	var done []error
	change := &ExternalConfigChange{Source: "grpc", Values: values{"b": nil, "a": file("x")}, OnDone: func(err error) { done = append(done, err) }}
	g.Expect(change.GetName()).To(Equal("External Config Change"))
	g.Expect(change.String()).To(Equal("External Config Change\n* source: grpc\n* put a\n* delete b"))
	g.Expect(change.Method()).To(Equal(Update))
	g.Expect(change.TransactionType()).To(Equal(BestEffort))
	g.Expect(change.Direction()).To(Equal(Forward))
	g.Expect(change.IsBlocking()).To(BeFalse())
	change.Blocking = true
	g.Expect(change.IsBlocking()).To(BeTrue())
	resync := &ExternalConfigResync{Source: "grpc", ExternalConfig: change.Values, Blocking: true, OnDone: change.OnDone}
	g.Expect(resync.GetName()).To(Equal("External Config Resync"))
	g.Expect(resync.String()).To(Equal("External Config Resync\n* source: grpc\n* values: 2"))
	g.Expect(resync.Method()).To(Equal(UpstreamResync))
	g.Expect(resync.IsBlocking()).To(BeTrue())
	change.Done(nil)
	resync.Done(ErrExpired)
	g.Expect(done).To(Equal([]error{nil, ErrExpired}))
	(&ExternalConfigChange{}).Done(nil)
	(&ExternalConfigResync{}).Done(nil)
	g.Expect((&DBResync{ExternalConfig: values{"a": file("x")}}).String()).To(ContainSubstring("external config: 1"))
}

func TestExternalValuesAreMergedInTheOrderOfTheirSources(t *testing.T) {
	outsideLoop(t, values{"k": file("internal", "i")}, nil, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "z", Values: values{"k": file("", "z")}})
		w.has(g, values{"k": file("internal", "i", "z")})
		r.push(&ExternalConfigChange{Source: "a", Values: values{"k": file("a", "a"), "only": file("only")}})
		w.has(g, values{"k": file("a", "i", "a", "z"), "only": file("only")})
		r.push(&DBResync{ExternalConfig: values{"k": file("db", "db")}})
		w.has(g, values{"k": file("db", "i", "a", "db", "z"), "only": file("only")}) // the other sources survive it

		r.push(&ExternalConfigChange{Source: "a", Values: values{"k": nil, "only": nil, "unknown": nil}})
		g.Expect(w.sent()).To(same(values{"k": file("db", "i", "db", "z"), "only": nil}))
		w.has(g, values{"k": file("db", "i", "db", "z")})
		r.push(&ExternalConfigResync{Source: "z", ExternalConfig: values{"other": file("z"), "nil": nil, "typed": (*wrapperspb.BoolValue)(nil)}})
		w.has(g, values{"k": file("db", "i", "db"), "other": file("z")})
		r.push(&DBResync{})
		w.has(g, values{"k": file("internal", "i"), "other": file("z")}) // back to the internal value
		g.Expect(r.external.names).To(Equal([]string{"z"}))
		r.push(&ExternalConfigResync{Source: "z"})
		g.Expect(r.external).To(Equal(sources{names: []string{}, values: map[string]map[string]proto.Message{}}), "nothing is left of a source without values")
	})
}

func TestHandlersNeverSeeExternalValues(t *testing.T) {
	internal := file("internal", "i")
	outsideLoop(t, values{"k": internal}, func(c *Config) { c.EnablePeriodicHealing = true }, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": file("x", "x"), "only": file("x")}})
		asked := 0
		r.b.update["look"] = func(txn UpdateOperations) error {
			asked++
			g.Expect(txn.Get("k")).To(BeIdenticalTo(internal))
			g.Expect(txn.Get("only")).To(BeNil())
			return nil
		}
		commits := len(w.txns)
		r.push(&event{name: "look"})
		g.Expect(asked).To(Equal(1))
		g.Expect(w.txns).To(HaveLen(commits), "nothing changes, nothing is sent")

		w.MemorySink.Commit(context.Background(), Transaction{Method: FullResync}) // it is wiped
		r.wait(31 * time.Second)
		w.has(g, values{"k": file("x", "i", "x"), "only": file("x")}) // by the periodic healing
		g.Expect(w.txns[len(w.txns)-1].Method).To(Equal(DownstreamResync))
		r.push(&event{name: "look"})
		g.Expect(asked).To(Equal(2))
		g.Expect(proto.Equal(internal, file("internal", "i"))).To(BeTrue(), "not a bit of it")
	})
}

func TestAnUpdateSendsOnlyWhatWasPutOrComesOutOtherwise(t *testing.T) {
	outsideLoop(t, values{"k": file("k"), "same": file("same"), "gone": file("gone")}, nil, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigResync{Source: "x", ExternalConfig: values{"same": file("same"), "gone": file("gone"), "only": file("only")}})
		r.a.update["x"] = func(txn UpdateOperations) error {
			txn.Put("k", file("k"))   // as it is, but put
			txn.Delete("gone")        // the same value comes from outside
			txn.Delete("never there") // nor is it now
			return nil
		}
		r.push(&event{name: "x"})
		g.Expect(w.sent()).To(same(values{"k": file("k")}))
		g.Expect(r.wanted.messages()).To(same(values{"k": file("k"), "same": file("same")}), "the internal state has changed all the same")
		r.push(&ExternalConfigChange{Source: "x", Values: values{"gone": nil, "same": nil, "only": file("only")}})
		g.Expect(w.sent()).To(same(values{"gone": nil}), "what comes out as before is not sent")
		commits := len(w.txns)
		r.push(&ExternalConfigChange{Source: "y", Values: values{"only": file(""), "none": nil}})
		g.Expect(w.txns).To(HaveLen(commits))
	})
}

func TestTheInternalStateChangesAlsoWhereNothingIsSent(t *testing.T) {
	outsideLoop(t, values{"k": file("k")}, nil, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": file("k")}})
		commits := len(w.txns)
		r.a.update["delete"] = func(txn UpdateOperations) error { txn.Delete("k"); return nil }
		r.push(&event{name: "delete"})
		g.Expect(w.txns).To(HaveLen(commits))
		r.a.update["look"] = func(txn UpdateOperations) error { g.Expect(txn.Get("k")).To(BeNil()); return nil }
		r.push(&event{name: "look"})
		w.has(g, values{"k": file("k")})
	})
}

func TestWhatTheSinkHasRevertedIsNotRemembered(t *testing.T) {
	outsideLoop(t, values{"k": file("k")}, nil, func(g Gomega, r *rig, w *wire) {
		r.a.update["x"] = func(txn UpdateOperations) error { txn.Put("k", file("new")); txn.Put("l", file("l")); return nil }
		w.fail = func(Transaction) error { return errors.New("no line") }
		r.push(&event{name: "x", txn: RevertOnFailure})
		w.fail = nil
		r.a.update["look"] = func(txn UpdateOperations) error {
			g.Expect(txn.Get("k")).To(Equal(file("k")))
			g.Expect(txn.Get("l")).To(BeNil())
			return nil
		}
		x := &event{name: "look"}
		r.push(x)
		g.Expect(x.done()).To(Equal([]error{nil}))
		commits := len(w.txns)
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": file("k"), "l": nil}})
		g.Expect(w.txns).To(HaveLen(commits), "the sink has what it had before")
	})
}

func TestWhatAFailedResyncShouldHaveRemovedIsOpen(t *testing.T) {
	outsideLoop(t, nil, nil, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "x", Values: values{"x": file("x")}})
		w.fail = func(Transaction) error { return errors.New("no line") }
		r.push(&ExternalConfigResync{Source: "x"})
		w.fail = nil
		r.push(&ExternalConfigChange{Source: "x", Values: values{"x": nil}})
		g.Expect(w.sent()).To(same(values{"x": nil}))
		w.has(g, values{})
	})
}

func TestGetInAResyncIsWhatWasPutInIt(t *testing.T) {
	outsideLoop(t, nil, nil, func(g Gomega, r *rig, w *wire) {
		asked := false
		r.a.resync = func(txn ResyncOperations) error { txn.Put("k", file("k")); return nil }
		r.b.resync = func(txn ResyncOperations) error {
			asked = true
			g.Expect(txn.Get("k")).To(Equal(file("k")))
			g.Expect(txn.Get("old")).To(BeNil())
			return nil
		}
		r.a.update["old"] = put("old")
		r.push(&event{name: "old"})
		r.push(&DBResync{})
		g.Expect(asked).To(BeTrue())
	})
}

func TestAnExternalChangeBeforeTheFirstResyncWaits(t *testing.T) {
	w := &wire{}
	loopWith(t, nil, func(d *Deps) { d.Sink = w }, func(g Gomega, r *rig) {
		r.push(&ExternalConfigChange{Source: "never seen", Values: values{"k": file("x")}})
		r.push(&ExternalConfigResync{Source: "nor this one", ExternalConfig: values{"l": file("y")}})
		g.Expect(w.txns).To(BeEmpty())
		r.push(&DBResync{ExternalConfig: values{"m": file("z")}})
		w.has(g, values{"k": file("x"), "l": file("y"), "m": file("z")})
	})
}

func TestAnExternalValueOfAnotherTypeIsRefused(t *testing.T) {
	var text bytes.Buffer
	w := &wire{}
	loopWith(t, nil, func(d *Deps) { d.Sink, d.Log = w, slog.New(slog.NewTextHandler(&text, nil)) }, func(g Gomega, r *rig) {
		r.a.resync = func(txn ResyncOperations) error { txn.Put("k", file("internal")); return nil }
		r.sync()
		var got error
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": wrapperspb.Bool(true), "l": file("l")}, OnDone: func(err error) { got = err }})
		w.has(g, values{"k": file("internal"), "l": file("l")})
		var byKey ValueErrors
		g.Expect(errors.As(got, &byKey)).To(BeTrue())
		g.Expect(byKey).To(And(HaveLen(1), HaveKey("k")))
		g.Expect(got).To(MatchError(errMessageType))
		g.Expect(got).To(MatchError(`External Config Change: k: value of source "x" is refused: message of another type: google.protobuf.BoolValue where google.protobuf.FileDescriptorProto is wanted`))
		rs, _ := r.Events(1)
		g.Expect(rs[0].Refused).To(ConsistOf(HavePrefix(`k: value of source "x" is refused`)))
		g.Expect(rs[0].External).To(Equal([]string{"x: put k", "x: put l"}))
		g.Expect(text.String()).To(ContainSubstring("a value from outside is refused"))
		g.Expect(r.Status().Healthy).To(BeTrue(), "a healing would change nothing")

		r.push(&ExternalConfigChange{Source: "y", Values: values{"k": file("", "y")}, OnDone: func(err error) { got = err }})
		g.Expect(got).NotTo(HaveOccurred(), "it is not y that is refused")
		w.has(g, values{"k": file("internal", "y"), "l": file("l")})
		rs, _ = r.Events(2)
		g.Expect(rs[0].Refused).To(HaveLen(1), "but x is still")
		r.push(&DBResync{OnDone: func(err error) { got = err }})
		g.Expect(got).NotTo(HaveOccurred(), "nor is it the database's fault")
		r.push(&ExternalConfigResync{Source: "z", ExternalConfig: values{"k": file("", "z")}, OnDone: func(err error) { got = err }})
		g.Expect(got).NotTo(HaveOccurred(), "or another source's")
		r.push(&ExternalConfigResync{Source: "z"})

		r.a.resync = nil
		r.push(&ExternalConfigResync{Source: "y", ExternalConfig: values{"k": file("y")}, OnDone: func(err error) { got = err }})
		g.Expect(got).To(MatchError(errMessageType), "among sources the first by name has the say")
		w.has(g, values{"k": wrapperspb.Bool(true), "l": file("l")})
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": nil}})
		w.has(g, values{"k": file("y"), "l": file("l")})
	})
}

// broken is a message that cannot be looked at.
type broken struct{}

func (broken) ProtoReflect() protoreflect.Message { panic("no such thing") }

func TestWhatPanicsInAMergeIsRefusedOrLeftOut(t *testing.T) {
	outsideLoop(t, values{"k": (*descriptorpb.FileDescriptorProto)(nil)}, nil, func(g Gomega, r *rig, w *wire) {
		var got error
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": file("x"), "l": broken{}}, OnDone: func(err error) { got = err }})
		g.Expect(got).To(MatchError(ContainSubstring("panic")), "an internal value that is nil of a type cannot be merged with")
		g.Expect(w.MemorySink.dumped()).To(And(HaveLen(1), HaveKey("k")))
		r.push(&event{name: "x"})
		g.Expect(r.last()).To(Equal("c x"), "the loop goes on")
	})
}

func failKeys(keys ...string) func(Transaction) error {
	return func(txn Transaction) error {
		failed := ValueErrors{}
		for _, k := range keys {
			failed[k] = errors.New("southbound says no")
		}
		return fmt.Errorf("wrapped: %w", failed)
	}
}

func TestNoHealingWhereOnlyExternalValuesFail(t *testing.T) {
	for _, x := range []struct {
		name  string
		fail  func(Transaction) error
		event func(done func(error)) Event
		heals bool
	}{
		{"external value", failKeys("x"), func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": file("new")}, OnDone: done}
		}, false},
		{"two of them", failKeys("x", "y"), func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": file("new"), "y": file("new")}, OnDone: done}
		}, false},
		{"its removal", failKeys("x"), func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": nil}, OnDone: done}
		}, false},
		{"a resync of the source", failKeys("x"), func(done func(error)) Event {
			return &ExternalConfigResync{Source: "x", ExternalConfig: values{}, OnDone: done}
		}, false},
		{"a resync of all", failKeys("x"), func(done func(error)) Event { return &DBResync{OnDone: done} }, false},
		{"a merged value", failKeys("k"), func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"k": file("new")}, OnDone: done}
		}, true},
		{"one of both kinds", failKeys("k", "x"), func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"k": file("new"), "x": file("new")}, OnDone: done}
		}, true},
		{"an unknown key", failKeys("?"), func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": file("new")}, OnDone: done}
		}, true},
		{"no single value", func(Transaction) error { return errors.New("no line") }, func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": file("new")}, OnDone: done}
		}, true},
		{"no failed key at all", func(Transaction) error { return ValueErrors{"x": nil} }, func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": file("new")}, OnDone: done}
		}, true},
		{"something joined with it", func(txn Transaction) error { return errors.Join(failKeys("x")(txn), errors.New("no line")) }, func(done func(error)) Event {
			return &ExternalConfigChange{Source: "x", Values: values{"x": file("new")}, OnDone: done}
		}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			outsideLoop(t, values{"k": file("k")}, nil, func(g Gomega, r *rig, w *wire) {
				r.push(&ExternalConfigChange{Source: "x", Values: values{"x": file("old")}})
				w.fail = x.fail
				var got error
				r.push(x.event(func(err error) { got = err }))
				g.Expect(got).To(HaveOccurred(), "its producer gets the error")
				w.fail = nil
				r.log.clear()
				g.Expect(r.Status().Healthy).To(Equal(!x.heals))
				r.wait(time.Hour)
				if x.heals {
					g.Expect(r.log.get()).To(HaveLen(3))
				} else {
					g.Expect(r.log.get()).To(BeEmpty())
				}
			})
		})
	}
}

func TestARemovalThatHandlersWantedIsHealedUntilItSucceeds(t *testing.T) {
	outsideLoop(t, nil, nil, func(g Gomega, r *rig, w *wire) {
		r.a.update["put"], r.a.update["delete"] = put("k"), func(txn UpdateOperations) error { txn.Delete("k"); return nil }
		r.push(&event{name: "put"})
		w.fail = failKeys("k")
		r.push(&event{name: "delete"})
		g.Expect(r.Status().Healthy).To(BeFalse())
		r.wait(6 * time.Second) // one healing, which fails the same way
		g.Expect(r.Status().Healthy).To(BeFalse(), "no handler wants it any more, but one did when it was sent")
		w.fail = nil
		r.wait(time.Minute)
		g.Expect(r.Status().Healthy).To(BeTrue())
	})
}

func TestAValueBecomesOneOfHandlersAndOneFromOutside(t *testing.T) {
	outsideLoop(t, nil, nil, func(g Gomega, r *rig, w *wire) {
		r.a.update["put"], r.a.update["delete"] = put("k"), func(txn UpdateOperations) error { txn.Delete("k"); return nil }
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": wrapperspb.String("x")}})
		w.fail = failKeys("k")
		r.push(&event{name: "put"})
		g.Expect(r.Status().Healthy).To(BeFalse(), "a handler wants it")
		w.fail = nil
		r.wait(time.Minute)
		g.Expect(r.Status().Healthy).To(BeTrue())
		r.push(&event{name: "put"})
		r.push(&event{name: "delete"})
		w.fail = failKeys("k")
		r.push(&ExternalConfigChange{Source: "x", Values: values{"k": wrapperspb.String("y")}})
		g.Expect(r.Status().Healthy).To(BeTrue(), "no handler wants it any more")
	})
}

func TestARemovalFromOutsideThatKeepsFailingIsNeverHealed(t *testing.T) {
	outsideLoop(t, nil, nil, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "x", Values: values{"x": file("x")}})
		w.fail = failKeys("x")
		r.push(&ExternalConfigChange{Source: "x", Values: values{"x": nil}})
		for range 3 {
			r.push(&DBResync{})
			g.Expect(r.Status().Healthy).To(BeTrue())
		}
		w.fail = nil
		r.push(&DBResync{})
		w.has(g, values{})
	})
}

func TestWhatFailedIsSentAgainWhenItIsTouched(t *testing.T) {
	outsideLoop(t, nil, nil, func(g Gomega, r *rig, w *wire) {
		w.fail = failKeys("x")
		r.push(&ExternalConfigChange{Source: "s", Values: values{"x": file("x"), "y": file("y")}})
		w.has(g, values{"y": file("y")})
		w.fail = nil
		r.push(&ExternalConfigChange{Source: "s", Values: values{"x": file("x"), "y": file("y")}})
		g.Expect(w.sent()).To(same(values{"x": file("x")}), "y is there")
		w.fail = func(Transaction) error { return errors.New("no line") }
		r.push(&ExternalConfigChange{Source: "s", Values: values{"x": nil, "y": nil}})
		w.fail = nil
		r.push(&ExternalConfigChange{Source: "s", Values: values{"x": nil, "y": nil, "z": nil}})
		g.Expect(w.sent()).To(same(values{"x": nil, "y": nil}))
		w.has(g, values{})
	})
}

func TestAHealingOfWhichOnlyExternalValuesFailHasHealed(t *testing.T) {
	outsideLoop(t, values{"k": file("k")}, func(c *Config) { c.MaxHealingAttempts = 1 }, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "x", Values: values{"x": file("x")}})
		r.b.update["fails"] = failing(errors.New("no"))
		r.push(&event{name: "fails"})
		w.fail = failKeys("x")
		r.wait(time.Minute)
		g.Expect(r.Status().Healthy).To(BeTrue())
		g.Expect(r.Status().Fatal).To(BeEmpty())
	})
}

func TestTheFirstResyncStandsWhereOnlyExternalValuesFail(t *testing.T) {
	w := &wire{fail: failKeys("x")}
	loopWith(t, nil, func(d *Deps) { d.Sink = w }, func(g Gomega, r *rig) {
		x := &event{name: "x"}
		r.push(x)
		var got error
		r.push(&DBResync{ExternalConfig: values{"x": file("x")}, OnDone: func(err error) { got = err }})
		g.Expect(got).To(MatchError(ContainSubstring("southbound says no")))
		g.Expect(x.done()).To(Equal([]error{nil}), "a bad value from outside does not keep the agent from its work")
	})
}

func TestAPeriodicHealingOfWhichOnlyExternalValuesFailAsksForNoOther(t *testing.T) {
	outsideLoop(t, nil, func(c *Config) { c.EnablePeriodicHealing = true }, func(g Gomega, r *rig, w *wire) {
		r.push(&ExternalConfigChange{Source: "x", Values: values{"x": file("x")}})
		w.fail = failKeys("x")
		r.wait(31 * time.Second)
		g.Expect(r.Status().Healthy).To(BeTrue())
		rs, _ := r.Events(0)
		g.Expect(rs[len(rs)-1].TxnError).To(ContainSubstring("southbound says no"))
		g.Expect(rs[len(rs)-1].Error).To(ContainSubstring("southbound says no"))
		w.fail = func(Transaction) error { return errors.New("no line") }
		r.wait(30 * time.Second)
		g.Expect(r.Status().Healthy).To(BeFalse())
	})
}

func TestAnExternalChangeThatFailsInAHandlerIsHealedWithItsValues(t *testing.T) {
	for _, abort := range []bool{false, true} {
		outsideLoop(t, values{"k": file("k")}, nil, func(g Gomega, r *rig, w *wire) {
			err := errors.New("no")
			if abort {
				err = NewAbortEventError(err)
			}
			r.b.update["External Config Change"] = failing(err)
			r.push(&ExternalConfigChange{Source: "x", Values: values{"k": file("x")}})
			r.wait(6 * time.Second)
			g.Expect(r.Status().Healthy).To(BeTrue())
			w.has(g, values{"k": file("x")})
		})
	}
}

func TestValueErrorsAreReadInTheOrderOfTheirKeys(t *testing.T) {
	g := NewWithT(t)
	e := ValueErrors{"b": ErrExpired, "a": errNoResync, "c": nil}
	g.Expect(e.Error()).To(Equal("a: " + errNoResync.Error() + "; b: " + ErrExpired.Error()))
	g.Expect(e.Unwrap()).To(Equal([]error{errNoResync, ErrExpired}))
	g.Expect(error(e)).To(MatchError(ErrExpired))
	g.Expect(valueErrors(nil)).To(BeNil())
}
