// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/internal/version"
)

// serve runs the operator until ctx ends or a part of it fails.
func (p *operator) serve(ctx context.Context) error {
	p.log.Info("the operator starts", "version", version.Current(), "identity", p.identity)
	bind := p.options.bind
	if bind == "" {
		return p.runner.Run(ctx)
	}
	var encryption *tls.Config
	if files := p.options.tls; files.Cert != "" {
		c, err := files.Config()
		if err != nil {
			return fmt.Errorf("--%s, --%s, --%s: %w", flagTLSCert, flagTLSKey, flagClientCA, err)
		}
		encryption = c
		if files.ClientCA != "" { // a kubelet has none for its probes; /metrics requires one
			encryption.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	listener, err := net.Listen("tcp", bind)
	if err != nil {
		return fmt.Errorf("--%s=%s: %w", flagBind, bind, err)
	}
	if p.listening != nil {
		p.listening(listener.Addr())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	var failed error
	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // probes are answered until the work has ended
	defer stop()
	server := httpserver.New(
		httpserver.Config{
			Listener: listener,
			TLS:      encryption,
			Handler:  p.routes(serving.Done()),
			Limits:   httpserver.Limits{Connections: connections},
			Log:      p.log,
		},
	)
	group.Go(func() {
		failed = server.Serve(serving)
		cancel()
	})
	if p.page != nil {
		group.Go(func() { p.page.objects.Run(serving) })
	}
	err = p.runner.Run(ctx)
	stop()
	group.Wait()
	return errors.Join(err, failed)
}

// connections limits the callers of probes and metrics that are served at the same
// time, far below the limit of open files.
const connections = 64

// routes returns the handlers of the listener. stop ends the streams of events.
func (p *operator) routes(stop <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", p.answer(p.alive))
	mux.HandleFunc("GET /healthz", p.answer(p.alive))
	mux.HandleFunc("GET /readyz", p.answer(p.ready))
	if p.page != nil {
		p.routePage(mux, stop)
	}
	mux.Handle("GET /metrics", p.certified(promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{})))
	return mux
}

// certified refuses callers without a certificate if there are authorities for them.
func (p *operator) certified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.options.tls.ClientCA != "" && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) {
			http.Error(
				w,
				"GET "+r.URL.Path+" requires a client certificate of an authority in --"+flagClientCA,
				http.StatusForbidden,
			)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check holds one line of a probe's answer.
type check struct {
	name string
	err  error
	note string
}

// answer responds with all checks: 200 if none has failed, else 503.
func (p *operator) answer(checks func() []check) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		status, text := http.StatusOK, new(strings.Builder)
		for _, c := range checks() {
			switch {
			case c.err != nil:
				status = http.StatusServiceUnavailable
				fmt.Fprintf(text, "[-]%s: %s\n", c.name, strings.ReplaceAll(c.err.Error(), "\n", ": "))
			case c.note != "":
				fmt.Fprintf(text, "[+]%s: %s\n", c.name, c.note)
			default:
				fmt.Fprintf(text, "[+]%s ok\n", c.name)
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(text.String()))
	}
}

// alive fails if the election has stopped, so that a supervisor restarts this
// process.
func (p *operator) alive() []check {
	return []check{{name: "election", err: p.runner.Alive()}}
}

// ready fails while a controller has not read all that it needs. An operator
// that waits for its lease is ready to lead.
func (p *operator) ready() []check {
	if !p.runner.Leading() {
		return []check{{name: "election", note: "waiting to lead"}}
	}
	all := []check{{name: "election", note: "leading"}}
	for _, c := range p.runner.Running() {
		all = append(all, check{name: c.Name, err: c.Waiting()})
	}
	return all
}
