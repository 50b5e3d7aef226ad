// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// startTime limits the start of a control plane on a busy machine.
const startTime = 90 * time.Second

// plane is a control plane: an etcd and a kube-apiserver.
type plane struct {
	env        *envtest.Environment
	dir        string
	kubeconfig string // of the administrator
	config     *rest.Config
}

// startPlane starts a control plane, whose files are below dir.
func startPlane(dir string) (*plane, error) {
	certs, data := filepath.Join(dir, "certs"), filepath.Join(dir, "etcd")
	for _, d := range []string{certs, data} { // directories that envtest is given it does not remove
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := wrap(filepath.Join(dir, "bin")); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig")}
	p.env = &envtest.Environment{ControlPlaneStartTimeout: startTime, ControlPlaneStopTimeout: startTime}
	p.env.ControlPlane.Etcd = &envtest.Etcd{Path: filepath.Join(dir, "bin", "etcd"), DataDir: data, Err: log, Out: io.Discard}
	api := p.env.ControlPlane.GetAPIServer()
	api.Path, api.CertDir, api.Err, api.Out = filepath.Join(dir, "bin", "kube-apiserver"), certs, log, io.Discard
	if p.config, err = p.env.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the control plane: %w: %s", err, p.said()), p.stop())
	}
	if err := os.WriteFile(p.kubeconfig, p.env.KubeConfig, 0o600); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// newPlane is one for a single test.
func newPlane(t *testing.T) *plane {
	t.Helper()
	mayRun(t)
	p, err := startPlane(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the control plane's log ends with:\n%s", p.said())
		}
	})
	return p
}

// stop ends the API server first: without its etcd it would not end.
func (p *plane) stop() error {
	if err := p.env.Stop(); err != nil {
		return fmt.Errorf("stop the control plane: %w", err)
	}
	return nil
}

// kill ends the API server with SIGKILL.
func (p *plane) kill(g Gomega) {
	pid, err := pidOf(filepath.Join(p.dir, "bin"), "kube-apiserver")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(syscall.Kill(pid, syscall.SIGKILL)).To(Succeed())
	g.Eventually(func() error { return syscall.Kill(pid, 0) }, patience, pace).Should(MatchError(syscall.ESRCH), "it is there")
}

// restart starts the API server again, at its port, with its etcd and its keys.
func (p *plane) restart(g Gomega) {
	g.Expect(p.env.ControlPlane.APIServer.Start()).To(Succeed(), "start the API server again: %s", p.said())
}

// said is the end of what the programs have said.
func (p *plane) said() string {
	data, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return tail(data, 15)
}

// tail are the last lines of a log.
func tail(data []byte, most int) string {
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// freePort returns a port of the loopback interface without a listener.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// mayRun skips a test where there are no programs.
func mayRun(t *testing.T) {
	t.Helper()
	if why := missing(); why != "" {
		t.Skip("NOT RUN: ", why)
	}
	if err := stage.LookAtSources("../../.."); err != nil {
		t.Fatal(err)
	}
}
