// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// order is an event that takes or gives back a slot of a stock for a key.
type order struct {
	number  int
	key     string
	take    bool
	fails   string // "", "error", "panic", "sink"
	also    string // a shared key of the southbound that it changes; "": none
	follows bool   // a follow-up comes of it
	late    bool   // its deadline has passed
	single  bool   // it is not a GroupedEvent
	done    func(o *order, err error)

	slot int // taken; 0: none
}

func (o *order) GetName() string {
	if o.take {
		return "Take"
	}
	return "Give"
}
func (o *order) String() string          { return fmt.Sprintf("%s %s (%d)", o.GetName(), o.key, o.number) }
func (o *order) Method() EventMethodType { return Update }
func (o *order) IsBlocking() bool        { return true }
func (o *order) Done(err error)          { o.done(o, err) }
func (o *order) TransactionType() UpdateTransactionType {
	if o.take {
		return RevertOnFailure
	}
	return BestEffort
}
func (o *order) Direction() UpdateDirectionType { return Forward }
func (o *order) Deadline() time.Time {
	if o.late {
		return time.Now().Add(-time.Second)
	}
	return time.Now().Add(time.Hour)
}

// grouped is an order that may share its commit.
type grouped struct{ *order }

func (o grouped) GroupKey() string { return o.key }

// echo is a follow-up that appends to the log of the stock.
type echo struct {
	*event
	of *order
}

// stockChange holds one change of a stock.
type stockChange struct {
	key   string
	slot  int // taken or given back
	take  bool
	event string
	rest  bool // the slot was cooling when it was taken
}

// stock hands out slots as the ledger does addresses: a slot that is given back is free after the commit,
// and is used again after all others. It is the handler and the committer.
type stock struct {
	g       Gomega
	free    []int
	cooling []int
	held    map[string]int
	staged  []stockChange
	mark    int
	event   string
	log     []string // that is durable
	fail    func() error
	poison  map[string]bool // no commit with a change of these keys succeeds
}

func newStock(g Gomega, slots int) *stock {
	s := &stock{g: g, held: map[string]int{}, poison: map[string]bool{}}
	for i := range slots {
		s.free = append(s.free, i+1)
	}
	return s
}

func (s *stock) String() string          { return "stock" }
func (s *stock) HandlesEvent(Event) bool { return true }
func (s *stock) Resync(_ Event, _ KubeStateData, _ int, txn ResyncOperations) error {
	for _, k := range slices.Sorted(maps.Keys(s.held)) {
		txn.Put("slot/"+k, wrapperspb.Int64(int64(s.held[k])))
	}
	return nil
}

func orderOf(ev Event) *order {
	switch ev := ev.(type) {
	case *order:
		return ev
	case grouped:
		return ev.order
	}
	return nil
}

func (s *stock) Update(ev Event, txn UpdateOperations) (string, error) {
	if e, ok := ev.(*echo); ok {
		s.staged = append(s.staged, stockChange{key: e.of.key, event: s.event})
		return "", nil
	}
	o := orderOf(ev)
	if o == nil {
		return "", nil
	}
	if !o.take {
		if slot := s.held[o.key]; slot != 0 {
			s.staged = append(s.staged, stockChange{key: o.key, slot: slot, event: s.event})
			txn.Delete("slot/" + o.key)
		}
		return "gave", s.also(o, txn)
	}
	if s.held[o.key] == 0 {
		slot, rest := s.pick()
		if slot == 0 {
			return "", errors.New("no slot is free")
		}
		o.slot = slot
		s.staged = append(s.staged, stockChange{o.key, slot, true, s.event, rest})
		txn.Put("slot/"+o.key, wrapperspb.Int64(int64(slot)))
	}
	return fmt.Sprint("took ", o.slot), s.also(o, txn)
}

// also does what an order asks for besides.
func (s *stock) also(o *order, txn UpdateOperations) error {
	if o.also != "" {
		n := int64(o.number)
		if had, ok := txn.Get(o.also).(*wrapperspb.Int64Value); ok {
			n += had.Value
		}
		txn.Put(o.also, wrapperspb.Int64(n))
	}
	if o.follows {
		return txn.FollowUp(&echo{&event{name: "Echo"}, o})
	}
	return nil
}

