// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// AssetsVariable names the environment variable with the folder of etcd, kube-apiserver
// and kubectl.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// plane is a control plane of Kubernetes: an etcd and a kube-apiserver on 127.0.0.1.
type plane struct {
	dir       string
	assets    string
	port      int // of the API server
	config    *rest.Config
	processes []*stage.Process
}

func (p *plane) path(name string) string { return filepath.Join(p.dir, name) }

// kubeconfig returns the path of the administrator's kubeconfig.
func (p *plane) kubeconfig() string { return p.path("kubeconfig") }

// startPlane starts a control plane with its files in dir, and waits until it answers.
func startPlane(ctx context.Context, dir, assets string) (*plane, error) {
	p := &plane{dir: dir, assets: assets}
	ports, err := freePorts(3)
	if err == nil {
		p.port = ports[0]
		err = p.prepare()
	}
	if err == nil {
		err = p.launch(fmt.Sprintf("http://127.0.0.1:%d", ports[1]), fmt.Sprintf("http://127.0.0.1:%d", ports[2]))
	}
	if err == nil {
		err = p.await(ctx)
	}
	if err == nil {
		p.config, err = clientcmd.BuildConfigFromFlags("", p.kubeconfig())
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	p.config.QPS = -1
	return p, nil
}

// freePorts returns ports of 127.0.0.1 without a listener.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// prepare writes the key of the accounts, and the administrator's token.
func (p *plane) prepare() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	token := rand.Text()
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return errors.Join(
		os.WriteFile(p.path("sa.key"), block, 0o600),
		os.WriteFile(p.path("tokens.csv"), []byte(token+`,admin,1,"system:masters"`+"\n"), 0o600),
		os.WriteFile(p.kubeconfig(), []byte(kubeconfigWith(p.port, token)), 0o600),
	)
}

// kubeconfigWith returns the text of a kubeconfig with a token.
func kubeconfigWith(port int, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:%d", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: "%s"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, port, token)
}

func (p *plane) launch(etcd, peers string) error {
	log, err := os.OpenFile(p.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the programs have their own
	for _, cmd := range []*exec.Cmd{
		exec.Command(
			filepath.Join(p.assets, "etcd"),
			"--name=lab",
			"--data-dir="+p.path("etcd"),
			"--unsafe-no-fsync",
			"--listen-client-urls="+etcd,
			"--advertise-client-urls="+etcd,
			"--listen-peer-urls="+peers,
			"--initial-advertise-peer-urls="+peers,
			"--initial-cluster=lab="+peers,
		),
		exec.Command(
			filepath.Join(p.assets, "kube-apiserver"),
			"--etcd-servers="+etcd,
			"--bind-address=127.0.0.1",
			"--advertise-address=127.0.0.1",
			"--endpoint-reconciler-type=none", // it refuses loopback addresses
			fmt.Sprintf("--secure-port=%d", p.port),
			"--cert-dir="+p.path("certs"),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file="+p.path("sa.key"),
			"--service-account-signing-key-file="+p.path("sa.key"),
			"--token-auth-file="+p.path("tokens.csv"),
			"--authorization-mode=RBAC",
			"--service-cluster-ip-range=10.96.0.0/16",
		),
	} {
		cmd.Stdout, cmd.Stderr = log, log
		process, err := stage.Start(cmd, func(f func() error) error { return f() })
		if err != nil {
			return err
		}
		p.processes = append(p.processes, process)
	}
	return nil
}

func (p *plane) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		_, err := p.kubectl(ctx, "get", "--raw=/readyz")
		if err == nil {
			return nil
		}
		for _, process := range p.processes {
			select {
			case <-process.Done():
				return fmt.Errorf("%w: %s", process.Ended(), tail(p.path("log"), 2000))
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", err, tail(p.path("log"), 2000))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (p *plane) stop() {
	for i := len(p.processes) - 1; i >= 0; i-- {
		_ = p.processes[i].Kill() // it may have ended
	}
}

// kubectl runs kubectl as the administrator and returns its output.
func (p *plane) kubectl(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--kubeconfig=" + p.kubeconfig(), "--cache-dir=" + p.path("cache")}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(p.assets, "kubectl"), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %q: %w: %s", args[2:], err, out)
	}
	return string(out), nil
}

// tail returns the last bytes of a file.
func tail(path string, most int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
