// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package tracing exports the spans of an agent to an OpenTelemetry collector, by OTLP over
// HTTP. It is the only package that links OpenTelemetry's SDK. The others add spans to the
// one in their context, by the interfaces of go.opentelemetry.io/otel/trace, which do nothing
// if there is none.
//
// A Tracer exports in a goroutine of its own. Any goroutine may call its methods; none of
// them waits for the collector, except Shutdown. Spans that the collector does not take are
// lost, and nothing else is; the log has one line when that begins and one when it ends.
package tracing
