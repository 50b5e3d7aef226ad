// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package neutrontest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"text/template"
	"time"
)

// Options are limits of the server; the zero value has none that a test meets.
type Options struct {
	MaxPorts int // of a project; 0: no quota
	MaxPairs int // allowed address pairs of a port; 0: 500
}

// Server is a running Neutron.
type Server struct {
	url   string
	dir   string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

//go:embed server.py
var program string

//go:embed neutron.conf
var configuration string

// New starts a server that ends with the test. It skips the test if the machine cannot run
// one, and fails it if the server does not start.
func New(t testing.TB, options Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), t.TempDir(), options)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("errors and the end of the Neutron server's log:\n%s\n%s", s.errors(), s.tail())
		}
	})
	return s
}

// Start starts a server with its files in dir, and waits until it answers. The caller closes it.
// An error that wraps ErrUnavailable means that the machine cannot run one.
func Start(ctx context.Context, dir string, options Options) (*Server, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	s, err := provide(ctx, cache)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ { // another process can take the port first
		server, err := launch(ctx, s, cache, dir, options)
		if err == nil || try == 3 || ctx.Err() != nil || !strings.Contains(err.Error(), "Address already in use") {
			return server, err
		}
	}
}

func launch(ctx context.Context, s software, cache, dir string, options Options) (*Server, error) {
	port, err := freePort(ctx)
	if err != nil {
		return nil, fmt.Errorf("find a port for Neutron: %w", err)
	}
	server := &Server{url: fmt.Sprintf("http://127.0.0.1:%d", port), dir: dir, ended: make(chan struct{})}
	if err := errors.Join(
		os.WriteFile(server.file("server.py"), []byte(program), 0o600),
		configure(server.file("neutron.conf"), s, dir, port, options),
	); err != nil {
		return nil, fmt.Errorf("write Neutron's files: %w", err)
	}
	if err := server.start(s, cache); err != nil {
		return nil, fmt.Errorf("start Neutron: %w", err)
	}
	if err := server.await(ctx); err != nil {
		server.Close()
		return nil, fmt.Errorf("start Neutron: %w: %s", err, server.tail())
	}
	return server, nil
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

func configure(path string, s software, dir string, port int, options Options) error {
	text, err := template.New("neutron.conf").Parse(configuration)
	if err != nil {
		return err
	}
	var b strings.Builder
	values := struct {
		Dir, Paste               string
		Port, MaxPorts, MaxPairs int
	}{dir, s.path(paste), port, options.MaxPorts, options.MaxPairs}
	if values.MaxPorts == 0 {
		values.MaxPorts = -1
	}
	if values.MaxPairs == 0 {
		values.MaxPairs = 500
	}
	if err := text.Execute(&b, values); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }

// start starts the process. It reads the pipe until this process ends or closes it.
func (s *Server) start(from software, cache string) error {
	python, err := from.python()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.file("neutron.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	s.cmd = exec.Command(python, s.file("server.py"), s.file("neutron.conf"), from.path(database))
	s.cmd.Env = from.environment(cache)
	s.cmd.Dir = s.dir
	all := struct{ io.Writer }{log} // a pipe, not the file: Wait waits for the end of all processes that have it
	s.cmd.Stdout, s.cmd.Stderr = all, all
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := s.cmd.StdinPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return errors.Join(err, log.Close())
	}
	s.stdin = stdin
	go func() {
		_ = s.cmd.Wait() // they are killed
		_ = log.Close()
		close(s.ended)
	}()
	return nil
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/v2.0/networks", nil)
		if err != nil {
			return err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			if err := response.Body.Close(); err != nil || response.StatusCode == http.StatusOK {
				return err
			}
		}
		select {
		case <-s.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// URL returns the address of the server, without the version of the API.
func (s *Server) URL() string { return s.url }

// Close ends the server and its database.
func (s *Server) Close() {
	_ = s.stdin.Close()
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-s.ended
}

// errors returns the last lines of the log that are errors, which name the cause of an
// answer with status 500.
func (s *Server) errors() string {
	const most = 60
	text, err := os.ReadFile(s.file("neutron.log"))
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " ERROR ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// tail returns the last lines of the log.
func (s *Server) tail() string {
	const most = 4000
	text, err := os.ReadFile(s.file("neutron.log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
