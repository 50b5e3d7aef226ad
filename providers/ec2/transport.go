// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// bodies is a RoundTripper that gives each request a body of its own.
//
// The SDK closes the body of a request as soon as the answer begins. Its body then answers a
// further read of net/http, which only looks for surplus bytes, with an error, and net/http
// closes the connection while the answer is read (smithy-go 1.28.9: WriteTo of a closed
// body returns io.EOF). The request was done, and its answer would be lost.
type bodies struct {
	base http.RoundTripper // nil: http.DefaultTransport
}

// RoundTrip implements http.RoundTripper.
func (b bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	base := b.base
	if base == nil {
		base = http.DefaultTransport
	}
	if r.Body == nil || r.Body == http.NoBody {
		return base.RoundTrip(r)
	}
	text, err := io.ReadAll(r.Body)
	if closed := r.Body.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return nil, fmt.Errorf("read the body of the request: %w", err)
	}
	own := r.Clone(r.Context())
	own.ContentLength = int64(len(text))
	own.Body = io.NopCloser(bytes.NewReader(text))
	// net/http uses it only for a connection that the server had closed before.
	own.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return base.RoundTrip(own)
}
