// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter logs the first of failures in a row, and its end. It hides them from the SDK,
// which would report each to a global handler.
type exporter struct {
	sdktrace.SpanExporter
	log      *slog.Logger
	endpoint string
	failing  atomic.Bool
}

// ExportSpans exports spans, or loses them.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.failing.Swap(true):
		e.log.Warn("the collector does not take spans: they are lost until it does",
			"endpoint", e.endpoint, "error", err)
	case err == nil && e.failing.Swap(false):
		e.log.Info("the collector takes spans again", "endpoint", e.endpoint)
	}
	return nil
}
