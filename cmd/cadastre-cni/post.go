// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// post sends JSON to a path of the agent's socket and returns the body of the answer.
func post(socket, path string, body []byte, t *tracer, until time.Time) ([]byte, error) {
	answer, err := send(socket, path, "application/json", body, t, until)
	if err != nil {
		return nil, err
	}
	return parse(answer)
}

// send is one HTTP/1.1 exchange over a unix socket, by hand: net/http would be most of the
// time that this program takes. It returns the answer as it came. t may be nil.
func send(agent, path, kind string, body []byte, t *tracer, until time.Time) ([]byte, error) {
	t.asks(agent)
	conn, err := request(agent, path, kind, body, t, until)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	text, err := receive(conn)
	if err == nil {
		t.answered(text)
	}
	return text, err
}

// request sends a request and returns the connection, from which the answer can be read.
func request(agent, path, kind string, body []byte, t *tracer, until time.Time) (*socket, error) {
	conn, err := dial(agent, until)
	if err != nil {
		return nil, err
	}
	msg := make([]byte, 0, 240+len(body))
	msg = append(append(msg, "POST "...), path...)
	msg = append(append(msg, " HTTP/1.1\r\nHost: cadastre\r\nConnection: close\r\nContent-Type: "...), kind...)
	msg = t.appendHeader(msg)
	msg = strconv.AppendInt(append(msg, "\r\nContent-Length: "...), int64(len(body)), 10)
	msg = append(append(msg, "\r\n\r\n"...), body...)
	if _, err := conn.Write(msg); err != nil {
		conn.close()
		return nil, err
	}
	return conn, nil
}

// receive reads an HTTP answer: to the length that it tells, or else to its end.
func receive(conn io.Reader) ([]byte, error) {
	text := make([]byte, 0, 2048)
	for len(text) < maxInput {
		n, err := conn.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, err
		}
		if a, err := split(text); err == nil && a.whole() == nil {
			return text, nil
		}
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text))
		}
	}
	return text, nil
}

// notServing explains why an agent that answers does not serve CNI requests now.
type notServing string

func (e notServing) Error() string { return string(e) }

// answer is an HTTP answer.
type answer struct {
	status     string // of three digits
	head, body []byte
}

// split takes an HTTP answer apart.
func split(text []byte) (answer, error) {
	head, body, ok := bytes.Cut(text, []byte("\r\n\r\n"))
	if !ok || len(head) < len("HTTP/1.1 200") || !bytes.HasPrefix(head, []byte("HTTP/1.")) || head[8] != ' ' {
		return answer{}, errors.New("the answer is not HTTP")
	}
	status := string(head[9:12])
	if n, err := strconv.Atoi(status); err != nil || n < 100 {
		return answer{}, errors.New("the answer is not HTTP")
	}
	return answer{status, head, body}, nil
}

// header returns the value of a header, "" if there is none.
func (a answer) header(name string) string {
	for line := range bytes.SplitSeq(a.head, []byte("\r\n")) {
		if k, v, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(k, []byte(name)) {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// whole returns an error for an answer that is cut off.
func (a answer) whole() error {
	if length, err := strconv.Atoi(a.header("Content-Length")); err != nil || length != len(a.body) {
		return fmt.Errorf("the answer is cut off: %d of %q bytes", len(a.body), a.header("Content-Length"))
	}
	return nil
}

// parse takes the body out of an HTTP answer. It is an error for an answer
// that is cut off, and for the status that means that the agent does not serve.
func parse(text []byte) ([]byte, error) {
	a, err := split(text)
	if err != nil {
		return nil, err
	}
	if a.status == "502" || a.status == "503" || a.status == "504" {
		var said struct{ Error string }
		if a.status == "503" && json.Unmarshal(a.body, &said) == nil && said.Error != "" {
			return nil, notServing(said.Error)
		}
		return nil, fmt.Errorf("status %s: %s", a.status, bytes.TrimSpace(a.body))
	}
	if err := a.whole(); err != nil {
		return nil, err
	}
	if a.status != "200" { // the agent is there, and refuses
		return json.Marshal(map[string]*cni.Error{
			"error": cni.Errorf(
				cni.CodeTryAgain,
				"the agent refuses: status %s: %s",
				a.status,
				bytes.TrimSpace(a.body),
			),
		})
	}
	return a.body, nil
}
