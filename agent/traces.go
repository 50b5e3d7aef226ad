// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/tracing"
)

// flushTimeout bounds the export of the last spans when the agent ends.
const flushTimeout = 3 * time.Second

// openTraces returns the Tracer of the configuration, nil if it has none.
func (a *Agent) openTraces(instance string) (*tracing.Tracer, error) {
	conf := a.conf.Cadastre.Traces
	if conf.Endpoint == "" {
		return nil, nil
	}
	return tracing.New(tracing.Options{
		Log:      a.log,
		Endpoint: conf.Endpoint,
		Sampling: conf.Sampling,
		Node:     a.node.Name,
		Instance: instance,
		Version:  version.Current(),
	})
}

// closeTraces exports the last spans, for a limited time. What is lost is not an error of the
// agent. traces may be nil.
func closeTraces(traces *tracing.Tracer, log *slog.Logger) {
	if traces == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := traces.Shutdown(ctx); err != nil {
		log.Warn("the last spans are lost", "error", err)
	}
}
