// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// plane is a control plane in a room: an etcd and a kube-apiserver. Nothing else
// is needed where pods say which node they are for.
type plane struct {
	dir    string // its files
	assets string
}

// server is the URL of the API server.
const server = "https://127.0.0.1:6443"

// namespace is that of our manifests.
const namespace = "cadastre-system"

func (p plane) path(name string) string       { return filepath.Join(p.dir, name) }
func (p plane) program(name string) string    { return filepath.Join(p.assets, name) }
func (p plane) kubeconfig(name string) string { return p.path(name + ".kubeconfig") }

// commands are the programs, in the order in which they start.
func (p plane) commands() []*exec.Cmd {
	const etcd, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []*exec.Cmd{
		exec.Command(
			p.program("etcd"),
			"--name=e2e",
			"--data-dir="+p.path("etcd"),
			"--listen-client-urls="+etcd,
			"--advertise-client-urls="+etcd,
			"--listen-peer-urls="+peers,
			"--initial-advertise-peer-urls="+peers,
			"--initial-cluster=e2e="+peers,
		),
		exec.Command(
			p.program("kube-apiserver"),
			"--etcd-servers="+etcd,
			"--bind-address=127.0.0.1",
			"--advertise-address=127.0.0.1",
			"--secure-port=6443",
			"--cert-dir="+p.path(
				"certs",
			),
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file="+p.path("sa.key"),
			"--service-account-signing-key-file="+p.path(
				"sa.key",
			),
			"--token-auth-file="+p.path("tokens.csv"),
			"--authorization-mode=Node,RBAC",
			"--service-cluster-ip-range=10.96.0.0/16",
			"--endpoint-reconciler-type=none",
			"--allow-privileged=true",
			"--kubelet-preferred-address-types=InternalIP", // or exec would ask a DNS for the node
			"--disable-admission-plugins=ServiceAccount",
		), // there is no controller that makes the default account
	}
}

// prepare writes keys and tokens, of an administrator and of the node.
func (p plane) prepare() error {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("prepare the control plane: %w", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("make the key of the accounts: %w", err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(p.path("sa.key"), block, 0o600); err != nil {
		return fmt.Errorf("prepare the control plane: %w", err)
	}
	admin, node := rand.Text(), rand.Text()
	tokens := admin + ",admin,1,\"system:masters\"\n" + node + ",system:node:" + nodeName + ",2,\"system:nodes\"\n"
	if err := os.WriteFile(p.path("tokens.csv"), []byte(tokens), 0o600); err != nil {
		return fmt.Errorf("prepare the control plane: %w", err)
	}
	if err := p.writeKubeconfig("admin", admin); err != nil {
		return err
	}
	return p.writeKubeconfig("node", node)
}

func (p plane) writeKubeconfig(name, token string) error {
	text := `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "` + server + `", certificate-authority: ` + p.path("certs/apiserver.crt") + `}}]
users: [{name: u, user: {token: "` + token + `"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
	if err := os.WriteFile(p.kubeconfig(name), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", name, err)
	}
	return nil
}

// kubectl runs kubectl as the administrator, for what it prints.
func (p plane) kubectl(ctx context.Context, args ...string) (string, error) {
	return p.feed(ctx, "", args...)
}

func (p plane) feed(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(
		ctx,
		p.program("kubectl"),
		append([]string{"--kubeconfig=" + p.kubeconfig("admin"), "--cache-dir=" + p.path("cache")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(ctx, cmd)
}

// read reads what kubectl get answers.
func (p plane) read(ctx context.Context, v any, args ...string) error {
	out, err := p.kubectl(ctx, append([]string{"get", "--output=json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("kubectl get %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// furnish applies our objects' definitions and the manifests of a mode, and
// writes kubeconfigs with tokens of the accounts that they have made.
func (p plane) furnish(ctx context.Context, place stage.Place, mode string) error {
	if _, err := p.kubectl(
		ctx,
		"apply",
		"--validate=strict",
		"--kustomize="+filepath.Join(place.Root, "k8s", "crd"),
	); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "apply", "--validate=strict", "--kustomize="+manifests(place, mode)); err != nil {
		return err
	}
	for _, account := range []string{"cadastre-agent", "cadastre-operator"} {
		token, err := p.kubectl(ctx, "create", "token", account, "--namespace="+namespace, "--duration=1h")
		if err != nil {
			return err
		}
		if err := p.writeKubeconfig(account, token); err != nil {
			return err
		}
	}
	return nil
}

// manifests is the folder of a mode.
func manifests(place stage.Place, mode string) string {
	return filepath.Join(place.Root, "k8s", mode+"-kubernetes")
}
