// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// call calls a function of a kind, in a child of the span in the context of the run if
// that is recorded. A panic is an error.
func (r *run) call(operation string, d *Descriptor, key string, f func(context.Context) error) error {
	parent := trace.SpanFromContext(r.ctx)
	if !parent.IsRecording() {
		return guard(func() error { return f(r.ctx) })
	}
	ctx, span := parent.TracerProvider().Tracer("cadastre.southbound").Start(
		r.ctx,
		operation+" "+d.Name(),
		trace.WithTimestamp(r.s.opt.Now()),
	)
	if key != "" {
		span.SetAttributes(attribute.String("cadastre.key", key))
	}
	err := guard(func() error { return f(ctx) })
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(r.s.opt.Now()))
	return err
}
