// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

const (
	exportEvery   = time.Second      // default of Options.Every
	exportTimeout = 5 * time.Second  // of one request to the collector, with its repetitions
	firstRetry    = time.Second / 2  // pause before a request is repeated
	maxQueue      = 8192             // spans that wait for the collector; further ones are lost
	scope         = "cadastre.agent" // of all spans
)

// Options holds the options of New.
type Options struct {
	Log      *slog.Logger  // nil: no log
	Endpoint string        // URL of the collector, such as http://127.0.0.1:4318/v1/traces
	Sampling float64       // part of the traces that are exported, from 0 to 1
	Node     string        // name of the node
	Instance string        // UUID of the agent
	Version  string        // of the agent
	Every    time.Duration // the longest time for which a span waits for others; 0: a second
	Random   func() uint64 // of IDs; nil: random
}

// Tracer makes spans and exports them.
type Tracer struct {
	node     string
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns a Tracer. It does not connect to the collector.
func New(opt Options) (*Tracer, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Random == nil {
		opt.Random = rand.Uint64
	}
	endpoint, err := url.Parse(opt.Endpoint)
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("trace to %q: want a URL such as http://127.0.0.1:4318/v1/traces", opt.Endpoint)
	}
	client, err := otlptracehttp.New(
		context.Background(),
		otlptracehttp.WithEndpointURL(opt.Endpoint),
		otlptracehttp.WithTimeout(exportTimeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled:         true,
			InitialInterval: firstRetry,
			MaxInterval:     exportTimeout,
			MaxElapsedTime:  exportTimeout,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("trace to %s: %w", endpoint.Redacted(), err)
	}
	ratio := sdktrace.TraceIDRatioBased(opt.Sampling)
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sampler{sdktrace.ParentBased(ratio, sdktrace.WithRemoteParentNotSampled(ratio))}),
		sdktrace.WithIDGenerator(ids{opt.Random}),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "cadastre-agent"),
			attribute.String("service.version", opt.Version),
			attribute.String("service.instance.id", opt.Instance),
			attribute.String("k8s.node.name", opt.Node),
		)),
		sdktrace.WithBatcher(
			&exporter{SpanExporter: client, log: opt.Log, endpoint: endpoint.Redacted()},
			sdktrace.WithBatchTimeout(cmp.Or(opt.Every, exportEvery)),
			sdktrace.WithExportTimeout(exportTimeout),
			sdktrace.WithMaxQueueSize(maxQueue),
		),
	)
	return &Tracer{node: opt.Node, provider: provider, tracer: provider.Tracer(scope)}, nil
}

// Request begins the span of a request. traceparent is that of its sender; a text that is
// not one begins a trace. The span does not record if the trace is not sampled.
func (t *Tracer) Request(
	ctx context.Context,
	name, traceparent string,
	at time.Time,
) (context.Context, trace.Span) {
	if parent, ok := cni.ParseTraceparent(traceparent); ok {
		var flags trace.TraceFlags
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID:    parent.Trace,
			SpanID:     parent.Span,
			TraceFlags: flags.WithSampled(parent.Sampled),
		}))
	}
	return t.tracer.Start(
		ctx,
		name,
		trace.WithTimestamp(at),
		trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("cadastre.node", t.node)),
	)
}

// Process exports the spans of the process of the CNI plugin: the first one of its trace,
// and its child, the parent of the request's span.
func (t *Tracer) Process(p cni.Process) {
	withIDs := func(id [8]byte) context.Context {
		return context.WithValue(context.Background(), idsKey{}, given{p.Trace, id})
	}
	ctx, root := t.tracer.Start(
		withIDs(p.ID),
		"cadastre-cni "+p.Command,
		trace.WithNewRoot(),
		trace.WithTimestamp(p.Began),
		trace.WithAttributes(
			attribute.String("cadastre.node", t.node),
			attribute.String("cadastre.command", p.Command),
			attribute.Int("process.exit.code", p.Exit),
		),
	)
	_, exchange := t.tracer.Start(
		trace.ContextWithSpan(withIDs(p.Exchange), trace.SpanFromContext(ctx)),
		"socket",
		trace.WithTimestamp(p.Asked),
		trace.WithSpanKind(trace.SpanKindClient),
	)
	exchange.End(trace.WithTimestamp(p.Answered))
	if p.Exit != 0 {
		root.SetStatus(codes.Error, p.Error)
	}
	root.End(trace.WithTimestamp(p.Ended))
}

// Shutdown exports the spans that wait, until ctx ends.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("export the last spans: %w", err)
	}
	return nil
}
