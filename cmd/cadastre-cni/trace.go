// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// reportTimeout bounds the report of a process whose request was traced. The runtime has
// its answer by then, and waits for the end of the process.
const reportTimeout = 50 * time.Millisecond

// tracer makes the IDs of the spans of this process, and measures them. The agent decides
// whether they are recorded, and exports them.
type tracer struct {
	began   time.Time
	process cni.Process
	socket  string // of the request
	wanted  bool   // the command is one that can be traced
	traced  bool   // the agent traces the request
}

// begin makes the IDs for a command.
func (t *tracer) begin(command string) {
	if t.wanted = command == "ADD" || command == "DEL"; !t.wanted {
		return
	}
	p := &t.process
	p.Began, p.Command = t.began, command
	for _, id := range [][]byte{p.Trace[:8], p.Trace[8:], p.ID[:], p.Exchange[:]} {
		binary.BigEndian.PutUint64(id, max(rand.Uint64(), 1)) // an ID must not be zero
	}
}

// appendHeader appends the header that names the span of the exchange with the agent.
func (t *tracer) appendHeader(msg []byte) []byte {
	if !t.wanted {
		return msg
	}
	msg = append(msg, "\r\n"+cni.HeaderTrace+": "...)
	return cni.Traceparent{Trace: t.process.Trace, Span: t.process.Exchange}.Append(msg)
}

// asks notes the begin of an exchange.
func (t *tracer) asks(socket string) {
	t.process.Asked, t.socket = time.Now(), socket
}

// answered notes the end of an exchange.
func (t *tracer) answered(a answer) {
	if !t.wanted {
		return
	}
	t.process.Answered = time.Now()
	t.traced = a.header(cni.HeaderTraced) == "1"
}

// report sends the times of the process to the agent if it traces the request.
func (t *tracer) report(r result) {
	if !t.traced {
		return
	}
	p := &t.process
	p.Ended, p.Exit = time.Now(), r.exit
	if r.exit != 0 {
		var printed cni.Error
		_ = json.Unmarshal(r.out, &printed) // what cannot be read has no text
		p.Error = printed.Msg
	}
	body := p.Append(make([]byte, 0, 256+len(p.Error)))
	conn, err := request(t.socket, cni.PathProcess, body, &tracer{}, time.Now().Add(reportTimeout))
	if err == nil { // the agent reads what was written also if it is slow
		conn.close()
	}
}
