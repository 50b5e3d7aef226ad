// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/engines/containerd"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/internal/version"
)

// The image of pods has busybox and the program inside: pods serve, and what holds a pod's
// network sleeps. The DaemonSet that uninstalls names Kubernetes' own image for that.
const (
	image       = "docker.io/cadastre-e2e/busybox:1"
	pause       = "docker.io/cadastre-e2e/pause:1"
	publicPause = "registry.k8s.io/pause:3.10"
)

// buildImages makes our images as a release does, for this machine.
func buildImages(ctx context.Context, place stage.Place) error {
	_, err := goTool(
		ctx,
		filepath.Join(place.Root, "dist", "release"),
		"run", ".",
		"--version", version.Next, // as the manifests
		"--arch", runtime.GOARCH,
		"--groups", "main",
		"--out", imageDir(place),
		"images",
	)
	return err
}

// imageDir returns the folder of our images.
func imageDir(place stage.Place) string { return filepath.Join(place.Bin, "images") }

// images returns the archives of all images: those of a release for the DaemonSet, and one
// of the scenario, which it writes.
func images(place stage.Place, set daemonSet) (files []string, err error) {
	agent, installer, err := set.images()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{agent, installer} {
		file := filepath.Join(imageDir(place), strings.Replace(name, ":", "_", 1)+".oci.tar")
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("find the image %s of the DaemonSet among those of a release: %w", name, err)
		}
		files = append(files, file)
	}
	busybox, err := containerd.StaticBusybox()
	if err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	archive, err := containerd.Archive([]containerd.Image{{
		Names:      []string{image, pause, publicPause},
		Programs:   map[string]string{"bin/busybox": busybox, "inside": place.Program("inside")},
		Entrypoint: []string{"/bin/busybox"},
		Arguments:  []string{"sleep", "1000000"},
	}})
	if err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	file := filepath.Join(imageDir(place), "scenario.tar")
	if err := os.WriteFile(file, archive, 0o600); err != nil {
		return nil, fmt.Errorf("make the images: %w", err)
	}
	return append(files, file), nil
}

// importImages gives the images to the node's containerd.
func (n *node) importImages(ctx context.Context, files []string) error {
	for _, file := range files {
		_, err := output(ctx, n.command(ctx, "ctr", "--address", runtimeSocket, "--namespace", "k8s.io",
			"images", "import", "--snapshotter", "native", file))
		if err != nil {
			return err
		}
	}
	return nil
}
