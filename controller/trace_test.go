// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// followed is an event with a span, that may share its commit.
type followed struct {
	shared
	span   trace.Span
	panics bool
}

func (e followed) Span() trace.Span {
	if e.panics {
		panic("no span")
	}
	return e.span
}

// spans makes spans and keeps them.
type spans struct {
	*tracetest.SpanRecorder
	g      Gomega
	tracer trace.Tracer
	roots  map[string]trace.Span
}

func newSpans(g Gomega) *spans {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	return &spans{recorder, g, provider.Tracer("test"), map[string]trace.Span{}}
}

// follow gives each event a span of its own.
func (s *spans) follow(events []Event) (all []Event) {
	for _, ev := range events {
		name := ev.GetName()
		_, s.roots[name] = s.tracer.Start(context.Background(), name, trace.WithTimestamp(time.Now()))
		all = append(all, followed{shared: ev.(shared), span: s.roots[name]})
	}
	return all
}

// end ends the spans of the producers, and checks that every span has ended, within its parent,
// which has ended too.
func (s *spans) end() {
	for _, root := range s.roots {
		root.End(trace.WithTimestamp(time.Now()))
	}
	ended := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, span := range s.Ended() {
		ended[span.SpanContext().SpanID()] = span
	}
	for _, span := range s.Started() {
		s.g.Expect(ended).To(HaveKey(span.SpanContext().SpanID()), span.Name())
		if !span.Parent().IsValid() {
			continue
		}
		parent, ok := ended[span.Parent().SpanID()]
		s.g.Expect(ok).To(BeTrue(), span.Name())
		s.g.Expect(span.StartTime()).NotTo(BeTemporally("<", parent.StartTime()), span.Name())
		s.g.Expect(span.EndTime()).NotTo(BeTemporally(">", parent.EndTime()), span.Name())
	}
}

// of returns the ended spans of a name in the trace of an event.
func (s *spans) of(event, name string) (found []sdktrace.ReadOnlySpan) {
	for _, span := range s.Ended() {
		if span.SpanContext().TraceID() == s.roots[event].SpanContext().TraceID() && span.Name() == name {
			found = append(found, span)
		}
	}
	return found
}

// links returns the IDs of the spans that a span links.
func links(span sdktrace.ReadOnlySpan) (ids []trace.SpanID) {
	for _, l := range span.Links() {
		ids = append(ids, l.SpanContext.SpanID())
	}
	return ids
}

func attributeOf(span sdktrace.ReadOnlySpan, key string) any {
	for _, kv := range span.Attributes() {
		if string(kv.Key) == key {
			return kv.Value.AsInterface()
		}
	}
	return nil
}

func TestEventsThatShareACommitAreLinked(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		s := newSpans(g)
		c.together(append(c.adds("untraced"), s.follow(c.adds("a", "b", "c"))...)...)
		s.end()
		g.Expect(c.groups()).To(Equal([]int{4, 4, 4, 4}))
		first := s.of("a", "commit")
		g.Expect(first).To(HaveLen(1))
		others := []trace.SpanID{}
		for _, name := range []string{"b", "c"} {
			event := s.of(name, "event "+name)
			g.Expect(event).To(HaveLen(1))
			g.Expect(attributeOf(event[0], "cadastre.group")).To(Equal(int64(4)))
			others = append(others, event[0].SpanContext().SpanID())
			commit := s.of(name, "commit")
			g.Expect(commit).To(HaveLen(1))
			g.Expect(links(commit[0])).To(Equal([]trace.SpanID{first[0].SpanContext().SpanID()}))
			g.Expect(commit[0].StartTime()).To(Equal(first[0].StartTime()))
			g.Expect(commit[0].EndTime()).To(Equal(first[0].EndTime()))
			g.Expect(commit[0].Parent().SpanID()).To(Equal(event[0].SpanContext().SpanID()))
		}
		g.Expect(links(first[0])).To(ConsistOf(others))
		for _, name := range []string{"a", "b", "c"} {
			g.Expect(s.of(name, "queue")).To(HaveLen(1))
			for _, h := range []string{"a", "b", "c"} {
				g.Expect(s.of(name, "handler "+h)).To(HaveLen(1))
			}
		}
	})
}

