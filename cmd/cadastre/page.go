// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/web"
)

func (a *app) pageCmd() *cobra.Command {
	listen := "127.0.0.1:0"
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Show the map of this node's addresses in a browser",
		Long: `page shows the agent's page to a browser on this machine: it listens on a loopback
address and passes what the page asks for to the agent's socket. It passes nothing that
changes the agent's state, and answers only a browser that was opened with the printed
address, which has a key that is new each time. Ctrl-C ends it.

To see a node from another machine, forward the port with ssh, or set cadastre.rest in
contiv.conf.`,
		Example: `  cadastre page
  cadastre page --listen 127.0.0.1:8080`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.page(ctx, listen)
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", listen, "the loopback address to listen on; port 0: a free one")
	return cmd
}

func (a *app) page(ctx context.Context, listen string) error {
	at, err := netip.ParseAddrPort(listen)
	if err != nil || !at.Addr().IsLoopback() {
		return usagef("page: --listen %q: want a loopback address and a port, such as 127.0.0.1:8080", listen)
	}
	if err := a.client().get(ctx, localapi.PathStatus, &localapi.Status{}); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	p := newPageProxy(a.client(), l.Addr().String(), rand.Text())
	fmt.Fprintf(a.stdout, "http://%s%s?key=%s\n", p.host, web.Path, p.key)
	return httpserver.New(httpserver.Config{Listener: l, Handler: p}).Serve(ctx)
}

// pageProxy passes the requests of the page to the agent. Every user of the machine can
// connect to it, so it wants its key: first in the address, then in a cookie.
type pageProxy struct {
	host  string // that browsers must name, against names of others that resolve to it
	key   string
	agent *httputil.ReverseProxy
}

func newPageProxy(c *client, host, key string) *pageProxy {
	return &pageProxy{host: host, key: key, agent: &httputil.ReverseProxy{
		Transport:     c.http.Transport,
		FlushInterval: -1, // events are shown at once
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "agent"})
			r.Out.Header.Del("Cookie")
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}}
}

// pageKey names the argument with the key, and begins the cookie's name.
const pageKey = "key"

// ServeHTTP passes a request on, or refuses it.
func (p *pageProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Host != p.host:
		http.Error(w, "this address is "+p.host, http.StatusMisdirectedRequest)
	case p.isKey(r.URL.Query().Get(pageKey)):
		http.SetCookie(w, &http.Cookie{
			Name: p.cookie(), Value: p.key, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		})
		http.Redirect(w, r, web.Path, http.StatusSeeOther)
	case !p.hasKey(r):
		http.Error(w, "open the address that \"cadastre page\" has printed: it has the key", http.StatusForbidden)
	case r.Method != http.MethodGet || !passes(r.URL.Path):
		http.Error(w, r.Method+" "+r.URL.Path+" is not part of the page", http.StatusForbidden)
	default:
		p.agent.ServeHTTP(w, r)
	}
}

func (p *pageProxy) isKey(s string) bool {
	return subtle.ConstantTimeCompare([]byte(s), []byte(p.key)) == 1
}

// cookie names the cookie with the key. All ports of a host share their cookies, so that the
// name has the port.
func (p *pageProxy) cookie() string {
	_, port, _ := net.SplitHostPort(p.host)
	return pageKey + "-" + port
}

// hasKey reports whether a cookie has the key.
func (p *pageProxy) hasKey(r *http.Request) bool {
	c, err := r.Cookie(p.cookie())
	return err == nil && p.isKey(c.Value)
}

// passes reports whether the page asks for a path, which must not lead elsewhere by "..".
func passes(name string) bool {
	if path.Clean(name) != strings.TrimSuffix(name, "/") {
		return false
	}
	return strings.HasPrefix(name, web.Path) || slices.Contains([]string{
		localapi.PathMap, localapi.PathMapSearch, localapi.PathMapChanges, localapi.PathMapFindings,
		localapi.PathStatus, localapi.PathLeases, localapi.PathEvents, localapi.PathExplain, localapi.PathHistory,
	}, name)
}
