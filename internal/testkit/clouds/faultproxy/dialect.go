// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faultproxy

import (
	"encoding/xml"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Dialect is the form of an API. Its functions are called by any goroutine.
type Dialect struct {
	// Operation returns the name of a request for plans and counts, without IDs.
	Operation func(r *http.Request, body []byte) string
	// Read reports whether a request changes nothing.
	Read func(r *http.Request, body []byte) bool
	// Throttle writes the answer to a request above the rate.
	Throttle func(w http.ResponseWriter, retryAfter time.Duration)
	// Fail writes the answer of a server that has failed.
	Fail func(w http.ResponseWriter)
}

// EC2 returns the dialect of EC2's query API: the operation is the parameter Action.
func EC2() Dialect {
	action := func(r *http.Request, body []byte) string {
		form, _ := url.ParseQuery(string(body))
		if name := form.Get("Action"); name != "" {
			return name
		}
		return r.URL.Query().Get("Action")
	}
	fail := func(w http.ResponseWriter, status int, code, message string) {
		w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
		w.WriteHeader(status)
		type failure struct {
			XMLName   xml.Name `xml:"Response"`
			Code      string   `xml:"Errors>Error>Code"`
			Message   string   `xml:"Errors>Error>Message"`
			RequestID string   `xml:"RequestID"`
		}
		text, _ := xml.Marshal(failure{Code: code, Message: message, RequestID: "faultproxy"})
		_, _ = w.Write(text)
	}
	return Dialect{
		Operation: action,
		Read:      func(r *http.Request, body []byte) bool { return strings.HasPrefix(action(r, body), "Describe") },
		Throttle: func(w http.ResponseWriter, _ time.Duration) {
			fail(w, http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded.")
		},
		Fail: func(w http.ResponseWriter) {
			fail(w, http.StatusInternalServerError, "InternalError", "An internal error has occurred")
		},
	}
}

// OpenStack returns the dialect of OpenStack's REST APIs: the operation is the method and
// the kind of object, such as "PUT ports".
func OpenStack() Dialect {
	return Dialect{
		Operation: func(r *http.Request, _ []byte) string {
			kind, parts := "version", strings.Split(strings.Trim(r.URL.Path, "/"), "/")
			for i, part := range parts[:len(parts)-1] {
				if strings.HasPrefix(part, "v2") {
					kind = strings.TrimSuffix(parts[i+1], ".json")
				}
			}
			return r.Method + " " + kind
		},
		Read: func(r *http.Request, _ []byte) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead },
		Throttle: func(w http.ResponseWriter, retryAfter time.Duration) {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = fmt.Fprint(w, `{"overLimit": {"code": 429, "message": "This request was rate-limited."}}`)
		},
		Fail: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = fmt.Fprint(
				w,
				`{"NeutronError": {"type": "HTTPInternalServerError", "message": "Request Failed: internal server error", "detail": ""}}`,
			)
		},
	}
}