// pick takes a free slot, or the one that cools longest.
func (s *stock) pick() (slot int, rest bool) {
	for _, list := range []*[]int{&s.free, &s.cooling} {
		if len(*list) > 0 {
			slot, *list = (*list)[0], (*list)[1:]
			return slot, list == &s.cooling
		}
	}
	return 0, false
}

func (s *stock) Revert(ev Event) error {
	o := orderOf(ev)
	if o.slot == 0 {
		return nil
	}
	for i := range s.staged {
		if s.staged[i].take && s.staged[i].key == o.key {
			s.g.Expect(i).To(BeNumerically(">=", s.mark))
			s.unpick(s.staged[i])
			s.staged, o.slot = slices.Delete(s.staged, i, i+1), 0
			return nil
		}
	}
	if slot := s.held[o.key]; slot == o.slot {
		s.staged, o.slot = append(s.staged, stockChange{key: o.key, slot: slot, event: s.event}), 0
	}
	return nil
}

func (s *stock) unpick(x stockChange) {
	if x.rest {
		s.cooling = slices.Insert(s.cooling, 0, x.slot)
		return
	}
	i, _ := slices.BinarySearch(s.free, x.slot)
	s.free = slices.Insert(s.free, i, x.slot)
}

func (s *stock) BeginEvent(number uint64, name string) { s.event = fmt.Sprint(number, " ", name) }
func (s *stock) Mark()                                 { s.mark = len(s.staged) }
func (s *stock) UndoToMark()                           { s.undoTo(s.mark) }
func (s *stock) Undo()                                 { s.undoTo(0) }

func (s *stock) undoTo(n int) {
	for _, x := range slices.Backward(s.staged[n:]) {
		if x.take {
			s.unpick(x)
		}
	}
	s.staged, s.mark = s.staged[:n], min(s.mark, n)
}

func (s *stock) Commit(context.Context) error {
	if len(s.staged) == 0 {
		return nil
	}
	if slices.ContainsFunc(s.staged, func(x stockChange) bool { return s.poison[x.key] }) {
		s.Undo()
		return errors.New("a bad record")
	}
	if s.fail != nil {
		if err := s.fail(); err != nil {
			s.Undo()
			return err
		}
	}
	for _, x := range s.staged {
		switch {
		case x.slot == 0:
			s.log = append(s.log, fmt.Sprintf("%s: %s", x.event, x.key))
			continue
		case x.take:
			s.held[x.key] = x.slot
		default:
			delete(s.held, x.key)
			s.cooling = append(s.cooling, x.slot)
		}
		s.log = append(s.log, fmt.Sprintf("%s: %s %d %t", x.event, x.key, x.slot, x.take))
	}
	s.staged, s.mark = nil, 0
	return nil
}

// oneByOne hides the savepoints of a stock: no events share its commits.
type oneByOne struct{ s *stock }

func (o oneByOne) Commit(ctx context.Context) error      { return o.s.Commit(ctx) }
func (o oneByOne) Undo()                                 { o.s.Undo() }
func (o oneByOne) BeginEvent(number uint64, name string) { o.s.BeginEvent(number, name) }

// breaker is the last handler: it fails the orders that are to fail.
type breaker struct{}

func (breaker) String() string          { return "breaker" }
func (breaker) HandlesEvent(Event) bool { return true }
func (breaker) Revert(Event) error      { return nil }
func (breaker) Resync(Event, KubeStateData, int, ResyncOperations) error {
	return nil
}

func (breaker) Update(ev Event, _ UpdateOperations) (string, error) {
	if o := orderOf(ev); o != nil {
		switch o.fails {
		case "error":
			return "", fmt.Errorf("order %d is broken", o.number)
		case "panic":
			panic(fmt.Sprint("order ", o.number))
		}
	}
	return "", nil
}

// outcome holds the results of a run.
type outcome struct {
	Answers []string
	Log     []string
	Held    map[string]int
	Wanted  map[string]string
	Sink    map[string]string
	Records []string
	largest int
}

