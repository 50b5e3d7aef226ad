// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests what Prometheus and Grafana see. Its tests compare docs/metrics.md
// with the metrics of all programs and libraries and with the alerts of deploy/monitoring.
// They check the names of metrics with client_golang's linter, and run the unit tests of the
// alerts with promtool. They evaluate every query of the dashboard in a real Prometheus that
// scrapes real agents and a real operator. "make ci SUITE=e2e-metrics" installs what they need.
package monitoring
