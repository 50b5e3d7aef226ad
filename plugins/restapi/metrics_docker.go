// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"net/http"
	"strings"
	"time"
)

// WatchDocker returns a function that wraps the handler of Docker's protocol and counts its
// requests. now is the clock of their time. It must be called at most once, before the first
// scrape.
func (m *Metrics) WatchDocker(now func() time.Time) func(http.Handler) http.Handler {
	took := histogram("cadastre_docker_request_duration_seconds",
		"Time of a request of the Docker engine, by request and outcome.", "request", "outcome")
	for _, request := range dockerRequests() {
		took.WithLabelValues(request, outcomeOK)
		took.WithLabelValues(request, outcomeError)
	}
	m.Registry.MustRegister(took)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			began, answer := now(), &statusWriter{ResponseWriter: w, status: http.StatusOK}
			next.ServeHTTP(answer, r)
			request := strings.TrimPrefix(r.URL.Path, "/IpamDriver.")
			for _, known := range dockerRequests() {
				if request == known {
					took.WithLabelValues(request, outcomeIf(answer.status < 400)).Observe(now().Sub(began).Seconds())
				}
			}
		})
	}
}

// dockerRequests returns the requests that change pools or addresses.
func dockerRequests() []string {
	return []string{"RequestPool", "ReleasePool", "RequestAddress", "ReleaseAddress"}
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader notes the status and passes it on.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the writer that is wrapped, for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
