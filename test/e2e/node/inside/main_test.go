// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestFetch: the answer of a server is printed, and an error is one.
func TestFetch(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(answer("pod"))
	defer server.Close()
	var out strings.Builder
	g.Expect(run(t.Context(), []string{"fetch", server.URL}, &out)).To(Succeed())
	g.Expect(out.String()).To(Equal("pod 127.0.0.1\n"))
	broken := httptest.NewServer(http.NotFoundHandler())
	defer broken.Close()
	g.Expect(run(t.Context(), []string{"fetch", broken.URL}, &out)).To(MatchError(ContainSubstring("404")))
	g.Expect(run(t.Context(), []string{"fetch", "http://127.0.0.1:1/"}, &out)).NotTo(Succeed())
	g.Expect(run(t.Context(), []string{"jump"}, &out)).To(MatchError(ContainSubstring("want serve")))
}
