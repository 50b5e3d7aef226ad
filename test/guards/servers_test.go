// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"testing"

	. "github.com/onsi/gomega"
)

// servers finds HTTP servers that shipped code builds outside of package httpserver,
// whose limits they would not have.
func servers(s source) []finding {
	if s.test() || s.in("test", "httpserver") {
		return nil
	}
	var found []finding
	for _, sel := range selectors(s, "net/http", "Server", "Serve", "ServeTLS", "ListenAndServe", "ListenAndServeTLS") {
		found = append(found, finding{s.path, s.line(sel), "http." + sel.Sel.Name, "build the server with httpserver.New, which limits time, connections and bodies"})
	}
	return found
}

func TestServersAreFound(t *testing.T) {
	g := NewWithT(t)
	const bad = `package p
import web "net/http"
func f(l net.Listener, h web.Handler) {
	s := &web.Server{Handler: h}
	var t web.Server
	_ = web.Serve(l, h)
	_ = web.ListenAndServe("", h)
	_ = web.NewServeMux()
}
`
	g.Expect(subjects(t, servers, "plugins/p/p.go", bad)).To(Equal([]string{"http.Server", "http.Server", "http.Serve", "http.ListenAndServe"}))
	g.Expect(subjects(t, servers, "httpserver/p.go", bad)).To(BeEmpty())
	g.Expect(subjects(t, servers, "plugins/p/p_test.go", bad)).To(BeEmpty())
}
