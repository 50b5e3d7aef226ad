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
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// plane is a control plane in a room: an etcd, a kube-apiserver, and of the controller
// manager the controllers that an agent's pod needs. Pods name their node, or this
// program binds them to it: there is no scheduler.
type plane struct {
	dir    string // its files
	assets string
}

// server is the URL of the API server, proxyName the account of kube-proxy.
const (
	proxyName = "kube-proxy"
	server    = "https://" + planeIP + ":6443"
)

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
			"--bind-address="+planeIP,
			"--advertise-address="+planeIP,
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
			"--allow-privileged=true",
			"--kubelet-preferred-address-types=InternalIP", // or exec would ask a DNS for the node
		),
	}
}

// controllers returns the program that makes pods of DaemonSets, default accounts, the
// certificate that pods verify the API server with, and endpoints of Services.
func (p plane) controllers() *exec.Cmd {
	return exec.Command(
		p.program("kube-controller-manager"),
		"--kubeconfig="+p.kubeconfig("admin"),
		"--controllers="+strings.Join([]string{
			"daemonset-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
			"endpointslice-controller",                             // kube-proxy
			"namespace-controller", "garbage-collector-controller", // deletions
		}, ","),
		"--root-ca-file="+p.path("certs/apiserver.crt"),
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--cert-dir="+p.path("controllers"),
	)
}

// prepare writes keys and tokens, of an administrator, of kube-proxy and of the nodes.
func (p plane) prepare(nodes ...string) error {
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
	type account struct{ kubeconfig, user, groups string }
	accounts := []account{
		{"admin", "admin", "system:masters"},
		{proxyName, "system:kube-proxy", "system:authenticated"},
	}
	for _, name := range nodes {
		accounts = append(accounts, account{name, "system:node:" + name, "system:nodes"})
	}
	var tokens strings.Builder
	for i, a := range accounts {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%d,%q\n", token, a.user, i+1, a.groups)
		if err := p.writeKubeconfig(a.kubeconfig, token); err != nil {
			return err
		}
	}
	if err := os.WriteFile(p.path("tokens.csv"), []byte(tokens.String()), 0o600); err != nil {
		return fmt.Errorf("prepare the control plane: %w", err)
	}
	return nil
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

// command returns the command that runs kubectl as the administrator.
func (p plane) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(
		ctx,
		p.program("kubectl"),
		append([]string{"--kubeconfig=" + p.kubeconfig("admin"), "--cache-dir=" + p.path("cache")}, args...)...)
}

func (p plane) feed(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := p.command(ctx, args...)
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

// furnish applies our objects' definitions and the manifests of a mode, and writes a
// kubeconfig with a token of the operator's account.
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
	if err := p.writeOverlay(place, mode); err != nil {
		return err
	}
	if _, err := p.kubectl(ctx, "apply", "--validate=strict", "--kustomize="+p.path("overlay")); err != nil {
		return err
	}
	token, err := p.kubectl(ctx, "create", "token", "cadastre-operator", "--namespace="+namespace, "--duration=1h")
	if err != nil {
		return err
	}
	return p.writeKubeconfig("cadastre-operator", token)
}

// writeOverlay writes a kustomization of the manifests of a mode as they are shipped,
// with settings of contiv.conf that spare the test minutes of waiting.
func (p plane) writeOverlay(place stage.Place, mode string) error {
	shipped, err := os.ReadFile(filepath.Join(manifests(place, mode), "contiv.conf"))
	if err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	dir := p.path("overlay")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	root, err := filepath.EvalSymlinks(manifests(place, mode)) // kustomize takes no absolute paths
	if err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	base, err := filepath.Rel(dir, root)
	if err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	list := `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: ` + namespace + `
resources: [` + base + `]
configMapGenerator:
  - {name: cadastre-config, behavior: merge, files: [contiv.conf]}
`
	const more = "  nodeIDs: {quarantine: 0s}\n  coolDown: 0s\n" +
		"  witnesses: {interval: 1s}\n  reclaim: {grace: 5s, undo: 3s}\n"
	err = os.WriteFile(filepath.Join(dir, "contiv.conf"), append(shipped, more...), 0o600)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(list), 0o600)); err != nil {
		return fmt.Errorf("configure the agent: %w", err)
	}
	return nil
}

// manifests is the folder of a mode.
func manifests(place stage.Place, mode string) string {
	return filepath.Join(place.Root, "k8s", mode+"-kubernetes")
}
