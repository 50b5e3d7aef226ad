// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"cmp"
	"context"
	"net/netip"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// recorded returns the span of a request, nil if it is not traced.
func recorded(ctx context.Context) trace.Span {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span
	}
	return nil
}

// outcomes of requests, in their spans.
const (
	outcomeDone    = "done"
	outcomeRefused = "refused"
)

// describe sets the attributes of the span of a request, if it is traced. cerr is nil if the
// request has succeeded.
func describe(ctx context.Context, req cni.Request, reply cni.Reply, cerr *cni.Error) {
	span := recorded(ctx)
	if span == nil {
		return
	}
	addresses := req.Wanted
	if len(reply.IPs) > 0 {
		addresses = nil
	}
	for _, ip := range reply.IPs {
		addresses = append(addresses, withoutLength(ip.Address))
	}
	span.SetAttributes(
		attribute.String("cadastre.command", req.Command),
		attribute.String("cadastre.pool", cmp.Or(req.Pool, cni.DefaultPool)),
		attribute.StringSlice("cadastre.addresses", addresses),
		attribute.String("cadastre.network", req.Network),
		attribute.String("container.id", req.ContainerID),
		attribute.String("cadastre.if", req.IfName),
		attribute.String("k8s.namespace.name", req.Pod.Namespace),
		attribute.String("k8s.pod.name", req.Pod.Name),
	)
	if cerr == nil {
		span.SetAttributes(attribute.String("cadastre.outcome", outcomeDone))
		return
	}
	span.SetAttributes(
		attribute.String("cadastre.outcome", outcomeRefused),
		attribute.String("cadastre.reason", string(ReasonOf(cerr.Code))),
		attribute.Int("cadastre.code", int(cerr.Code)),
	)
	span.SetStatus(codes.Error, cerr.Msg)
}

// withoutLength returns the address of "10.1.1.2/24".
func withoutLength(text string) string {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().String()
	}
	return text
}
