// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// pageOf serves an agent's socket whose answers name the request, and a proxy before it.
func pageOf(t *testing.T, g Gomega) (*pageProxy, *[]*http.Request) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	g.Expect(err).NotTo(HaveOccurred())
	var seen []*http.Request
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = append(seen, r)
	})}}
	server.Start()
	t.Cleanup(server.Close)
	return newPageProxy(clientOf(socket), "127.0.0.1:4711", "secret"), &seen
}

func TestPageProxyWantsItsKey(t *testing.T) {
	g := NewWithT(t)
	p, seen := pageOf(t, g)
	ask := func(method, url, cookie string) int {
		r := httptest.NewRequest(method, url, nil)
		if cookie != "" {
			r.Header.Set("Cookie", cookie)
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w.Code
	}
	const good = "key-4711=secret"
	for _, refused := range [][3]string{
		{"GET", "http://127.0.0.1:4711/v1/map", ""},
		{"GET", "http://127.0.0.1:4711/v1/map", "key-4711=guess"},
		{"GET", "http://127.0.0.1:4711/v1/map", "key-4712=secret"},
		{"GET", "http://127.0.0.1:4711/v1/map?key=guess", ""},
		{"POST", "http://127.0.0.1:4711/v1/release", good},
		{"POST", "http://127.0.0.1:4711/v1/map", good},
		{"GET", "http://127.0.0.1:4711/v1/backup", good},
		{"GET", "http://127.0.0.1:4711/v1/logs", good},
		{"GET", "http://127.0.0.1:4711/page/../v1/backup", good},
	} {
		g.Expect(ask(refused[0], refused[1], refused[2])).To(Equal(http.StatusForbidden), "%v", refused)
	}
	g.Expect(ask("GET", "http://rebound.example.org:4711/v1/map", good)).To(Equal(http.StatusMisdirectedRequest))
	g.Expect(*seen).To(BeEmpty())
	g.Expect(ask("GET", "http://127.0.0.1:4711/v1/map?pool=a", good)).To(Equal(http.StatusOK))
	g.Expect(*seen).To(HaveLen(1))
	g.Expect((*seen)[0].URL.RawQuery).To(Equal("pool=a"))
	g.Expect((*seen)[0].Header.Get("Cookie")).To(BeEmpty(), "the agent does not get the key")
}

func TestPageProxyTurnsTheKeyIntoACookie(t *testing.T) {
	g := NewWithT(t)
	p, _ := pageOf(t, g)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:4711/page/?key=secret", nil))
	g.Expect(w.Code).To(Equal(http.StatusSeeOther))
	g.Expect(w.Header().Get("Location")).To(Equal("/page/"), "the address bar does not keep the key")
	cookie := w.Result().Cookies()[0]
	g.Expect(cookie.HttpOnly).To(BeTrue())
	g.Expect(cookie.Name + "=" + cookie.Value).To(Equal("key-4711=secret"))
}

func TestPageListensOnLoopbackOnly(t *testing.T) {
	g := NewWithT(t)
	for _, bad := range []string{"0.0.0.0:1", "192.0.2.1:80", "localhost", ":80"} {
		var out, errs strings.Builder
		g.Expect(newApp(nil, &out, &errs, func(string) string { return "" }).run(t.Context(), []string{"page", "--listen", bad})).To(Equal(exitUsage), bad)
		g.Expect(errs.String()).To(ContainSubstring("want a loopback address"), bad)
	}
}
