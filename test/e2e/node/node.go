// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
)

// node is a containerd, a kubelet and a kube-proxy in namespaces of their own, and the
// agent of the DaemonSet.
type node struct {
	name    string
	ip      string // its InternalIP
	gateway string // the router's address
	dir     string // its files
	group   string // the parent of the pods' control groups
	plane   plane
	agent   stage.Agent
	ns      *netlab.Namespace
	holder  *stage.Process
	runtime *stage.Process // containerd
	// ownPortMap: the folder of plugins has Debian's portmap itself, and not a link to it.
	ownPortMap bool
}

// newNodes returns two nodes of which neither has a network with the other one.
func newNodes(opt stage.Options, p plane) (all []*node) {
	for _, n := range []node{
		{name: "node-1", ip: "192.0.2.11", gateway: "192.0.2.1"},
		{name: "node-2", ip: "198.51.100.12", gateway: "198.51.100.1", ownPortMap: true},
	} {
		n.dir = filepath.Join(opt.Dir, n.name)
		n.group = groupName(opt.Dir) + "/" + n.name
		n.plane = p
		n.agent = stage.Agent{
			Place:  stage.Place{Root: opt.Root, Bin: opt.Bin, Dir: n.path("agent")},
			Config: filepath.Join(opt.Dir, "contiv.conf"),
			Node:   n.name,
		}
		all = append(all, &n)
	}
	return all
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// The socket has a short path on the node.
const runtimeSocket = "/run/containerd/containerd.sock"

// plugin returns the path of a CNI plugin.
func (n *node) plugin(name string) string { return n.host("/opt/cni/bin/" + name) }

// prepare writes the configurations, and CNI's plugins but for ours.
func (n *node) prepare() error {
	for _, dir := range []string{n.dir, n.plugin(""), n.agent.Dir, n.host("/run/cadastre")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	for _, name := range plugins() {
		if err := os.Symlink(pluginDir+name, n.plugin(name)); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	if n.ownPortMap {
		if err := n.copyPlugin(conflist.PortMap); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	err := os.Symlink(n.host("/run/cadastre"), filepath.Dir(n.agent.Socket())) // the agent's pod mounts it
	err = errors.Join(err, os.WriteFile(n.path("containerd.toml"), []byte(n.containerdConfig()), 0o600))
	if err = errors.Join(err, os.WriteFile(n.path("kubelet.yaml"), []byte(n.kubeletConfig()), 0o600)); err != nil {
		return fmt.Errorf("prepare the node: %w", err)
	}
	return nil
}

// copyPlugin replaces the link to a plugin by the plugin. The agent's pod does not see what
// the link names, and lacks the loader of the plugin itself.
func (n *node) copyPlugin(name string) error {
	program, err := os.ReadFile(pluginDir + name)
	if err != nil {
		return err
	}
	if err := os.Remove(n.plugin(name)); err != nil {
		return err
	}
	return os.WriteFile(n.plugin(name), program, 0o755)
}

// containerdConfig: lowering oom_score_adj needs a capability that root may
// lack, and the native snapshotter needs nothing of the file system.
func (n *node) containerdConfig() string {
	return `version = 2
root = "` + n.path("containerd") + `"
[grpc]
  address = "` + runtimeSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pause + `"
  restrict_oom_score_adj = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
`
}

// kubeletConfig: of what it does elsewhere it only leaves the machine alone.
func (n *node) kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ` + n.ip + `
healthzBindAddress: 127.0.0.1
readOnlyPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://` + runtimeSocket + `
cgroupDriver: cgroupfs
cgroupRoot: /` + n.group + `
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: ["none"]
evictionHard: {memory.available: 1Mi, nodefs.available: 1Mi, imagefs.available: 1Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
resolvConf: ""
podLogsDir: /var/log/pods
volumePluginDir: ` + n.path("volumes") + `
`
}

func (n *node) containerd(ctx context.Context) (*exec.Cmd, error) {
	program, err := stage.LookPath("containerd")
	if err != nil {
		return nil, err
	}
	return n.command(ctx, program, "--config", n.path("containerd.toml")), nil
}

func (n *node) kubelet(ctx context.Context) *exec.Cmd {
	return n.command(
		ctx,
		n.plane.program("kubelet"),
		"--config="+n.path("kubelet.yaml"),
		"--kubeconfig="+n.plane.kubeconfig(n.name),
		"--hostname-override="+n.name,
		"--node-ip="+n.ip,
		"--root-dir=/var/lib/kubelet",
		"--cert-dir="+n.path("pki"),
	)
}

// proxy returns kube-proxy's command. The settings of connection tracking that it would
// write are the whole machine's.
func (n *node) proxy(ctx context.Context) *exec.Cmd {
	return n.command(
		ctx,
		n.plane.program("kube-proxy"),
		"--kubeconfig="+n.plane.kubeconfig(proxyName),
		"--hostname-override="+n.name,
		"--proxy-mode=iptables",
		"--cluster-cidr=10.1.0.0/16", // podSubnetCIDR
		"--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0",
		"--conntrack-tcp-timeout-close-wait=0",
		"--healthz-bind-address=127.0.0.1:10256",
	)
}

// brokenPlugin is the one that a runtime executes beside ours, broken its message then.
const (
	brokenPlugin = "loopback"
	broken       = "this plugin is broken for a while"
)

// breakPlugin makes each ADD of the other plugin fail; it does all else.
func (n *node) breakPlugin() error {
	script := `#!/bin/sh
[ "$CNI_COMMAND" != ADD ] || { echo '{"cniVersion":"1.0.0","code":100,"msg":"` + broken + `"}'; exit 1; }
exec ` + pluginDir + brokenPlugin + "\n"
	path := n.plugin(brokenPlugin)
	if err := errors.Join(os.WriteFile(path+".new", []byte(script), 0o755), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("break a plugin: %w", err)
	}
	return nil
}

func (n *node) mendPlugin() error {
	path := n.plugin(brokenPlugin)
	if err := errors.Join(os.Symlink(pluginDir+brokenPlugin, path+".new"), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("mend a plugin: %w", err)
	}
	return nil
}
