// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"testing/synctest"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// simPause is an event that holds the loop until its gate opens: requests collect in the
// queue meanwhile.
type simPause struct{ gate chan struct{} }

func (*simPause) GetName() string                    { return "Pause" }
func (*simPause) String() string                     { return "Pause" }
func (*simPause) Method() controller.EventMethodType { return controller.Update }
func (*simPause) IsBlocking() bool                   { return false }
func (*simPause) Done(error)                         {}
func (*simPause) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}
func (*simPause) Direction() controller.UpdateDirectionType { return controller.Forward }

// pause holds the loop until the caller closes the gate.
func (w *world) pause() (gate chan struct{}) {
	gate = make(chan struct{})
	if err := w.a.loop.PushEvent(&simPause{gate}); err != nil {
		w.t.Error(err)
	}
	synctest.Wait()
	return gate
}

// answer is the answer to one request of a crowd.
type answer struct {
	command, address string
	code             uint
	key              ledger.Key
}

// queue sends requests so that they are queued in this order, and returns their answers
// once the gate is open.
func (w *world) queue(requests []answer) (answers func() []answer) {
	results := make([]chan answer, len(requests))
	for i, r := range requests {
		results[i] = make(chan answer, 1)
		go func() {
			r.address, r.code = w.ask(context.Background(), request(r.command, r.key))
			results[i] <- r
		}()
		synctest.Wait()
	}
	return func() (all []answer) {
		for _, r := range results {
			all = append(all, <-r)
		}
		return all
	}
}

// crowd makes requests for several attachments that share commits, while something may go
// wrong. A commit may fail or be torn, a handler may fail or panic, the southbound may be
// away, or the process may be killed during the commit.
func (w *world) crowd() {
	gate := w.pause()
	var requests []answer
	taken := map[ledger.Key]bool{}
	for range 3 + w.rnd.IntN(10) {
		k := w.key()
		if taken[k] {
			continue
		}
		taken[k] = true
		requests = append(requests, answer{command: []string{"ADD", "ADD", "DEL"}[w.rnd.IntN(3)], key: k})
	}
	answers := w.queue(requests)
	what := w.rnd.IntN(8)
	switch what {
	case 0:
		w.fault.Store(int32(journal.Fail))
	case 1:
		w.fault.Store(int32(journal.Tear))
	case 2, 3:
		w.bad.mood.Store(int32(1 + w.rnd.IntN(3)))
	case 4:
		w.away.Store(int32(1 + w.rnd.IntN(3)))
	case 5:
		w.fault.Store(int32(journal.Delay))
	}
	w.say("a crowd of %d, fault %d", len(requests), what)
	before := w.processed()
	close(gate)
	synctest.Wait()
	if what == 5 {
		for k := range taken {
			delete(w.told, k)
			w.unsure[k] = true
		}
		w.restart(true)
		for _, r := range answers() {
			w.say("killed meanwhile: %s %s -> %s code %d", r.command, r.key, r.address, r.code)
		}
		return
	}
	for _, r := range answers() {
		w.say("in a crowd: %s %s -> %s code %d", r.command, r.key, r.address, r.code)
		if r.command == "DEL" {
			w.deleted(r.key, r.code)
		} else {
			w.added(r.key, r.address, r.code)
		}
	}
	w.countGroups(before)
}

// processed returns the number of the next event.
func (w *world) processed() uint64 { return w.a.loop.Status().Processed }

// countGroups counts the events from a number on that have shared a commit, and wants each
// record of a group to know the size of the group.
func (w *world) countGroups(from uint64) {
	records, _ := w.a.loop.Events(from)
	sizes := map[int]int{}
	for _, r := range records {
		if r.Group > 0 {
			w.groups++
			sizes[r.Group]++
		}
	}
	for size, n := range sizes {
		if size < 2 || n%size != 0 {
			w.t.Errorf("%d events are in groups of %d\n%s", n, size, fmt.Sprint(w.log))
		}
	}
}
