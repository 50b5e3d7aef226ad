// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// send is one HTTP/1.1 exchange over a unix socket, by hand: net/http would be most of the
// time that this program takes.
func send(agent string, body []byte, t *tracer, until time.Time) (answer, error) {
	t.asks(agent)
	conn, err := request(agent, cni.Path, body, t, until)
	if err != nil {
		return answer{}, err
	}
	defer conn.close()
	a, err := receive(conn)
	if err == nil {
		t.answered(a)
	}
	return a, err
}

// request sends a request and returns the connection, from which the answer can be read.
func request(agent, path string, body []byte, t *tracer, until time.Time) (*socket, error) {
	conn, err := dial(agent, until)
	if err != nil {
		return nil, err
	}
	msg := make([]byte, 0, 240+len(body))
	msg = append(append(msg, "POST "...), path...)
	msg = append(msg, " HTTP/1.1\r\nHost: cadastre\r\nConnection: close\r\nContent-Type: application/octet-stream"...)
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
func receive(conn io.Reader) (answer, error) {
	text := make([]byte, 0, 2048)
	for len(text) < maxInput {
		n, err := conn.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		a, bad := split(text)
		switch {
		case bad == nil:
			return a, nil
		case errors.Is(err, io.EOF):
			return answer{}, bad
		case err != nil:
			return answer{}, err
		}
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text))
		}
	}
	return answer{}, fmt.Errorf("the answer has more than %d bytes", maxInput)
}

// answer is an HTTP answer.
type answer struct {
	status     string // of three digits
	head, body []byte
}

// split takes an HTTP answer apart. It is an error if the answer is cut off.
func split(text []byte) (answer, error) {
	head, body, ok := bytes.Cut(text, []byte("\r\n\r\n"))
	if !ok || len(head) < len("HTTP/1.1 200") || !bytes.HasPrefix(head, []byte("HTTP/1.")) || head[8] != ' ' {
		return answer{}, errors.New("the answer is not HTTP")
	}
	a := answer{string(head[9:12]), head, body}
	if n, err := strconv.Atoi(a.status); err != nil || n < 100 {
		return answer{}, errors.New("the answer is not HTTP")
	}
	length := a.header("Content-Length")
	if n, err := strconv.Atoi(length); err != nil || n != len(body) {
		return answer{}, fmt.Errorf("the answer is cut off: %d of %q bytes", len(body), length)
	}
	return a, nil
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
