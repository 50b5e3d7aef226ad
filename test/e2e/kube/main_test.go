// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Environment variables: the first is envtest's, the others are set by TestMain
// for tests, which share no variable, and for the programs.
const (
	assetsEnv = "KUBEBUILDER_ASSETS"
	sharedEnv = "E2E_KUBE_CONFIG" // the kubeconfig of the shared control plane
	binEnv    = "E2E_KUBE_BIN"    // our programs
)

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); slices.Contains(wrapped(), name) {
		fmt.Fprintln(os.Stderr, become(name))
		os.Exit(1)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/e2e/kube:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs the tests with a control plane, or has them say why there is none.
func run(m *testing.M) (code int, err error) {
	if why := missing(); why != "" {
		fmt.Fprintln(os.Stderr, "test/e2e/kube: NOT RUN:", why)
		return m.Run(), nil
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	klog.SetSlogLogger(quiet)
	log.SetLogger(klog.Background())
	dir, err := os.MkdirTemp("", "e2e-kube-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := buildOurs(filepath.Join(dir, "bin")); err != nil {
		return 1, err
	}
	p, err := startPlane(filepath.Join(dir, "shared"))
	if err != nil {
		return 1, err
	}
	if err := os.Setenv(sharedEnv, p.kubeconfig); err != nil {
		return 1, err
	}
	code = m.Run()
	if err := p.stop(); err != nil || code != 0 {
		return max(code, 1), err
	}
	return 0, leaks()
}

// leaks are goroutines that go on for longer than connections need to end.
func leaks() (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err = goleak.Find(); err == nil {
			break
		}
	}
	return err
}

// missing returns the reason why the suite cannot run here, "" if it can.
func missing() string {
	assets := os.Getenv(assetsEnv)
	if assets == "" {
		return assetsEnv + " is not set: make ci SUITE=e2e-kube builds a control plane and sets it"
	}
	if !filepath.IsAbs(assets) {
		return fmt.Sprintf("%s=%s is not an absolute path", assetsEnv, assets)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		if _, err := exec.LookPath(filepath.Join(assets, name)); err != nil {
			return fmt.Sprintf("%s=%s: %v", assetsEnv, assets, err)
		}
	}
	return ""
}

// buildOurs builds the programs under test.
func buildOurs(bin string) error {
	if err := stage.Build(context.Background(), "../../..", bin, stage.OurPrograms); err != nil {
		return err
	}
	return os.Setenv(binEnv, bin)
}

// wrapped are the programs that envtest starts. They are started by way of this
// one, see become.
func wrapped() []string { return []string{"etcd", "kube-apiserver"} }

// wrap makes a directory in which each of the programs is this one.
func wrap(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range wrapped() {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// become turns this process into the program name. Before that, the process
// asks to be killed when its parent ends, which envtest does not do. It also
// writes its number down, which envtest does not tell.
func become(name string) error {
	runtime.LockOSThread() // the request is for one thread, and the last one left
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("become %s: %w", name, err)
	}
	if err := os.WriteFile(os.Args[0]+".pid", []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return fmt.Errorf("become %s: %w", name, err)
	}
	real := filepath.Join(os.Getenv(assetsEnv), name)
	return fmt.Errorf("become %s: %w", name, syscall.Exec(real, os.Args, os.Environ()))
}

// pidOf is the number of a wrapped program.
func pidOf(dir, name string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, name+".pid"))
	if err != nil {
		return 0, fmt.Errorf("find the process of %s: %w", name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && pid <= 1 {
		err = errors.New("it is not a number of a process")
	}
	return pid, err
}
