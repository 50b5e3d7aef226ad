// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// idle is a handler that wants all and does nothing but what look and put say.
type idle struct {
	name string
	look bool // at each pod of a resync
	put  bool // a value for each
	gate chan struct{}
	seen int
}

func (h *idle) String() string          { return h.name }
func (h *idle) HandlesEvent(Event) bool { return true }
func (h *idle) Revert(Event) error      { return nil }

func (h *idle) Resync(_ Event, state KubeStateData, _ int, txn ResyncOperations) error {
	if h.look {
		state.Sorted("pod", func(key string, m proto.Message) bool {
			h.seen += len(m.(*wrapperspb.StringValue).Value)
			if h.put {
				txn.Put("config/"+key, m)
			}
			return true
		})
	}
	return nil
}

func (h *idle) Update(ev Event, _ UpdateOperations) (string, error) {
	if h.gate != nil && ev.IsBlocking() {
		<-h.gate
	}
	return "", nil
}

// tick is an event of which nothing comes.
type tick struct {
	blocking bool
	done     chan error // may be nil
}

func (e *tick) GetName() string                        { return "Tick" }
func (e *tick) String() string                         { return "Tick" }
func (e *tick) Method() EventMethodType                { return Update }
func (e *tick) TransactionType() UpdateTransactionType { return BestEffort }
func (e *tick) Direction() UpdateDirectionType         { return Forward }
func (e *tick) IsBlocking() bool                       { return e.blocking }
func (e *tick) Done(err error) {
	if e.done != nil {
		e.done <- err
	}
}

// still is a committer that never has anything to commit.
type still struct{}

func (still) Commit(context.Context) error { return nil }
func (still) Undo()                        {}

// bench runs f against a loop of ten handlers that is in sync, with the history and without.
func bench(b *testing.B, handler idle, change func(*Config), f func(b *testing.B, c *Controller)) {
	for _, history := range []bool{false, true} {
		b.Run(fmt.Sprintf("history=%t", history), func(b *testing.B) {
			cfg := DefaultConfig()
			cfg.RecordEventHistory = history
			if change != nil {
				change(&cfg)
			}
			deps := Deps{Committers: []Committer{still{}}}
			for i := range 10 {
				h := handler
				h.name, h.put = fmt.Sprint("handler", i), h.put && i == 0
				deps.Handlers = append(deps.Handlers, &h)
			}
			c := New(cfg, deps)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			resynced := make(chan error, 1)
			must(b, c.PushEvent(&DBResync{OnDone: func(err error) { resynced <- err }}))
			must(b, <-resynced)
			b.ReportAllocs()
			b.ResetTimer()
			f(b, c)
			b.StopTimer()
			cancel()
			must(b, <-ended)
		})
	}
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkNoOp measures the events that the loop hands to ten handlers.
func BenchmarkNoOp(b *testing.B) {
	bench(b, idle{}, nil, func(b *testing.B, c *Controller) {
		ctx := b.Context()
		ev, last := &tick{}, &tick{done: make(chan error, 1)}
		for range b.N - 1 {
			if err := c.PushEventWait(ctx, ev); err != nil {
				b.Fatal(err)
			}
		}
		must(b, c.PushEventWait(ctx, last))
		must(b, <-last.done)
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
}

// BenchmarkNoOpAlone is one event that waits for the one before it.
func BenchmarkNoOpAlone(b *testing.B) {
	bench(b, idle{}, nil, func(b *testing.B, c *Controller) {
		ev := &tick{done: make(chan error, 1)}
		for range b.N {
			must(b, c.PushEvent(ev))
			must(b, <-ev.done)
		}
	})
}

// BenchmarkBlockingBehind measures the wait of a blocking event behind queued ones.
func BenchmarkBlockingBehind(b *testing.B) {
	const others = 10_000
	gate := make(chan struct{})
	bench(b, idle{gate: gate}, func(c *Config) { c.QueueSize = 2 * others }, func(b *testing.B, c *Controller) {
		hold, ev, last := &tick{blocking: true}, &tick{}, &tick{done: make(chan error, 1)}
		for range b.N {
			b.StopTimer()
			must(b, c.PushEvent(hold))
			for range others {
				if err := c.PushEvent(ev); err != nil {
					b.Fatal(err)
				}
			}
			must(b, c.PushEvent(last))
			b.StartTimer()
			for range 10 {
				gate <- struct{}{}
			}
			must(b, <-last.done)
		}
		b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/wait")
	})
}

// BenchmarkResync is a resync with many pods, each of which ten handlers look at.
func BenchmarkResync(b *testing.B) {
	const pods = 10_000
	state := KubeStateData{"pod": map[string]proto.Message{}}
	for i := range pods {
		state["pod"][fmt.Sprintf("default/pod-%05d", i)] = wrapperspb.String("10.1.2.3")
	}
	for _, put := range []bool{false, true} {
		b.Run(fmt.Sprintf("put=%t", put), func(b *testing.B) {
			bench(b, idle{look: true, put: put}, nil, func(b *testing.B, c *Controller) {
				done := make(chan error, 1)
				for range b.N {
					must(b, c.PushEvent(&DBResync{KubeState: state, OnDone: func(err error) { done <- err }}))
					must(b, <-done)
				}
				b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/resync")
			})
		})
	}
}
