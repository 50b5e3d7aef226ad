// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// agentCommand is an agent with its files in p.
func agentCommand(p place, log io.Writer) *exec.Cmd {
	cmd := exec.Command(p.program("cadastre-agent"), "--config", p.config(), "--node-name", nodeName,
		"--state-dir", p.state(), "--run-dir", p.run())
	cmd.Dir = p.root
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

// nodeName is the node's.
const nodeName = "demo-node"

// waitReady waits until the agent answers that it serves.
func waitReady(ctx context.Context, agent *process, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		err := ask(ctx, client)
		if err == nil {
			return nil
		}
		select {
		case <-agent.done:
			return agent.ended()
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready: %w", err)
		case <-again.C:
		}
	}
}

func ask(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+localapi.PathReadyz, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(body)))
	}
	return nil
}

// cli runs cadastre, as a person does, for what it prints.
func (d *demo) cli(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.program("cadastre"), args...)
	cmd.Dir = d.root
	cmd.Env = append(os.Environ(), "CADASTRE_SOCKET="+d.socket())
	return output(ctx, cmd)
}

// show prints what cadastre prints.
func (d *demo) show(ctx context.Context, args ...string) error {
	d.say("$ cadastre %s", strings.Join(args, " "))
	out, err := d.cli(ctx, args...)
	if err == nil {
		d.say("%s", out)
	}
	return err
}

// read reads what cadastre prints as JSON.
func (d *demo) read(ctx context.Context, v any, args ...string) (string, error) {
	out, err := d.cli(ctx, append(args, "-o", "json")...)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return "", fmt.Errorf("cadastre %s -o json: %w", strings.Join(args, " "), err)
	}
	return out, nil
}
