// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package deb makes the Debian packages of a release: cadastre, with the agent, the command
// line, the systemd units and the configuration, and cadastre-cni, with the CNI plugin. The
// programs are static, so the packages depend on nothing. Nothing is started when a package
// is installed: the configuration has to have networks of the machine's place first.
//
// The same programs and time give the same bytes.
package deb

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	nfpmdeb "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"

	"github.com/cadastre/cadastre/dist/release/build"
)

// Package describes a package.
type Package struct {
	Name        string
	Description string
	Uses        []string // the names of the programs of the main group
	contents    func(place) files.Contents
	scripts     bool // the folder scripts has NAME.postinst, NAME.prerm and NAME.postrm
}

// place holds where the files of a package are on this machine.
type place struct {
	root     string // of the source
	programs string
}

// Packages returns the packages of a release.
func Packages() []Package {
	return []Package{
		{
			Name: "cadastre",
			Description: "addresses of this node's pods and containers\n" +
				"The agent cadastre-agent leases addresses to pods and containers, cadastre shows them.",
			Uses:     []string{"cadastre-agent", "cadastre"},
			contents: agentContents,
			scripts:  true,
		},
		{
			Name: "cadastre-cni",
			Description: "CNI plugin of Cadastre\n" +
				"A container runtime starts cadastre-cni, which asks the agent of package cadastre.",
			Uses:     []string{"cadastre-cni"},
			contents: pluginContents,
		},
	}
}

// Folders of Debian.
const (
	bin   = "/usr/bin"
	units = "/usr/lib/systemd/system"
)

func agentContents(p place) files.Contents {
	source := func(name string) string { return filepath.Join(p.root, filepath.FromSlash(name)) }
	return files.Contents{
		file(filepath.Join(p.programs, "cadastre-agent"), bin+"/cadastre-agent", 0o755),
		file(filepath.Join(p.programs, "cadastre"), bin+"/cadastre", 0o755),
		link("cadastre", bin+"/kubectl-cadastre"),
		file(source("dist/systemd/cadastre-agent.service"), units+"/cadastre-agent.service", 0o644),
		file(source("dist/systemd/cadastre-docker.socket"), units+"/cadastre-docker.socket", 0o644),
		configuration(source("conf/contiv.conf"), "/etc/cadastre/contiv.conf"),
		file(source("conf/reference.conf"), "/usr/share/doc/cadastre/reference.conf", 0o644),
	}
}

func pluginContents(p place) files.Contents {
	const plugin = "/opt/cni/bin/cadastre-cni" // the folder of kubelet's package; Debian's containerd looks in the other
	return files.Contents{
		file(filepath.Join(p.programs, "cadastre-cni"), plugin, 0o755),
		link(plugin, "/usr/lib/cni/cadastre-cni"),
	}
}

func file(source, destination string, mode os.FileMode) *files.Content {
	return &files.Content{Source: source, Destination: destination, FileInfo: &files.ContentFileInfo{Mode: mode}}
}

// configuration returns a file that the user changes: an upgrade asks before it replaces it.
func configuration(source, destination string) *files.Content {
	c := file(source, destination, 0o644)
	c.Type = files.TypeConfig
	return c
}

func link(target, name string) *files.Content {
	return &files.Content{Source: target, Destination: name, Type: files.TypeSymlink}
}

// Make returns the package for an architecture, and the name of its file.
func (p Package) Make(s build.Source, arch, programs string) (name string, data []byte, err error) {
	contents := p.contents(place{root: s.Root, programs: programs})
	license := path.Join("/usr/share/doc", p.Name, "copyright")
	contents = append(contents, file(filepath.Join(s.Root, "LICENSE"), license, 0o644))
	for _, c := range contents {
		if c.FileInfo == nil {
			c.FileInfo = &files.ContentFileInfo{}
		}
		c.FileInfo.Owner, c.FileInfo.Group, c.FileInfo.MTime = "root", "root", s.Time
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name:            p.Name,
		Arch:            arch,
		Platform:        "linux",
		Version:         s.Version,
		Section:         "net",
		Priority:        "optional",
		Maintainer:      "The Cadastre Authors <authors@cadastre.dev>",
		Description:     p.Description,
		Homepage:        "https://github.com/cadastre/cadastre",
		License:         "Apache-2.0",
		MTime:           s.Time,
		DisableGlobbing: true,
		Overridables:    nfpm.Overridables{Contents: contents, Umask: 0o022},
	})
	if p.scripts {
		script := func(kind string) string {
			return filepath.Join(s.Root, "dist", "release", "deb", "scripts", p.Name+"."+kind)
		}
		info.Scripts = nfpm.Scripts{
			PostInstall: script("postinst"),
			PreRemove:   script("prerm"),
			PostRemove:  script("postrm"),
		}
	}
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return "", nil, fmt.Errorf("make the package %s for %s: %w", p.Name, arch, err)
	}
	var out bytes.Buffer
	if err := nfpmdeb.Default.Package(info, &out); err != nil {
		return "", nil, fmt.Errorf("make the package %s for %s: %w", p.Name, arch, err)
	}
	return nfpmdeb.Default.ConventionalFileName(info), out.Bytes(), nil
}
