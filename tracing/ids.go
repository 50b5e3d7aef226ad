// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"encoding/binary"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// given holds the IDs of a span that another process has made.
type given struct {
	trace trace.TraceID
	span  trace.SpanID
}

// idsKey is the key of a given in a context.
type idsKey struct{}

func givenIn(ctx context.Context) (g given, ok bool) {
	g, ok = ctx.Value(idsKey{}).(given)
	return g, ok
}

// ids makes the IDs of spans, or takes them from the context.
type ids struct{ random func() uint64 }

// NewIDs implements sdktrace.IDGenerator.
func (i ids) NewIDs(ctx context.Context) (id trace.TraceID, span trace.SpanID) {
	if g, ok := givenIn(ctx); ok {
		return g.trace, g.span
	}
	binary.BigEndian.PutUint64(id[:8], i.random())
	binary.BigEndian.PutUint64(id[8:], max(i.random(), 1)) // an ID must not be zero
	return id, i.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (i ids) NewSpanID(ctx context.Context, _ trace.TraceID) (span trace.SpanID) {
	if g, ok := givenIn(ctx); ok {
		return g.span
	}
	binary.BigEndian.PutUint64(span[:], max(i.random(), 1))
	return span
}

// sampler samples the spans of another process whose request was sampled.
type sampler struct{ sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if _, ok := givenIn(p.ParentContext); ok {
		return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	}
	return s.Sampler.ShouldSample(p)
}
