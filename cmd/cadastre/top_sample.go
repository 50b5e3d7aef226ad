// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// sample holds the answers of the agent at one time.
type sample struct {
	at       time.Time
	status   localapi.Status
	nodes    []localapi.Node // nil: Docker's plugin has none
	findings localapi.MapFindings
	counters counters
}

// counters holds the counters of the agent's metrics.
type counters struct {
	adds, dels, failed     float64 // CNI requests
	commits, failedCommits float64
	commitSeconds          float64 // of all commits together
	processed              float64 // events
	started                time.Time
}

// sample asks the agent for everything that top shows.
func (a *app) sample(ctx context.Context) (*sample, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c, s := a.client(), &sample{}
	if err := c.get(ctx, localapi.PathStatus, &s.status); err != nil {
		return nil, err
	}
	if err := optional(c.get(ctx, localapi.PathNodes, &s.nodes)); err != nil {
		return nil, err
	}
	if err := c.get(ctx, localapi.PathMapFindings, &s.findings); err != nil {
		if optional(err) != nil {
			return nil, err
		}
		s.findings.Error = err.Error()
	}
	families, err := c.metrics(ctx)
	if optional(err) != nil {
		return nil, err
	}
	s.counters = countersOf(families, &s.status)
	s.at = a.now()
	return s, nil
}

// optional returns an error unless the agent itself has refused the request: one that has
// no answer to it can still be shown.
func optional(err error) error {
	var refused *refusedError
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// metrics returns the agent's metrics by name.
func (c *client) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	body, err := c.do(ctx, http.MethodGet, localapi.PathMetrics, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer to %s: %w", localapi.PathMetrics, c.plain(ctx, err))
	}
	return families, nil
}

func countersOf(families map[string]*dto.MetricFamily, s *localapi.Status) counters {
	c := counters{processed: float64(s.Loop.Processed), started: s.Started}
	for _, m := range families["cadastre_cni_requests_total"].GetMetric() {
		n := m.GetCounter().GetValue()
		switch {
		case labelOf(m, "code") != "0":
			c.failed += n
		case labelOf(m, "command") == "ADD":
			c.adds += n
		case labelOf(m, "command") == "DEL":
			c.dels += n
		}
	}
	for _, m := range families["cadastre_store_commit_duration_seconds"].GetMetric() {
		n := float64(m.GetHistogram().GetSampleCount())
		if labelOf(m, "outcome") != "ok" {
			c.failedCommits += n
			continue
		}
		c.commits += n
		c.commitSeconds += m.GetHistogram().GetSampleSum()
	}
	return c
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