// place processes bursts of orders: all orders of a burst are queued before the first one is
// processed.
func place(t *testing.T, rt *rapid.T, bursts [][]order, slots int, groups bool, fail func() error) (out outcome) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(rt)
		s := newStock(g, slots)
		s.fail = fail
		var committer Committer = s
		if !groups {
			committer = oneByOne{s}
		}
		broken := map[string]bool{}
		sink := &MemorySink{Fault: func(txn Transaction) error {
			for _, v := range txn.Values {
				if broken[v.Key] {
					return errors.New("the southbound refuses " + v.Key)
				}
			}
			return nil
		}}
		gate := make(chan struct{})
		door := &handler{name: "door", log: &lines[string]{}, update: map[string]func(UpdateOperations) error{
			"Gate": func(UpdateOperations) error { <-gate; return nil },
		}}
		r := &rig{g: g, sink: sink, result: make(chan error, 1)}
		r.Controller = New(DefaultConfig(), Deps{Handlers: []EventHandler{door, s, breaker{}}, Sink: sink, Committers: []Committer{committer}})
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		go func() { r.result <- r.Run(ctx) }()
		r.sync()
		for _, burst := range bursts {
			g.Expect(r.PushEvent(&event{name: "Gate"})).To(Succeed())
			clear(broken)
			clear(s.poison)
			for _, o := range burst {
				o.done = func(o *order, err error) {
					out.Answers = append(out.Answers, fmt.Sprintf("%s slot %d: %v", o, o.slot, firstLine(fmt.Sprint(err))))
				}
				broken["slot/"+o.key] = broken["slot/"+o.key] || o.fails == "sink"
				s.poison[o.key] = s.poison[o.key] || o.fails == "commit"
				var ev Event = grouped{&o}
				if o.single {
					ev = &o
				}
				g.Expect(r.PushEvent(ev)).To(Succeed())
			}
			synctest.Wait()
			gate <- struct{}{}
			synctest.Wait()
		}
		clear(broken)
		clear(s.poison)
		r.wait(time.Minute) // heals
		out.Log, out.Held = s.log, s.held
		out.Wanted, out.Sink = textsOf(r.wanted.messages()), textsOf(must2(sink.Dump(context.Background())))
		for _, rec := range must1(r.Events(0)) {
			out.largest = max(out.largest, rec.Group)
			for i := range rec.Handlers {
				rec.Handlers[i].Duration = 0
				rec.Handlers[i].Error = firstLine(rec.Handlers[i].Error)
			}
			out.Records = append(out.Records, fmt.Sprintf("%d %s follows %t %d: %v %v %s %s %s",
				rec.SeqNum, rec.Name, rec.IsFollowUp, rec.FollowUpTo, rec.Handlers, rec.Txn, firstLine(rec.Error), rec.TxnError, rec.Description))
		}
		g.Expect(r.stop()).To(Succeed())
		g.Expect(s.staged).To(BeEmpty())
	})
	return out
}

// firstLine cuts the stack of a panic.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func must1[T, U any](x T, _ U) T { return x }

