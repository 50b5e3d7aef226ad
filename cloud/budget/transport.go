// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// peeked is the part of an answer's body that Peek returns at most.
const peeked = 4096

// transport takes a token for each request.
type transport struct {
	budget *Budget
	base   http.RoundTripper
	name   func(*http.Request) string
}

// Transport returns a RoundTripper that takes a token for each request and sends it with
// base; nil: http.DefaultTransport. The name of a request is the label "operation" of the
// metrics: name returns one of few, without IDs. It may read the body by GetBody.
//
// http.Transport itself sends a request once more if a connection that it has used before
// is closed without an answer and the request is repeatable (GET). That repetition takes
// no token.
func (b *Budget) Transport(base http.RoundTripper, name func(*http.Request) string) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{b, base, name}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	b, operation := t.budget, t.name(r)
	if err := b.Take(r.Context(), operation); err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, err
	}
	sent := b.config.Now()
	answer, err := t.base.RoundTrip(r)
	b.metrics.duration.WithLabelValues(operation).Observe(b.config.Now().Sub(sent).Seconds())
	outcome := outcomeNoAnswer
	if err == nil {
		outcome = outcomeOf(answer)
		if b.config.Throttled(answer) {
			outcome = outcomeThrottled
			b.Slow(sent, retryAfter(answer, b.config.Now()))
		}
	}
	b.metrics.requests.WithLabelValues(operation, outcome).Inc()
	return answer, err //nolint:wrapcheck // a RoundTripper is transparent: the client's library knows base's errors
}

func outcomeOf(answer *http.Response) string {
	switch {
	case answer.StatusCode >= http.StatusInternalServerError:
		return outcomeServerError
	case answer.StatusCode >= http.StatusBadRequest:
		return outcomeRefused
	}
	return outcomeDone
}

// retryAfter returns how long the answer asks to wait: in seconds, or until a date.
func retryAfter(answer *http.Response, now time.Time) time.Duration {
	text := answer.Header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 {
		return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// Throttled reports whether an answer refuses a request for its rate. Such an answer has
// status 429 or 503, 413 with a Retry-After (Nova), or 400 with an error code of AWS that
// says so.
func Throttled(answer *http.Response) bool {
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusRequestEntityTooLarge:
		return answer.Header.Get("Retry-After") != ""
	case http.StatusBadRequest:
		text := string(Peek(answer))
		for _, code := range []string{"RequestLimitExceeded", "Throttling", "TooManyRequests", "RequestThrottled"} {
			if strings.Contains(text, "<Code>"+code) || strings.Contains(text, `"`+code) {
				return true
			}
		}
	}
	return false
}

// Peek returns the first bytes of an answer's body, which can still be read from its begin.
func Peek(answer *http.Response) []byte {
	if answer.Body == nil {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(answer.Body, peeked))
	rest := io.Reader(answer.Body)
	if err != nil {
		rest = failed{err}
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), answer.Body}
	return head
}

// failed replaces the rest of a body whose reading has failed.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
