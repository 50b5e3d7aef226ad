// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// TracedEvent is an Event whose processing may be traced. Its span has a child for the time
// in the queue, and one for each time that the event was processed. The latter has a child
// for each handler, for the durable commit and for the southbound one.
type TracedEvent interface {
	Event
	// Span returns the span in which the producer waits; nil: the event is not traced.
	Span() trace.Span
}

// tracing holds the span of one run. Its methods do nothing if it is nil: the event is not
// traced.
type tracing struct {
	tracer trace.Tracer
	span   trace.Span
}

// trace begins the span of a run.
func (r *run) trace() {
	e, ok := r.ev.Event.(TracedEvent)
	if !ok || r.ev.fault != nil {
		return
	}
	var parent trace.Span
	if r.ev.fault = r.c.guard(func() error { parent = e.Span(); return nil }); parent == nil {
		return
	}
	t := &tracing{tracer: parent.TracerProvider().Tracer("cadastre.loop")}
	ctx := trace.ContextWithSpan(context.Background(), parent)
	if !r.ev.again {
		_, waited := t.tracer.Start(ctx, "queue", trace.WithTimestamp(r.ev.pushed))
		waited.End(trace.WithTimestamp(r.rec.ProcessingStart))
	}
	_, t.span = t.tracer.Start(
		ctx,
		"event "+r.ev.name,
		trace.WithTimestamp(r.rec.ProcessingStart),
		trace.WithAttributes(attribute.Int64("cadastre.seq", int64(r.rec.SeqNum))),
	)
	r.tracing = t
}

// begin begins a child, and returns ctx with it.
func (t *tracing) begin(ctx context.Context, name string, at time.Time) (context.Context, trace.Span) {
	return t.tracer.Start(trace.ContextWithSpan(ctx, t.span), name, trace.WithTimestamp(at))
}

// handled adds the call of a handler.
func (t *tracing) handled(rec *HandlerRecord, began, ended time.Time) {
	if t == nil {
		return
	}
	name := "handler " + rec.Handler
	if rec.Revert {
		name = "revert " + rec.Handler
	}
	_, span := t.begin(context.Background(), name, began)
	if rec.Change != "" {
		span.SetAttributes(attribute.String("cadastre.change", rec.Change))
	}
	endSpan(span, rec.Error, ended)
}

// end ends the span of the run.
func (t *tracing) end(rec *Record, ended time.Time) {
	if t == nil {
		return
	}
	if rec.Group > 0 {
		t.span.SetAttributes(attribute.Int("cadastre.group", rec.Group))
	}
	endSpan(t.span, rec.Error, ended)
}

// repeated ends the span of a run whose event was put back into the queue.
func (t *tracing) repeated(ended time.Time) {
	if t == nil {
		return
	}
	t.span.SetAttributes(attribute.Bool("cadastre.repeated", true))
	t.span.End(trace.WithTimestamp(ended))
}

// endSpan ends a span with the text of its error, "" if there is none.
func endSpan(span trace.Span, failure string, at time.Time) {
	if failure != "" {
		span.SetStatus(codes.Error, failure)
	}
	span.End(trace.WithTimestamp(at))
}

// commitTogether commits what the runs have staged. Each of those that are traced gets a
// span with the time of the commit. The first of these spans links the events that share the
// commit, and their spans link it.
func commitTogether(ctx context.Context, runs ...*run) error {
	var leader *run
	for _, r := range runs {
		if r.tracing != nil {
			leader = r
			break
		}
	}
	if leader == nil {
		return runs[0].commitStaged(ctx)
	}
	now := leader.c.deps.Now
	began := now()
	ctx, shared := leader.tracing.begin(ctx, "commit", began)
	if len(runs) > 1 {
		shared.SetAttributes(attribute.Int("cadastre.group", len(runs)))
	}
	err := runs[0].commitStaged(ctx)
	ended, failure := now(), ""
	if err != nil {
		failure = err.Error()
	}
	for _, r := range runs {
		if r == leader || r.tracing == nil {
			continue
		}
		shared.AddLink(trace.Link{SpanContext: r.tracing.span.SpanContext()})
		_, span := r.tracing.begin(context.Background(), "commit", began)
		span.SetAttributes(attribute.Int("cadastre.group", len(runs)))
		span.AddLink(trace.Link{SpanContext: shared.SpanContext()})
		endSpan(span, failure, ended)
	}
	endSpan(shared, failure, ended)
	return err
}

// send commits southbound.
func (r *run) send(ctx context.Context, txn Transaction) error {
	if r.tracing == nil {
		return r.c.guard(func() error { return r.c.deps.Sink.Commit(ctx, txn) })
	}
	ctx, span := r.tracing.begin(ctx, "southbound", r.c.deps.Now())
	span.SetAttributes(attribute.Int("cadastre.values", len(txn.Values)))
	err, failure := r.c.guard(func() error { return r.c.deps.Sink.Commit(ctx, txn) }), ""
	if err != nil {
		failure = err.Error()
	}
	endSpan(span, failure, r.c.deps.Now())
	return err
}
