// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// post is one HTTP/1.1 exchange over a unix socket, by hand: net/http would be
// most of the time that this program takes.
func post(socket, path string, body []byte, limit time.Duration) ([]byte, error) {
	conn, err := net.DialTimeout("unix", socket, limit)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	msg := make([]byte, 0, 160+len(body))
	msg = append(
		msg,
		"POST "+path+" HTTP/1.1\r\nHost: cadastre\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: "...)
	msg = strconv.AppendInt(msg, int64(len(body)), 10)
	msg = append(append(msg, "\r\n\r\n"...), body...)
	if _, err := conn.Write(msg); err != nil {
		return nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, maxInput))
	if err != nil {
		return nil, err
	}
	return parse(answer)
}

// notServing explains why an agent that answers does not serve CNI requests now.
type notServing string

func (e notServing) Error() string { return string(e) }

// parse takes the body out of an HTTP answer. It is an error for an answer
// that is cut off, and for the status that means that the agent does not serve.
func parse(answer []byte) ([]byte, error) {
	head, body, ok := bytes.Cut(answer, []byte("\r\n\r\n"))
	if !ok || len(head) < len("HTTP/1.1 200") || !bytes.HasPrefix(head, []byte("HTTP/1.")) || head[8] != ' ' {
		return nil, errors.New("the answer is not HTTP")
	}
	status := string(head[9:12])
	if n, err := strconv.Atoi(status); err != nil || n < 100 {
		return nil, errors.New("the answer is not HTTP")
	}
	if status == "502" || status == "503" || status == "504" {
		var said struct{ Error string }
		if status == "503" && json.Unmarshal(body, &said) == nil && said.Error != "" {
			return nil, notServing(said.Error)
		}
		return nil, fmt.Errorf("status %s: %s", status, bytes.TrimSpace(body))
	}
	length := -1
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if k, v, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(k, []byte("Content-Length")) {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
		}
	}
	if length != len(body) {
		return nil, fmt.Errorf("the answer is cut off: %d of %d bytes", len(body), length)
	}
	if status != "200" { // the agent is there, and refuses
		return json.Marshal(map[string]*cni.Error{
			"error": cni.Errorf(cni.CodeTryAgain, "the agent refuses: status %s: %s", status, bytes.TrimSpace(body)),
		})
	}
	return body, nil
}
