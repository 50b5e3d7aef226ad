// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/url"
	"strconv"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// TracesProtocol selects the protocol of the export of spans.
type TracesProtocol string

// TracesHTTP is OTLP over HTTP.
const TracesHTTP TracesProtocol = "http"

// Traces configures the export of the spans of CNI requests; there is none if Endpoint is
// empty.
type Traces struct {
	Endpoint string         `json:"endpoint"` // URL of an OpenTelemetry collector
	Protocol TracesProtocol `json:"protocol"`
	Sampling float64        `json:"sampling"` // part of the requests whose spans are exported
}

func defaultTraces() Traces { return Traces{Protocol: TracesHTTP, Sampling: 1} }

func (t *Traces) validate(p *yamldoc.Collector) {
	const section = "cadastre.traces."
	if t.Protocol != TracesHTTP {
		p.Add(RuleEnum, section+"protocol", string(t.Protocol), "is not allowed: write %s", TracesHTTP)
	}
	if t.Sampling < 0 || t.Sampling > 1 {
		p.Add(RuleRange, section+"sampling", strconv.FormatFloat(t.Sampling, 'g', -1, 64),
			"is not a part of all requests: write a number from 0 to 1, such as 0.1")
	}
	if t.Endpoint == "" {
		return
	}
	u, err := url.Parse(t.Endpoint)
	switch {
	case err == nil && u.User != nil:
		p.Add(RuleTraces, section+"endpoint", "",
			"holds a user or password: remove them, and set OTEL_EXPORTER_OTLP_HEADERS in the agent's environment")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		p.Add(RuleTraces, section+"endpoint", t.Endpoint,
			"is not the URL of a collector: write one such as http://127.0.0.1:4318/v1/traces")
	}
}
