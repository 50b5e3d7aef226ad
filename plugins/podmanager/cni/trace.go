// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// PathProcess is the path of the agent's socket that takes a Process. The plugin does not
// wait for the answer.
const PathProcess = "/v1/cni/process"

// HeaderTrace names the header of a request with its Traceparent.
const HeaderTrace = "Traceparent"

// HeaderTraced names the header of an answer to a request that is traced, with the value
// "1". The plugin then sends its Process.
const HeaderTraced = "Cni-Traced"

// Traceparent identifies the span that a request belongs to, as "W3C Trace Context" has it.
type Traceparent struct {
	Trace   [16]byte
	Span    [8]byte
	Sampled bool // the sender records its span whatever the receiver does
}

// Append appends the value of HeaderTrace.
func (t Traceparent) Append(b []byte) []byte {
	b = hex.AppendEncode(append(b, "00-"...), t.Trace[:])
	b = hex.AppendEncode(append(b, '-'), t.Span[:])
	if t.Sampled {
		return append(b, "-01"...)
	}
	return append(b, "-00"...)
}

// ParseTraceparent reads the value of HeaderTrace. It reports false for a value that is
// none, which a receiver ignores.
func ParseTraceparent(text string) (t Traceparent, ok bool) {
	const length = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	if len(text) < length || text[2] != '-' || text[35] != '-' || text[52] != '-' || text != strings.ToLower(text) {
		return Traceparent{}, false
	}
	longer := len(text) > length
	if text[:2] == "ff" || longer && (text[:2] == "00" || text[length] != '-') {
		return Traceparent{}, false
	}
	flags, err := strconv.ParseUint(text[53:55], 16, 8)
	if _, verr := strconv.ParseUint(text[:2], 16, 8); err != nil || verr != nil {
		return Traceparent{}, false
	}
	if !decodeID(t.Trace[:], text[3:35]) || !decodeID(t.Span[:], text[36:52]) {
		return Traceparent{}, false
	}
	t.Sampled = flags&1 == 1
	return t, true
}

// decodeID decodes an ID that is not zero.
func decodeID(id []byte, text string) bool {
	n, err := hex.Decode(id, []byte(text))
	return err == nil && n == len(id) && len(bytes.Trim(id, "\x00")) > 0
}

// Process holds what the plugin's process tells about itself at its end, if its request
// was traced.
type Process struct {
	Trace    [16]byte
	ID       [8]byte // of the span of the process, the first one of its trace
	Exchange [8]byte // of the span of the exchange with the agent, which the request has named
	Command  string
	Began    time.Time // the start of the process
	Asked    time.Time // before it connected to the agent
	Answered time.Time // when it had the agent's answer
	Ended    time.Time // when it had printed its output
	Exit     int       // exit code
	Error    string    // of an exit code that is not zero
}

// Append appends the body of a request with p.
func (p Process) Append(b []byte) []byte {
	b = Traceparent{Trace: p.Trace, Span: p.ID}.Append(b)
	b = hex.AppendEncode(append(b, 0), p.Exchange[:])
	b = append(append(b, 0), p.Command...)
	for _, at := range []time.Time{p.Began, p.Asked, p.Answered, p.Ended} {
		b = strconv.AppendInt(append(b, 0), at.UnixNano(), 10)
	}
	b = strconv.AppendInt(append(b, 0), int64(p.Exit), 10)
	return append(append(b, 0), p.Error...)
}

// ParseProcess reads what Append has written.
func ParseProcess(body []byte) (p Process, err error) {
	const fields = 9
	parts := strings.SplitN(string(body), "\x00", fields)
	if len(parts) != fields {
		return Process{}, fmt.Errorf("it has %d of %d parts", len(parts), fields)
	}
	parent, ok := ParseTraceparent(parts[0])
	if !ok || len(parts[1]) != 2*len(p.Exchange) || !decodeID(p.Exchange[:], parts[1]) {
		return Process{}, fmt.Errorf("%.80q and %.80q are not a traceparent and the ID of a span", parts[0], parts[1])
	}
	p.Trace, p.ID, p.Command, p.Error = parent.Trace, parent.Span, parts[2], parts[8]
	last := time.Time{}
	for i, at := range []*time.Time{&p.Began, &p.Asked, &p.Answered, &p.Ended} {
		n, err := strconv.ParseInt(parts[3+i], 10, 64)
		if err != nil {
			return Process{}, fmt.Errorf("time %d: %w", i, err)
		}
		if *at = time.Unix(0, n); at.Before(last) {
			return Process{}, errors.New("its times are not in order")
		}
		last = *at
	}
	if p.Exit, err = strconv.Atoi(parts[7]); err != nil {
		return Process{}, fmt.Errorf("exit code: %w", err)
	}
	return p, nil
}
