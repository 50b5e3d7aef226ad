// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/controller"
)

// model holds the wanted values.
type model map[string]string

// made returns the values whose dependencies can all be made.
func (m model) made() map[string]string {
	all := map[string]string{}
	for grown := true; grown; {
		grown = false
		for k, v := range m {
			_, there := all[k]
			if there || slices.ContainsFunc(needs(v), func(d string) bool { _, ok := all[d]; return !ok }) {
				continue
			}
			all[k], grown = v, true
		}
	}
	return all
}

// actual returns the values that are made, and those that stand in for pending ones.
func (m model) actual() map[string]string {
	all := m.made()
	for k := range m {
		if all[k] == "" && strings.HasPrefix(k, "c/") {
			all[k] = standIn
		}
	}
	return all
}

// after returns the wanted values after a transaction.
func (m model) after(txn controller.Transaction) model {
	next := model{}
	if txn.Method == controller.Update {
		next = maps.Clone(m)
	}
	for _, v := range txn.Values {
		switch {
		case strings.HasPrefix(text(v.Message), "bad"):
			if was, ok := m[v.Key]; ok {
				next[v.Key] = was
			}
		case v.Message == nil:
			delete(next, v.Key)
		default:
			next[v.Key] = text(v.Message)
		}
	}
	return next
}

func keys() []string {
	var all []string
	for _, kind := range []string{"a/", "b/", "c/"} {
		for i := range 4 {
			all = append(all, fmt.Sprint(kind, i))
		}
	}
	return all
}

// drawn draws a transaction. Dependencies are earlier keys.
func drawn(t *rapid.T) controller.Transaction {
	txn := controller.Transaction{Method: controller.Update}
	some := 3
	if rapid.IntRange(0, 5).Draw(t, "method") == 0 {
		txn.Method, some = controller.FullResync, 6
	}
	all := keys()
	for i, key := range all {
		if rapid.IntRange(0, 9).Draw(t, key) >= some {
			continue
		}
		value := rapid.SampledFrom([]string{"", "x", "x1", "y", "y1", "x", "bad"}).Draw(t, "text")
		if value == "" && txn.Method != controller.Update {
			continue
		}
		if value == "" {
			txn.Values = append(txn.Values, is(key, ""))
			continue
		}
		var deps []string
		for range rapid.IntRange(0, 2).Draw(t, "dependencies") {
			if d := all[rapid.IntRange(0, max(i-1, 0)).Draw(t, "dependency")]; d != key && !slices.Contains(deps, d) {
				deps = append(deps, d)
			}
		}
		if len(deps) > 0 {
			value += " needs " + strings.Join(deps, " ")
		}
		txn.Values = append(txn.Values, is(key, value))
	}
	txn.RevertOnFailure = rapid.IntRange(0, 2).Draw(t, "reverts") == 0
	return txn
}

// fails reports whether a transaction fails without a fault.
func (m model) fails(txn controller.Transaction) bool {
	made := m.after(txn).made()
	return slices.ContainsFunc(txn.Values, func(v controller.Value) bool {
		_, ok := made[v.Key]
		return strings.HasPrefix(text(v.Message), "bad") || txn.RevertOnFailure && v.Message != nil && !ok
	})
}

// TestTransactionsEndAsOneResync has no faults: after each transaction the world is that
// of one resync with all wanted values.
func TestTransactionsEndAsOneResync(t *testing.T) {
	checks(t)
	rapid.Check(t, func(t *rapid.T) {
		g, w, m := NewWithT(t), newWorld(), model{}
		s := New(Options{}, w.partsWithSubstitutes()...)
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			txn := drawn(t)
			before := w.clone()
			w.log = nil
			err := s.Commit(t.Context(), txn)
			g.Expect(w.wrong).To(BeEmpty(), "%v\n%v\n%v", before, txn.Values, w.log)
			g.Expect(err != nil).To(Equal(m.fails(txn)), "%v", err)
			if err != nil && txn.RevertOnFailure {
				g.Expect(w.values).To(Equal(before))
			} else {
				m = m.after(txn)
			}
			g.Expect(w.values).To(Equal(m.actual()))
			g.Expect(s.made()).To(Equal(w.values))
			if txn.Method == controller.Update {
				g.Expect(w.log).NotTo(ContainElement(HavePrefix("retrieve")), "an update lists nothing")
			}
			w.log = nil
			g.Expect(s.Commit(t.Context(), m.wantedAgain())).To(Succeed())
			g.Expect(w.log).To(BeEmpty(), "what is made costs nothing")
		}
	})
}

// wantedAgain wants all values that are wanted already.
func (m model) wantedAgain() controller.Transaction {
	var all []controller.Value
	for k, v := range m {
		all = append(all, is(k, v))
	}
	return update(all...)
}

// made returns the values that the scheduler believes to be made.
func (s *Scheduler) made() map[string]string {
	all := map[string]string{}
	for k, it := range s.items {
		if it.made != nil {
			all[k] = text(it.made.proto())
		}
	}
	return all
}

// proto returns the message of a value.
func (v *value) proto() proto.Message {
	if v == nil {
		return nil
	}
	return v.message
}

// state returns what the scheduler knows of each value except for doubts.
func (s *Scheduler) state() map[string]string {
	all := map[string]string{}
	for k, it := range s.items {
		all[k] = fmt.Sprintf("wanted %q made %q err %v retry %v", text(it.wanted.proto()), text(it.made.proto()), it.err, it.retry)
	}
	return all
}

