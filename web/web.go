// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package web serves the page: a map of the addresses that a browser shows. The files of
// dist are built from src by "make page" and are part of the program.
//
// The page asks only the server that it came from; its Content-Security-Policy makes the
// browser refuse everything else. It changes nothing. Any goroutine may call the Handler.
package web

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// Path is the address of the page on the server.
const Path = "/page/"

//go:embed dist
var dist embed.FS

// policy lets the page load files of its own server only. Styles that scripts set are
// not affected by it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page below Path.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, Path)
		if name == "" {
			name = "index.html"
		}
		body, err := fs.ReadFile(dist, path.Join("dist", name))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		serve(w, r, name, body)
	})
}

func serve(w http.ResponseWriter, r *http.Request, name string, body []byte) {
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", mediaOf(name))
	_, _ = w.Write(body)
}

// mediaOf returns the media type of a file. It does not depend on the files of the machine,
// as package mime does.
func mediaOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	}
	return "text/plain; charset=utf-8"
}
