// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// nodeName is that of the only node.
const nodeName = "node-1"

// node is a containerd and a kubelet in a room.
type node struct {
	dir   string // their files
	root  string // "" in a room: CNI's folders are where runtimes expect them
	group string // what pods are below
	plane plane
}

func (n node) path(name string) string { return filepath.Join(n.dir, name) }

// The socket has a short path.
const runtimeSocket = "/run/containerd/containerd.sock"

// plugin is the path of a CNI plugin.
func (n node) plugin(name string) string { return filepath.Join(n.root, "/opt/cni/bin", name) }

// prepare writes the configurations, and CNI's plugins but for ours.
func (n node) prepare() error {
	for _, dir := range []string{n.dir, n.plugin("")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	for _, name := range plugins() {
		if err := os.Symlink(pluginDir+name, n.plugin(name)); err != nil {
			return fmt.Errorf("prepare the node: %w", err)
		}
	}
	err := os.WriteFile(n.path("containerd.toml"), []byte(n.containerdConfig()), 0o600)
	if err = errors.Join(err, os.WriteFile(n.path("kubelet.yaml"), []byte(n.kubeletConfig()), 0o600)); err != nil {
		return fmt.Errorf("prepare the node: %w", err)
	}
	return nil
}

// containerdConfig: lowering oom_score_adj needs a capability that root may
// lack, and the native snapshotter needs nothing of the file system.
func (n node) containerdConfig() string {
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
func (n node) kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ` + nodeIP + `
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

func (n node) containerd() (*exec.Cmd, error) {
	program, err := stage.LookPath("containerd")
	if err != nil {
		return nil, err
	}
	return exec.Command(program, "--config", n.path("containerd.toml")), nil
}

func (n node) kubelet() *exec.Cmd {
	return exec.Command(
		n.plane.program("kubelet"),
		"--config="+n.path("kubelet.yaml"),
		"--kubeconfig="+n.plane.kubeconfig("node"),
		"--hostname-override="+nodeName,
		"--node-ip="+nodeIP,
		"--root-dir=/var/lib/kubelet",
		"--cert-dir="+n.path("pki"),
	)
}

// lastPlugin is the one that comes after ours, broken what it says then.
const (
	lastPlugin = "portmap"
	broken     = "this plugin is broken for a while"
)

// breakPlugin makes each ADD of the last plugin fail; it does all else.
func (n node) breakPlugin() error {
	script := `#!/bin/sh
[ "$CNI_COMMAND" != ADD ] || { echo '{"cniVersion":"1.0.0","code":100,"msg":"` + broken + `"}'; exit 1; }
exec ` + pluginDir + lastPlugin + "\n"
	path := n.plugin(lastPlugin)
	if err := errors.Join(os.WriteFile(path+".new", []byte(script), 0o755), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("break a plugin: %w", err)
	}
	return nil
}

func (n node) mendPlugin() error {
	path := n.plugin(lastPlugin)
	if err := errors.Join(os.Symlink(pluginDir+lastPlugin, path+".new"), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("mend a plugin: %w", err)
	}
	return nil
}