func TestAnEventThatIsPutBackHasASpanForEachRun(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) { // the shared commit fails
		s := newSpans(g)
		c.saving.fail = errors.New("disk full")
		c.together(s.follow(c.adds("a", "b"))...)
		s.end()
		for _, name := range []string{"a", "b"} {
			runs := s.of(name, "event "+name)
			g.Expect(runs).To(HaveLen(2))
			g.Expect(attributeOf(runs[0], "cadastre.repeated")).To(BeTrue())
			g.Expect(runs[1].Status().Description).To(ContainSubstring("disk full"))
			g.Expect(s.of(name, "queue")).To(HaveLen(1))
			g.Expect(s.of(name, "revert a")).To(HaveLen(2), "beside the other, and alone")
			for _, commit := range s.of(name, "commit") {
				g.Expect(commit.Status().Description).To(ContainSubstring("disk full"))
			}
		}
	})
	crowded(t, nil, func(g Gomega, c *crowd) { // one of three fails
		s := newSpans(g)
		c.b.update["b"] = failing(errors.New("no room"))
		c.together(s.follow(c.adds("a", "b", "c"))...)
		s.end()
		runs := s.of("b", "event b")
		g.Expect(runs).To(HaveLen(2))
		g.Expect(attributeOf(runs[0], "cadastre.repeated")).To(BeTrue())
		g.Expect(runs[1].Status().Description).To(ContainSubstring("no room"))
		g.Expect(s.of("b", "handler b")[1].Status().Description).To(ContainSubstring("no room"))
		g.Expect(s.of("a", "event a")).To(HaveLen(1))
	})
	crowded(t, nil, func(g Gomega, c *crowd) { // one of them ends the loop
		s := newSpans(g)
		c.b.update["b"] = failing(fmt.Errorf("%w: broken", ErrAbort))
		c.together(s.follow(c.adds("a", "b", "c"))...)
		s.end()
		g.Expect(s.of("b", "event b")[0].Status().Description).To(ContainSubstring("broken"))
	})
}

func TestEventsThatAreNotProcessedHaveASpanToo(t *testing.T) {
	crowded(t, nil, func(g Gomega, c *crowd) {
		s := newSpans(g)
		late := s.follow(c.adds("late"))[0].(followed)
		late.deadline = time.Now().Add(-time.Second)
		c.push(expiringFollowed{late})
		s.end()
		g.Expect(s.of("late", "event late")[0].Status().Description).To(ContainSubstring(ErrExpired.Error()))

		bad := followed{shared: c.adds("bad")[0].(shared), panics: true}
		c.push(bad)
		g.Expect(bad.done()).To(HaveExactElements(MatchError(ErrMalformedEvent)))
	})
}

// expiringFollowed is a followed event with a deadline.
type expiringFollowed struct{ followed }

func (e expiringFollowed) Deadline() time.Time { return e.deadline }

func BenchmarkTracedEvents(b *testing.B) {
	for name, sampler := range map[string]sdktrace.Sampler{"untraced": nil, "traced": sdktrace.AlwaysSample()} {
		b.Run(name, func(b *testing.B) {
			c := New(DefaultConfig(), Deps{Handlers: []EventHandler{&idle{name: "a"}, &idle{name: "b"}}})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- c.Run(ctx) }()
			defer func() { cancel(); <-ended }()
			if err := c.PushEvent(&DBResync{}); err != nil {
				b.Fatal(err)
			}
			var span trace.Span
			if sampler != nil {
				_, span = sdktrace.NewTracerProvider(sdktrace.WithSampler(sampler)).Tracer("").Start(ctx, "request")
			}
			ev := &tracedTick{tick{done: make(chan error, 1)}, span}
			b.ReportAllocs()
			for b.Loop() {
				if err := c.PushEventWait(ctx, ev); err != nil {
					b.Fatal(err)
				}
				<-ev.done
			}
		})
	}
}

type tracedTick struct {
	tick
	span trace.Span
}

func (e *tracedTick) Span() trace.Span { return e.span }
