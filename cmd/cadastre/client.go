// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// defaultSocket is the default path of an agent's socket.
const defaultSocket = "/run/cadastre/agent.sock"

const (
	dialTimeout = 5 * time.Second
	// readTimeout is for what the agent knows by heart, workTimeout for what it
	// has to do first; its own deadline for one event is a minute.
	readTimeout = 30 * time.Second
	workTimeout = 5 * time.Minute
)

// client asks the agent.
type client struct {
	socket string
	http   *http.Client
}

func (a *app) client() *client { return clientOf(a.socketPath()) }

// socketPath returns the path of the agent's socket.
func (a *app) socketPath() string {
	return cmp.Or(a.socket, a.getenv("CADASTRE_SOCKET"), defaultSocket)
}

func clientOf(socket string) *client {
	c := &client{socket: socket}
	c.http = &http.Client{
		Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true, DisableCompression: true},
	}
	return c
}

func (c *client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", c.socket)
	if err != nil && ctx.Err() == nil {
		return nil, &exitError{exitNoAgent, noAgent(c.socket, err)}
	}
	return conn, err
}

// noAgent says what to do about a socket that cannot be connected to.
func noAgent(socket string, err error) error {
	what := "start cadastre-agent, or name its socket with --socket or CADASTRE_SOCKET"
	switch {
	case errors.Is(err, fs.ErrPermission):
		what = "become root or the agent's user, or name another socket with --socket or CADASTRE_SOCKET"
	case errors.Is(err, syscall.EINVAL):
		what = "a socket's path has at most 103 bytes: name another one with --socket or CADASTRE_SOCKET"
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return fmt.Errorf("no agent answers at %s (%w): %s", socket, err, what)
}

// get reads the answer to GET path into v.
func (c *client) get(ctx context.Context, path string, v any) error {
	return c.exchange(ctx, http.MethodGet, path, nil, v)
}

// post reads the answer to POST path into v; a nil v passes over it.
func (c *client) post(ctx context.Context, path string, body, v any) error {
	return c.exchange(ctx, http.MethodPost, path, body, v)
}

func (c *client) exchange(ctx context.Context, method, path string, body, v any) error {
	answer, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(answer).Decode(v); err != nil {
		return fmt.Errorf("read the agent's answer to %s: %w", path, c.plain(ctx, err))
	}
	return nil
}

// do returns the body of an answer of status 200; the caller closes it. Every other
// status is an error.
func (c *client) do(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

func (c *client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("ask the agent %s: %w", path, err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, content)
	if err != nil {
		return nil, fmt.Errorf("ask the agent %s: %w", path, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.plain(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

var errBrokeOff = errors.New("broke off its answer")

// plain says in plain words why there is no (whole) answer.
func (c *client) plain(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // which has no URL in it: there is only one place to ask
	}
	var missing *exitError
	switch {
	case errors.As(err, &missing):
		return missing
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("the agent at %s does not answer in time: it may be stuck, see its log", c.socket)
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("the agent at %s %w: it may have stopped, see its log", c.socket, errBrokeOff)
	}
	return err
}

// refusedError is an answer that is an error.
type refusedError struct {
	status int
	text   string
	body   []byte
}

func (e *refusedError) Error() string { return e.text }

func refusal(resp *http.Response) error {
	const most = 4 << 20
	body, _ := io.ReadAll(io.LimitReader(resp.Body, most)) // what came says more than how it ended
	var e localapi.Error
	text := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &e) == nil && e.Error != "" {
		text = e.Error
	}
	if text == "" {
		text = "the agent answers " + resp.Status
	}
	return &refusedError{resp.StatusCode, text, body}
}
