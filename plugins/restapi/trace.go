// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// Traces makes the spans of CNI requests.
type Traces interface {
	// Request begins the span of a request, as a child of the span of its sender.
	// A traceparent that cannot be read names none.
	Request(ctx context.Context, name, traceparent string, at time.Time) (context.Context, trace.Span)
	// Process makes the spans of the plugin's process.
	Process(p cni.Process)
}

// traced is the span of one request. Its methods do nothing if it has none.
type traced struct {
	span trace.Span
	now  func() time.Time
}

// trace begins the span of an ADD or a DEL, and returns the context of the request with it.
func (p *RESTAPI) trace(r *http.Request, command string, began time.Time) (context.Context, traced) {
	if p.Traces == nil || command != "ADD" && command != "DEL" {
		return r.Context(), traced{}
	}
	ctx, span := p.Traces.Request(r.Context(), "agent "+command, r.Header.Get(cni.HeaderTrace), began)
	if !span.IsRecording() {
		return r.Context(), traced{}
	}
	return ctx, traced{span, p.now}
}

// answer announces the trace to the plugin, and returns the time at which the request was
// served. The plugin may have the answer before the agent knows that it was delivered.
func (t traced) answer(w http.ResponseWriter) (at time.Time) {
	if t.span == nil {
		return at
	}
	w.Header().Set(cni.HeaderTraced, "1")
	return t.now()
}

// refuse records an answer that is not a result of CNI.
func (t traced) refuse(err error) {
	if t.span == nil {
		return
	}
	t.span.SetAttributes(attribute.String("cadastre.outcome", "not served"))
	t.span.SetStatus(codes.Error, err.Error())
}

// end ends the span with the time that answer has returned. err is not nil if the answer was
// not delivered.
func (t traced) end(at time.Time, err error) {
	if t.span == nil {
		return
	}
	if err != nil {
		t.span.SetAttributes(attribute.String("cadastre.undelivered", err.Error()))
	}
	t.span.End(trace.WithTimestamp(at))
}

// maxProcess bounds the body of PathProcess.
const maxProcess = 64 << 10

// cniProcess takes the times of the plugin's process. The plugin does not wait for it.
func (p *RESTAPI) cniProcess(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxProcess))
	var process cni.Process
	if err == nil {
		process, err = cni.ParseProcess(body)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("body of %s: %w", r.URL.Path, err))
		return
	}
	p.Traces.Process(process)
	w.WriteHeader(http.StatusNoContent)
}
