// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// nodeName is that of the only node.
const nodeName = "node-1"

// Images are busybox alone: pods sleep, and so does what holds a pod's network.
const (
	image = "docker.io/cadastre-e2e/busybox:1"
	pause = "docker.io/cadastre-e2e/pause:1"
)

// node is a containerd and a kubelet in a room.
type node struct {
	dir   string // their files
	group string // what pods are below
	plane plane
}

func (n node) path(name string) string { return filepath.Join(n.dir, name) }

// The socket has a short path.
const runtimeSocket = "/run/containerd/containerd.sock"

// prepare writes the configurations, and CNI's plugins but for ours.
func (n node) prepare() error {
	if err := os.MkdirAll(n.path("cni/bin"), 0o755); err != nil {
		return fmt.Errorf("prepare the node: %w", err)
	}
	for _, name := range plugins() {
		if err := os.Symlink(pluginDir+name, n.path("cni/bin/"+name)); err != nil {
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
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "` + n.path("cni/bin") + `"
  conf_dir = "` + n.path("cni/net.d") + `"
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

// asOld is a conflist of the newest version that Debian's runtime and plugins
// know: the field's value is all that is changed.
func asOld(list string) (string, error) {
	const newer, older = `"cniVersion": "1.1.0"`, `"cniVersion": "1.0.0"`
	if strings.Count(list, older) == 1 && !strings.Contains(list, newer) {
		return list, nil
	}
	return replaceOnce(list, newer, older)
}

// installCNI does what the agent's pod does first: our plugin, then the conflist
// that names it.
func (n node) installCNI(ctx context.Context, place stage.Place) error {
	list, err := os.ReadFile(filepath.Join(place.Root, "k8s", "base", "10-cadastre.conflist"))
	if err != nil {
		return fmt.Errorf("install CNI: %w", err)
	}
	text, err := asOld(string(list))
	if err != nil {
		return fmt.Errorf("install CNI: %w", err)
	}
	if err := os.WriteFile(n.path("10-cadastre.conflist"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("install CNI: %w", err)
	}
	_, err = output(ctx, exec.CommandContext(
		ctx,
		place.Program("cni-installer"),
		place.Program(
			"cadastre-cni",
		)+"="+n.path(
			"cni/bin/cadastre-cni",
		),
		n.path("10-cadastre.conflist")+"="+n.path("cni/net.d/10-cadastre.conflist"),
	))
	return err
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
	path := n.path("cni/bin/" + lastPlugin)
	if err := errors.Join(os.WriteFile(path+".new", []byte(script), 0o755), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("break a plugin: %w", err)
	}
	return nil
}

func (n node) mendPlugin() error {
	path := n.path("cni/bin/" + lastPlugin)
	if err := errors.Join(os.Symlink(pluginDir+lastPlugin, path+".new"), os.Rename(path+".new", path)); err != nil {
		return fmt.Errorf("mend a plugin: %w", err)
	}
	return nil
}

// replaceOnce replaces what must be there once.
func replaceOnce(text, old, with string) (string, error) {
	if n := strings.Count(text, old); n != 1 {
		return "", fmt.Errorf("%q is there %d times, not once", old, n)
	}
	return strings.Replace(text, old, with, 1), nil
}

// importImages gives containerd the images.
func (n node) importImages(ctx context.Context) error {
	busybox, err := staticBusybox()
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	code, err := os.ReadFile(busybox)
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	archive, err := imagesOf(code)
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	file := n.path("images.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	_, err = output(
		ctx,
		exec.CommandContext(
			ctx,
			"ctr",
			"--address",
			runtimeSocket,
			"--namespace",
			"k8s.io",
			"images",
			"import",
			"--snapshotter",
			"native",
			file,
		),
	)
	return err
}

// imagesOf is an archive of both images, as docker save writes them.
func imagesOf(busybox []byte) ([]byte, error) {
	layer, err := archive(entry{"bin/busybox", busybox, 0o755})
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/bin/busybox"}, "Cmd": []string{"sleep", "1000000"}},
		"rootfs": map[string]any{
			"type":     "layers",
			"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(
		[]map[string]any{
			{"Config": "config.json", "RepoTags": []string{image, pause}, "Layers": []string{"layer.tar"}},
		},
	)
	if err != nil {
		return nil, err
	}
	return archive(
		entry{"manifest.json", manifest, 0o644},
		entry{"config.json", config, 0o644},
		entry{"layer.tar", layer, 0o644},
	)
}

// entry is a file of an archive.
type entry struct {
	name string
	data []byte
	mode int64
}

func archive(all ...entry) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range all {
		err := w.WriteHeader(&tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data))})
		if err == nil {
			_, err = w.Write(e.data)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s into an archive: %w", e.name, err)
		}
	}
	return b.Bytes(), w.Close()
}
