// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

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
	"path/filepath"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Agent holds an agent's name and the paths of its files; Dir is its own.
type Agent struct {
	Place
	Config string
	Node   string
}

// MaxSocketPath is the longest path that an agent's socket may have: what fits
// in a socket's address, and the agent makes it under a longer name first.
const MaxSocketPath = 107 - len(".new")

// SocketName is the path of the socket in an agent's directory.
const SocketName = "run/agent.sock"

// State returns the agent's state directory.
func (a Agent) State() string { return filepath.Join(a.Dir, "state") }

// Socket returns the path of the agent's socket; its directory is the run directory.
func (a Agent) Socket() string { return filepath.Join(a.Dir, SocketName) }

// Log returns the path of the file that Launch writes.
func (a Agent) Log() string { return filepath.Join(a.Dir, "agent.log") }

// Command returns the command that starts the agent.
func (a Agent) Command(log io.Writer) *exec.Cmd {
	cmd := exec.Command(a.Program("cadastre-agent"), "--config", a.Config, "--node-name", a.Node,
		"--state-dir", a.State(), "--run-dir", filepath.Dir(a.Socket()))
	cmd.Dir = a.Root
	cmd.Stdout, cmd.Stderr = log, log
	return cmd
}

// Launch starts the agent; within calls its argument in the agent's network namespace.
func (a Agent) Launch(within func(func() error) error) (*Process, error) {
	log, err := os.OpenFile(a.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the agent's log: %w", err)
	}
	p, err := Start(a.Command(log), within)
	return p, errors.Join(err, log.Close()) // the agent has its own
}

// Await waits until the agent, whose process is p, answers that it serves.
func (a Agent) Await(ctx context.Context, p *Process) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	client := a.client()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := ask(ctx, client, http.MethodGet, localapi.PathReadyz)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return p.Ended()
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready: %w", err)
		case <-again.C:
		}
	}
}

// Get asks the agent's local API.
func (a Agent) Get(ctx context.Context, path string) (string, error) {
	return ask(ctx, a.client(), http.MethodGet, path)
}

func (a Agent) client() *http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", a.Socket())
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

func ask(ctx context.Context, client *http.Client, method, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return "", errors.New(strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// CLI runs cadastre and returns its output.
func (a Agent) CLI(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, a.Program("cadastre"), args...)
	cmd.Dir = a.Root
	cmd.Env = append(os.Environ(), "CADASTRE_SOCKET="+a.Socket())
	return output(ctx, cmd)
}

// Read runs cadastre with JSON output and decodes that into v.
func (a Agent) Read(ctx context.Context, v any, args ...string) (string, error) {
	out, err := a.CLI(ctx, append(args, "-o", "json")...)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return "", fmt.Errorf("cadastre %s -o json: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// Leases returns the leases that cadastre leases prints, and its output.
func (a Agent) Leases(ctx context.Context) (all []localapi.Lease, text string, err error) {
	text, err = a.Read(ctx, &all, "leases")
	return all, text, err
}
