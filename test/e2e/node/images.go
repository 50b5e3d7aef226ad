// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path"

	"github.com/cadastre/cadastre/internal/testkit/containerd"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// The image of pods has busybox and the program inside: pods serve, and what holds a pod's
// network sleeps. The DaemonSet that uninstalls names Kubernetes' own image for that.
const (
	image       = "docker.io/cadastre-e2e/busybox:1"
	pause       = "docker.io/cadastre-e2e/pause:1"
	publicPause = "registry.k8s.io/pause:3.10"
)

// images returns all images of the scenario; ours have the names of the DaemonSet.
func images(place stage.Place, set daemonSet) ([]containerd.Image, error) {
	busybox, err := containerd.StaticBusybox()
	if err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	agent, installer, err := set.images()
	if err != nil {
		return nil, err
	}
	return []containerd.Image{
		{
			Names:      []string{image, pause, publicPause},
			Programs:   map[string]string{"bin/busybox": busybox, "inside": place.Program("inside")},
			Entrypoint: []string{"/bin/busybox"},
			Arguments:  []string{"sleep", "1000000"},
		},
		{
			Names: []string{fullName(agent)},
			Programs: map[string]string{
				"cadastre-agent": place.Program("cadastre-agent"),
				"cadastre":       place.Program("cadastre"),
			},
			Entrypoint: []string{"/cadastre-agent"},
		},
		{
			Names: []string{fullName(installer)},
			Programs: map[string]string{
				"cadastre-cni":  place.Program("cadastre-cni"),
				"cni-installer": place.Program("cni-installer"),
			},
			Entrypoint: []string{"/cni-installer"},
		},
	}, nil
}

// fullName is the name under which a runtime looks for an image without a registry.
func fullName(name string) string { return path.Join("docker.io/library", name) }

// importImages gives the images to the node's containerd.
func (n *node) importImages(ctx context.Context, all []containerd.Image) error {
	archive, err := containerd.Archive(all)
	if err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	file := n.path("images.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		return fmt.Errorf("make the images: %w", err)
	}
	_, err = output(ctx, n.command(ctx, "ctr", "--address", runtimeSocket, "--namespace", "k8s.io",
		"images", "import", "--snapshotter", "native", file))
	return err
}
