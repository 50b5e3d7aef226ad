// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlptest is an OpenTelemetry collector for tests: it takes spans by OTLP over HTTP,
// decodes them with the official messages, and keeps them.
package otlptest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Path is the path that takes spans.
const Path = "/v1/traces"

// Receiver is a collector. Any goroutine may call its methods.
type Receiver struct {
	server *httptest.Server

	mu       sync.Mutex
	spans    []Span
	bad      error
	requests int
	hold     chan struct{} // not nil: a request waits until it is closed
	status   int           // not 0: of all answers, and nothing is kept
}

// Span is one span that was received.
type Span struct {
	Trace, ID, Parent string // as hex digits; Parent is "" for the first span of a trace
	Name              string
	Began, Ended      time.Time
	Failed            bool
	Failure           string
	Attributes        map[string]string // a list has spaces between its items
	Resource          map[string]string
	Links             []string // IDs of spans
}

// New returns a Receiver that serves on l, which it closes.
func New(l net.Listener) *Receiver {
	r := &Receiver{}
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(r.take))
	_ = r.server.Listener.Close()
	r.server.Listener = l
	r.server.Start()
	return r
}

// URL returns the endpoint for exporters.
func (r *Receiver) URL() string { return r.server.URL + Path }

// Close ends the server. Requests that Hold has stopped end.
func (r *Receiver) Close() {
	r.Release()
	r.server.CloseClientConnections()
	r.server.Close()
}

// Hold lets all requests wait until Release.
func (r *Receiver) Hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = make(chan struct{})
}

// Release ends Hold.
func (r *Receiver) Release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold != nil {
		close(r.hold)
		r.hold = nil
	}
}

// Answer sets the status of all answers; 0: 200, and the spans are kept.
func (r *Receiver) Answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// Requests returns the number of requests that have come.
func (r *Receiver) Requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

// Spans returns the spans so far, and an error for a request that is not OTLP.
func (r *Receiver) Spans() ([]Span, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans), r.bad
}

func (r *Receiver) take(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests++
	hold, status := r.hold, r.status
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-req.Context().Done():
			return
		}
	}
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	spans, err := read(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.bad = err
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.spans = append(r.spans, spans...)
	w.Header().Set("Content-Type", "application/x-protobuf")
	answer, _ := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
	_, _ = w.Write(answer)
}

// read decodes one request.
func read(req *http.Request) (all []Span, err error) {
	if req.Method != http.MethodPost || req.URL.Path != Path ||
		req.Header.Get("Content-Type") != "application/x-protobuf" {
		return nil, fmt.Errorf("%s %s of %s is not OTLP", req.Method, req.URL, req.Header.Get("Content-Type"))
	}
	body := io.Reader(req.Body)
	if req.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return nil, err
		}
	}
	text, err := io.ReadAll(body)
	var m collectorpb.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(text, &m)
	}
	for _, resource := range m.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, x := range scope.GetSpans() {
				span := spanOf(x)
				span.Resource = values(resource.GetResource().GetAttributes())
				all = append(all, span)
			}
		}
	}
	return all, err
}

func spanOf(x *tracepb.Span) Span {
	span := Span{
		Trace:      hex.EncodeToString(x.GetTraceId()),
		ID:         hex.EncodeToString(x.GetSpanId()),
		Parent:     hex.EncodeToString(x.GetParentSpanId()),
		Name:       x.GetName(),
		Began:      time.Unix(0, int64(x.GetStartTimeUnixNano())),
		Ended:      time.Unix(0, int64(x.GetEndTimeUnixNano())),
		Failed:     x.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
		Failure:    x.GetStatus().GetMessage(),
		Attributes: values(x.GetAttributes()),
	}
	for _, l := range x.GetLinks() {
		span.Links = append(span.Links, hex.EncodeToString(l.GetSpanId()))
	}
	return span
}

func values(all []*commonpb.KeyValue) map[string]string {
	texts := map[string]string{}
	for _, x := range all {
		switch v := x.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			texts[x.GetKey()] = v.StringValue
		case *commonpb.AnyValue_ArrayValue:
			for i, item := range v.ArrayValue.GetValues() {
				if i > 0 {
					texts[x.GetKey()] += " "
				}
				texts[x.GetKey()] += item.GetStringValue()
			}
		case *commonpb.AnyValue_IntValue:
			texts[x.GetKey()] = fmt.Sprint(v.IntValue)
		case *commonpb.AnyValue_BoolValue:
			texts[x.GetKey()] = fmt.Sprint(v.BoolValue)
		}
	}
	return texts
}
