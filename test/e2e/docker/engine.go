// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
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

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// image is the image of the containers.
const image = "cadastre-e2e/inside:1"

// engine is Docker's, in a room. Its data are below dir; its containers are in a
// control group of its own.
type engine struct {
	dir     string
	room    *room
	program string
	process *stage.Process // nil while it does not run
	api     *http.Client
}

func newEngine(dir, program string, r *room) *engine {
	e := &engine{dir: dir, room: r, program: program}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", e.socket())
	}
	e.api = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 16}}
	return e
}

func (e *engine) socket() string  { return filepath.Join(runDir(e.dir), "docker.sock") }
func (e *engine) log() string     { return filepath.Join(e.dir, "engine.log") }
func (e *engine) cgroups() string { return filepath.Base(e.dir) }

// launch starts the engine and does not wait for it.
func (e *engine) launch() (err error) {
	// Lowering oom_score_adj needs a capability that root may lack; vfs needs
	// nothing of the file system that it is on.
	cmd := exec.Command(
		e.program,
		"--data-root",
		filepath.Join(e.dir, "data"),
		"--exec-root",
		"/run/docker",
		"--pidfile",
		"/run/docker.pid",
		"--host",
		"unix:///run/docker.sock",
		"--oom-score-adjust=0",
		"--storage-driver=vfs",
		"--iptables=false",
		"--exec-opt",
		"native.cgroupdriver=cgroupfs",
		"--cgroup-parent",
		"/"+e.cgroups(),
	)
	cmd.Dir = e.dir
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR="+e.dir)
	e.process, err = e.room.start(cmd, e.log())
	return err
}

// await waits until it answers, for as long as it may take.
func (e *engine) await(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not answered within %s", limit))
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := e.get(ctx, "/_ping", nil)
		if err == nil {
			return nil
		}
		select {
		case <-e.process.Done():
			return e.process.Ended()
		case <-ctx.Done():
			return fmt.Errorf("wait for the engine: %w: %w", context.Cause(ctx), err)
		case <-again.C:
		}
	}
}

// usually limits the time of an engine that nothing delays.
const usually = time.Minute

// slowContainerd is the last line of an engine that ends because its containerd was not
// up within 15 s, as on a busy machine.
const slowContainerd = "failed to start containerd: timeout waiting for containerd to start"

// start starts the engine, a few times if its containerd is slow.
func (e *engine) start(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		if err := e.launch(); err != nil {
			return err
		}
		err := e.await(ctx, usually)
		if err == nil || attempt == 3 {
			return err
		}
		log, _ := os.ReadFile(e.log())
		if !strings.HasSuffix(strings.TrimSpace(string(log)), slowContainerd) {
			return err
		}
	}
}

// stop ends it in good order, and with it all containers.
func (e *engine) stop() error {
	p := e.process
	e.process = nil
	e.api.CloseIdleConnections()
	return p.Stop(usually)
}

// kill ends it with SIGKILL; its containers live on without it.
func (e *engine) kill() error {
	p := e.process
	e.process = nil
	e.api.CloseIdleConnections()
	return p.Kill()
}

// end ends it, if it runs.
func (e *engine) end() error {
	if e.process == nil {
		return nil
	}
	return e.stop()
}

// do runs docker, as a person does, for what it prints.
func (e *engine) do(ctx context.Context, args ...string) (string, error) {
	return e.feed(ctx, nil, args...)
}

func (e *engine) feed(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(
		os.Environ(),
		"DOCKER_HOST=unix://"+e.socket(),
		"DOCKER_CONFIG="+filepath.Join(e.dir, "docker-config"),
		"DOCKER_CONTEXT=",
		"DOCKER_API_VERSION=",
	)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// get asks the engine's API.
func (e *engine) get(ctx context.Context, path string, out any) error {
	return e.request(ctx, http.MethodGet, path, nil, out)
}

func (e *engine) request(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.api.Do(req)
	if err != nil {
		return err
	}
	answer, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(answer))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// load makes the image of a static program.
func (e *engine) load(ctx context.Context, program string) error {
	code, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err = w.WriteHeader(&tar.Header{Name: "inside", Mode: 0o755, Size: int64(len(code))})
	if err == nil {
		_, err = w.Write(code)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("make an image: %w", err)
	}
	_, err = e.feed(ctx, &layer, "import", "--change", `ENTRYPOINT ["/inside"]`, "-", image)
	return err
}

// removeCgroups removes the control groups that the engine has made. They are
// empty once the room is closed.
func (e *engine) removeCgroups() error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup/" + e.cgroups(), "/sys/fs/cgroup/*/" + e.cgroups()} {
		dirs, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, dir := range dirs {
			errs = append(errs, removeCgroup(dir))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the engine's control groups: %w", err)
	}
	return nil
}

func removeCgroup(dir string) error {
	below, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, d := range below {
		if d.IsDir() {
			if err := removeCgroup(filepath.Join(dir, d.Name())); err != nil {
				return err
			}
		}
	}
	for range 50 { // the kernel lets go of ended processes a little later
		if err = os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}
