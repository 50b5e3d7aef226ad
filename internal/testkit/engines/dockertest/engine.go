// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package dockertest runs a real Docker engine for a test, in network, mount and PID
// namespaces of its own with a /run of its own. A test is skipped, with the reason,
// where that cannot be done. An Engine belongs to the goroutine of its test.
package dockertest

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Image is the image of containers; with the argument "wait" they run until they are
// stopped.
const Image = "cadastre-test/inside:1"

// Engine is a running engine.
type Engine struct {
	t    testing.TB
	dir  string
	cmd  *exec.Cmd
	args []string
}

// Start starts an engine and makes Image. It ends with the test.
func Start(t testing.TB, args ...string) *Engine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: a Docker engine needs root")
	}
	for _, program := range []string{"dockerd", "docker", "sh", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: there is no %s here (Debian: docker.io)", program)
		}
	}
	dir, err := os.MkdirTemp("", "engine") // a short path: those of sockets are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &Engine{t: t, dir: dir, args: args}
	if err := os.MkdirAll(e.Plugins(), 0o755); err != nil {
		t.Fatal(err)
	}
	e.Launch()
	t.Cleanup(e.Kill)
	e.Await()
	e.load()
	return e
}

func (e *Engine) path(name string) string { return filepath.Join(e.dir, name) }

// Plugins returns the folder in which the engine looks for the sockets of plugins.
func (e *Engine) Plugins() string { return e.path("run/docker/plugins") }

// Data returns the folder of the engine's data.
func (e *Engine) Data() string { return e.path("data") }

// Environment returns the variables with which docker speaks to this engine.
func (e *Engine) Environment() []string {
	return []string{
		"DOCKER_HOST=" + e.Endpoint(),
		"DOCKER_CONFIG=" + e.path("config"),
		"DOCKER_CONTEXT=",
		"DOCKER_API_VERSION=",
	}
}

// Endpoint returns the address of the engine's API.
func (e *Engine) Endpoint() string { return "unix://" + e.path("run/docker.sock") }

// Network returns the path of the engine's network namespace.
func (e *Engine) Network() string {
	e.t.Helper()
	if e.cmd == nil {
		e.t.Fatal("the engine does not run")
	}
	return "/proc/" + strconv.Itoa(e.cmd.Process.Pid) + "/ns/net"
}

// furnish mounts what is the engine's own, and becomes the engine.
const furnish = `mount --make-rprivate / && mount --bind "$0/run" /run && mount -t proc proc /proc && exec dockerd "$@"`

// Launch starts the engine and does not wait for it.
func (e *Engine) Launch() {
	e.t.Helper()
	log, err := os.OpenFile(e.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the engine has its own
	args := append([]string{
		"-c", furnish, e.dir,
		"--data-root", e.path("data"),
		"--exec-root", "/run/docker",
		"--pidfile", "/run/docker.pid",
		"--host", "unix:///run/docker.sock",
		"--oom-score-adjust=0",
		"--storage-driver=vfs",
		"--iptables=false",
		"--exec-opt", "native.cgroupdriver=cgroupfs",
		"--cgroup-parent", "/" + filepath.Base(e.dir),
	}, e.args...)
	e.cmd = exec.Command("sh", args...)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
	}
	_ = os.Remove(e.path("run/docker.pid")) // of an engine that was killed
	if err := e.cmd.Start(); err != nil {
		e.t.Skipf("NOT RUN: an engine needs namespaces: %v", err)
	}
}

// Kill ends the engine at once and with it, being the first process of its namespace,
// its containers. Their control groups are removed.
func (e *Engine) Kill() {
	if e.cmd == nil {
		return
	}
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
	e.cmd = nil
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		dirs, _ := filepath.Glob(pattern + filepath.Base(e.dir))
		for _, dir := range dirs {
			below, _ := filepath.Glob(dir + "/*/")
			for _, d := range append(below, dir) {
				_ = os.Remove(d)
			}
		}
	}
}

// Await waits until the engine answers.
func (e *Engine) Await() {
	e.t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for range 1200 {
		if _, err := e.Try("version", "--format", "{{.Server.Version}}"); err == nil {
			return
		}
		<-again.C
	}
	log, _ := os.ReadFile(e.path("log"))
	e.t.Fatalf("the engine does not answer:\n%s", log[max(0, len(log)-4000):])
}

// Docker runs docker and returns its output; the test fails if docker does.
func (e *Engine) Docker(args ...string) string {
	e.t.Helper()
	out, err := e.Try(args...)
	if err != nil {
		e.t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs docker and returns its output.
func (e *Engine) Try(args ...string) (string, error) { return e.feed(nil, args...) }

func (e *Engine) feed(stdin io.Reader, args ...string) (string, error) {
	cmd := exec.Command("docker", args...)
	cmd.Stdin = stdin
	cmd.Env = append(os.Environ(), e.Environment()...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// load makes Image of a static program.
func (e *Engine) load() {
	e.t.Helper()
	program := e.path("inside")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program,
		"github.com/cadastre/cadastre/test/e2e/docker/inside")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		e.t.Fatalf("build what is inside of the image: %v: %s", err, out)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		e.t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	_ = w.WriteHeader(&tar.Header{Name: "inside", Mode: 0o755, Size: int64(len(code))})
	_, _ = w.Write(code)
	if err := w.Close(); err != nil {
		e.t.Fatal(err)
	}
	if out, err := e.feed(&layer, "import", "--change", `ENTRYPOINT ["/inside"]`, "-", Image); err != nil {
		e.t.Fatalf("make an image: %v: %s", err, out)
	}
}