func must2[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func textsOf(all map[string]proto.Message) map[string]string {
	texts := map[string]string{}
	for k, m := range all {
		texts[k] = text(m)
	}
	return texts
}

func drawOrders(t *rapid.T, fails []string) (bursts [][]order) {
	n := 0
	for range rapid.IntRange(1, 4).Draw(t, "bursts") {
		var burst []order
		for range rapid.IntRange(1, 25).Draw(t, "orders") {
			n++
			rarely := func(what string) bool { return rapid.IntRange(0, 15).Draw(t, what) == 0 }
			o := order{
				number: n,
				key:    fmt.Sprint("k", rapid.IntRange(0, 30).Draw(t, "key")),
				take:   rapid.IntRange(0, 2).Draw(t, "take") > 0,
				late:   rarely("late"), single: rarely("single"), follows: rarely("follows"),
			}
			if rapid.IntRange(0, 7).Draw(t, "also") == 0 {
				o.also = "shared"
			}
			if rapid.IntRange(0, 6).Draw(t, "fails") == 0 {
				o.fails = rapid.SampledFrom(fails).Draw(t, "how")
			}
			burst = append(burst, o)
		}
		bursts = append(bursts, burst)
	}
	return bursts
}

// Sharing commits changes no answer, no durable change, no value, no record, and not their
// order.
func TestEventsThatShareACommitEndAsOneByOne(t *testing.T) {
	most := 0
	rapid.Check(t, func(rt *rapid.T) {
		g := NewWithT(rt)
		bursts := drawOrders(rt, []string{"error", "panic", "commit"})
		slots := rapid.IntRange(1, 20).Draw(rt, "slots")
		apart := place(t, rt, bursts, slots, false, nil)
		together := place(t, rt, bursts, slots, true, nil)
		most = max(most, together.largest)
		g.Expect(together.Answers).To(Equal(apart.Answers))
		g.Expect(together.Log).To(Equal(apart.Log))
		g.Expect(together.Held).To(Equal(apart.Held))
		g.Expect(together.Wanted).To(Equal(apart.Wanted))
		g.Expect(together.Sink).To(Equal(apart.Sink))
		g.Expect(together.Records).To(Equal(apart.Records))
	})
	NewWithT(t).Expect(most).To(BeNumerically(">", 2), "the largest group")
}

// A southbound that refuses an event comes after the durable commit of its neighbours: the
// revert of the event is behind their changes in the history. All else is as one by one, but
// for the slots that are taken meanwhile.
func TestTheSouthboundFailsOneEventOfAGroup(t *testing.T) {
	most := 0
	rapid.Check(t, func(rt *rapid.T) {
		g := NewWithT(rt)
		bursts := drawOrders(rt, []string{"sink"})
		apart := place(t, rt, bursts, 100, false, nil)
		together := place(t, rt, bursts, 100, true, nil)
		most = max(most, together.largest)
		g.Expect(slices.Sorted(slices.Values(keysOf(together.Log)))).To(Equal(slices.Sorted(slices.Values(keysOf(apart.Log)))))
		g.Expect(slices.Sorted(maps.Keys(together.Held))).To(Equal(slices.Sorted(maps.Keys(apart.Held))))
		g.Expect(slices.Sorted(maps.Keys(together.Sink))).To(Equal(slices.Sorted(maps.Keys(apart.Sink))))
		g.Expect(together.Sink["shared"]).To(Equal(apart.Sink["shared"]))
		g.Expect(together.Sink).To(Equal(together.Wanted))
		g.Expect(len(together.Answers)).To(Equal(len(apart.Answers)))
		for i := range apart.Answers {
			g.Expect(withoutSlot(together.Answers[i])).To(Equal(withoutSlot(apart.Answers[i])))
		}
	})
	NewWithT(t).Expect(most).To(BeNumerically(">", 2), "the largest group")
}

// keysOf returns the lines of a log without the slots.
func keysOf(log []string) (all []string) {
	for _, line := range log {
		var number int
		var name, key, rest string
		_, _ = fmt.Sscanf(line, "%d %s %s %s", &number, &name, &key, &rest)
		all = append(all, fmt.Sprint(number, name, key))
	}
	return all
}

func withoutSlot(answer string) string {
	var name, key, number string
	var slot int
	_, _ = fmt.Sscanf(answer, "%s %s %s slot %d:", &name, &key, &number, &slot)
	return fmt.Sprint(name, key, number, slot != 0, answer[len(answer)-5:])
}

// Whatever commit fails, an event that has succeeded is durable, one that has failed is not,
// and the answers keep their order.
func TestNothingIsAnsweredThatASharedCommitHasLost(t *testing.T) {
	most := 0
	rapid.Check(t, func(rt *rapid.T) {
		g := NewWithT(rt)
		bursts := drawOrders(rt, []string{"error", "panic", "sink"})
		often := rapid.IntRange(2, 8).Draw(rt, "a commit of so many fails")
		n := 0
		together := place(t, rt, bursts, 100, true, func() error {
			if n++; n%often == 0 {
				return errors.New("disk full")
			}
			return nil
		})
		most = max(most, together.largest)
		want, unsure := map[string]bool{}, map[string]bool{}
		i := 0
		for _, burst := range bursts {
			for _, o := range burst {
				answer := together.Answers[i]
				i++
				var name, key string
				_, _ = fmt.Sscanf(answer, "%s %s", &name, &key)
				g.Expect(answer).To(HavePrefix(o.String()), "the order of the answers")
				switch failed := answer[len(answer)-5:] != "<nil>"; {
				case failed && o.take && !want[o.key]:
					// The commit of its revert may have failed.
					unsure[o.key] = unsure[o.key] || strings.Contains(answer, "southbound")
				case failed:
					unsure[o.key] = unsure[o.key] || !o.take
				default:
					want[o.key] = o.take
					delete(unsure, o.key)
				}
			}
		}
		g.Expect(i).To(Equal(len(together.Answers)), "one answer each")
		for k := range want {
			if !unsure[k] {
				g.Expect(together.Held[k] != 0).To(Equal(want[k]), k)
			}
		}
		g.Expect(together.Sink).To(Equal(together.Wanted))
	})
	NewWithT(t).Expect(most).To(BeNumerically(">", 2), "the largest group")
}
