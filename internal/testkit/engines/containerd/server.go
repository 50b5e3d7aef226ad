// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package containerd runs a containerd of this machine for a test, with directories, a
// socket and a mount namespace of its own, and packs the images that it runs.
//
// A Server belongs to one goroutine. Containers outlive Stop, as they outlive a restart of
// the runtime: a test removes them before.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Pause is the name of the image that holds the namespaces of a pod.
const Pause = "docker.io/cadastre-test/pause:1"

// Server is a containerd with its CRI.
type Server struct {
	dir string
	cmd *exec.Cmd // nil: stopped
}

// New prepares a containerd in a directory, which has room for the path of a socket.
func New(dir string) (*Server, error) {
	s := &Server{dir: dir}
	for _, d := range []string{s.Plugins(), s.Networks()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("prepare containerd: %w", err)
		}
	}
	config := `version = 2
root = "` + s.path("root") + `"
state = "` + s.path("state") + `"
[grpc]
  address = "` + s.Socket() + `"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + s.path("opt") + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + Pause + `"
  disable_cgroup = true
  disable_tcp_service = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "` + s.Plugins() + `"
  conf_dir = "` + s.Networks() + `"
`
	if err := os.WriteFile(s.path("config.toml"), []byte(config), 0o600); err != nil {
		return nil, fmt.Errorf("prepare containerd: %w", err)
	}
	return s, nil
}

// Socket returns the path of the socket.
func (s *Server) Socket() string { return s.path("c.sock") }

// Plugins returns the folder of CNI plugins.
func (s *Server) Plugins() string { return s.path("cni/bin") }

// Networks returns the folder of CNI network lists.
func (s *Server) Networks() string { return s.path("cni/net.d") }

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// Start starts containerd. It serves a little later.
func (s *Server) Start() error {
	program, err := stage.LookPath("containerd")
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "--config", s.path("config.toml"))
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Unshareflags: syscall.CLONE_NEWNS}
	err = cmd.Start()
	if err = errors.Join(err, log.Close()); err != nil { // it has its own
		return fmt.Errorf("start containerd: %w", err)
	}
	s.cmd = cmd
	return nil
}

// Stop ends containerd, in good order if it can.
func (s *Server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	cmd := s.cmd
	s.cmd = nil
	const patience = 20 * time.Second
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Process.Signal(syscall.SIGTERM)
	if exit := new(exec.ExitError); errors.As(cmd.Wait(), &exit) {
		return nil // some versions end by the signal
	}
	return err
}

// Import gives containerd images.
func (s *Server) Import(ctx context.Context, images ...Image) error {
	archive, err := Archive(images)
	if err != nil {
		return err
	}
	path := s.path("images.tar")
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "ctr", "--address", s.Socket(), "--namespace", "k8s.io",
		"images", "import", "--snapshotter", "native", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import images: %w: %s", err, out)
	}
	return nil
}

// Log returns what containerd has logged.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.path("log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