// TestTransactionsWithFaults lets a call fail in each transaction, and other programs remove
// values. After the last one repetitions, or a repair, or a resync, or one of a new process,
// end in the wanted state.
func TestTransactionsWithFaults(t *testing.T) {
	checks(t)
	rapid.Check(t, func(t *rapid.T) {
		g, w, m, now := NewWithT(t), newWorld(), model{}, time.Unix(0, 0)
		s := New(Options{Now: func() time.Time { return now }}, w.partsWithSubstitutes()...)
		retry := controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 1000}
		lost := false
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			txn := drawn(t)
			txn.Retry = retry
			txn.Values = slices.DeleteFunc(txn.Values, func(v controller.Value) bool { return strings.HasPrefix(text(v.Message), "bad") })
			before, state, clean := w.clone(), s.state(), len(s.Status().Failed) == 0
			w.calls, w.failing = 0, rapid.IntRange(0, 8).Draw(t, "failing")
			w.halfway, w.torn, w.log = rapid.Bool().Draw(t, "halfway"), rapid.Bool().Draw(t, "torn"), nil
			if rapid.IntRange(0, 3).Draw(t, "goes") == 0 {
				w.leaving, w.tearAway = rapid.IntRange(1, 8).Draw(t, "leaving"), w.torn
			}
			gone := s.Away() != nil
			clean = clean && !gone // values that nothing wants may wait for their removal
			err := s.Commit(t.Context(), txn)
			g.Expect(w.wrong).To(BeEmpty(), "%v\n%v\n%v\n%v", state, txn, w.failing, w.log)
			gone = gone || w.leaving > 0 && w.calls >= w.leaving
			if w.failing > 0 && w.calls >= w.failing && !gone {
				g.Expect(err).To(MatchError(errInjected))
			}
			failing := w.failing
			w.failing, w.torn = 0, false
			if err == nil || !txn.RevertOnFailure {
				m = m.after(txn)
			}
			if gone {
				var stays bool
				if err, stays = comesBack(t, s, w, err, failing > 0); stays {
					continue
				}
			}
			w.leaving, w.tearAway = 0, false
			switch _, single := err.(controller.ValueErrors); { //nolint:errorlint // the error itself must be of that type
			case err != nil && !single: // a list or the undoing failed: the loop heals with a resync
				g.Expect(failing > 0 || !clean).To(BeTrue(), "%v", err)
				g.Expect(s.Commit(t.Context(), m.all())).To(Succeed())
			case err != nil && txn.RevertOnFailure && clean:
				g.Expect(w.values).To(Equal(before), "nothing remains: %v %v", err, w.log)
				if txn.Method == controller.Update {
					g.Expect(s.state()).To(Equal(state), "nothing remains")
				}
			}
			switch rapid.IntRange(0, 5).Draw(t, "then") {
			case 0:
				now = now.Add(time.Second)
				w.calls, w.failing = 0, rapid.IntRange(0, 3).Draw(t, "failing")
				g.Expect(s.retryDue(t.Context())).To(BeEmpty())
				w.failing = 0
			case 1:
				lost = true
				w.lose(rapid.SampledFrom(keys()).Draw(t, "lost"))
				s.lost(t.Context(), g)
			}
			g.Expect(w.wrong).To(BeEmpty())
		}
		w.leaving, w.tearAway = 0, false
		s.readAgain(t.Context())
		switch rapid.IntRange(0, 2).Draw(t, "end") {
		case 0:
			for range 3 {
				now = now.Add(time.Hour)
				g.Expect(s.retryDue(t.Context())).To(BeEmpty())
			}
			if lost {
				s.lost(t.Context(), g)
			}
		case 1:
			s = New(Options{}, w.partsWithSubstitutes()...)
			fallthrough
		default:
			g.Expect(s.Commit(t.Context(), m.all())).To(Succeed())
		}
		g.Expect(w.wrong).To(BeEmpty())
		g.Expect(w.values).To(Equal(m.actual()), "%v\n%v", s.state(), w.log)
		g.Expect(s.Status().Failed).To(BeEmpty())
	})
}

// comesBack lets a data plane come back after a transaction, or stay away. It returns what is
// left of the transaction's error then.
func comesBack(t *rapid.T, s *Scheduler, w *world, err error, failed bool) (rest error, stays bool) {
	g := NewWithT(t)
	_, remains := errors.AsType[*controller.RemainError](err)
	g.Expect(remains && !failed).To(BeFalse(), "what is left is found before the next value is made")
	if s.Away() == nil {
		return err, false // a resync has read all
	}
	if !remains && rapid.Bool().Draw(t, "stays away") {
		return nil, true
	}
	if rapid.Bool().Draw(t, "lost") {
		w.lose(rapid.SampledFrom(keys()).Draw(t, "lost"))
	}
	w.leaving, w.tearAway = 0, false
	s.readAgain(t.Context())
	g.Expect(s.Away()).To(Succeed())
	g.Expect(w.wrong).To(BeEmpty(), "%v", w.log)
	if remains {
		return err, false
	}
	return nil, false
}

func (m model) all() controller.Transaction {
	txn := m.wantedAgain()
	txn.Method = controller.FullResync
	return txn
}

// lost lets the scheduler compare all values with the world, after a quiet minute.
func (s *Scheduler) lost(ctx context.Context, g Gomega) {
	dirty := marks{}
	for _, d := range s.kinds {
		dirty.add(d, "")
	}
	clear(s.repairs)
	err := s.repairValues(ctx, dirty)
	if err != nil && !errors.Is(err, errInjected) {
		g.Expect(err).NotTo(HaveOccurred())
	}
}
