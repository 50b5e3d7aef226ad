// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package images makes the container images of a release as OCI layouts, without an engine
// and without a registry: each image is one layer of static programs on nothing. An image
// has the content and the settings of its stage of docker/Dockerfile; a test compares them.
//
// The same programs, certificates and time give the same bytes. The functions keep no state.
package images

import (
	"path"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cadastre/cadastre/dist/release/build"
)

// Image describes an image.
type Image struct {
	Name  string // without registry and tag
	Title string
	Group string // of the programs
	// Programs holds the name of each program by its path in the image.
	Programs map[string]string
	// Certificates: the authorities of TLS are in the image.
	Certificates bool

	User        string
	Entrypoint  []string
	Arguments   []string
	Healthcheck *v1.HealthConfig
}

// CertificatesPath is the path of the authorities of TLS, in images and on Debian.
const CertificatesPath = "/etc/ssl/certs/ca-certificates.crt"

const (
	// root: the agent's sockets are for root, and the installer's folder is root's.
	root = "0:0"
	// unprivileged is a user with neither files nor sockets.
	unprivileged = "65532:65532"
)

// For returns the images of a group.
func For(g build.Group) (all []Image) {
	with := "" // what the group adds to an image
	if g.Name != build.Main {
		with = "-" + g.Name
	}
	for _, program := range g.Programs() {
		switch program {
		case "cadastre-agent" + with:
			all = append(all, agent(program, g))
		case "cadastre-operator" + with:
			all = append(all, operator(program, g))
		case "cadastre-cni":
			all = append(all, installer(g))
		}
	}
	return all
}

func agent(program string, g build.Group) Image {
	return Image{
		Name:         program,
		Title:        "The node agent, and the command line",
		Group:        g.Name,
		Programs:     map[string]string{"/cadastre-agent": program, "/cadastre": "cadastre"},
		Certificates: g.Cloud(),
		User:         root,
		Entrypoint:   []string{"/cadastre-agent"},
		Healthcheck: &v1.HealthConfig{
			Test:        []string{"CMD", "/cadastre", "status", "--live"},
			Interval:    10 * time.Second,
			Timeout:     5 * time.Second,
			StartPeriod: 30 * time.Second,
		},
	}
}

func operator(program string, g build.Group) Image {
	return Image{
		Name:         program,
		Title:        "The cluster's operator",
		Group:        g.Name,
		Programs:     map[string]string{"/cadastre-operator": program},
		Certificates: g.Cloud(),
		User:         unprivileged,
		Entrypoint:   []string{"/cadastre-operator"},
	}
}

func installer(g build.Group) Image {
	return Image{
		Name:       "cadastre-cni",
		Title:      "The installer of the CNI plugin",
		Group:      g.Name,
		Programs:   map[string]string{"/cadastre-cni": "cadastre-cni", "/cni-installer": "cni-installer"},
		User:       root,
		Entrypoint: []string{"/cni-installer"},
		Arguments:  []string{"/cadastre-cni=/host/opt/cni/bin/cadastre-cni"},
	}
}

// Reference returns the name by which a runtime finds the image: with the registry's
// repository, and with the tag.
func (i Image) Reference(repository, tag string) string {
	return path.Join(repository, i.Name) + ":" + tag
}
