// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package version describes the build of a program: its version, the commit of its source
// and the version of Go. The linker writes version and commit of a release:
//
//	go build -ldflags "-X github.com/cadastre/cadastre/internal/version.release=1.2.0"
//
// Without these flags the version is Next, and the commit comes from what Go has recorded,
// if it has. The functions only read; they can be called from several goroutines.
package version

import (
	"runtime/debug"
	"strings"
)

// Next is the version of a program that was not built as a release. It is the tag of the
// images in k8s/, too.
const Next = "0.1.0-dev"

// The linker writes these of a release: the version without "v", and the whole commit, with
// "+changes" behind it if the source differed.
var release, commit string

// Info describes the build of a program.
type Info struct {
	Version  string
	Commit   string // of the source; "" if unknown
	Modified bool   // the source differed from Commit
	Go       string
}

// Current returns the version of this program.
func Current() string {
	if release != "" {
		return release
	}
	return Next
}

// Read describes the build of this program.
func Read() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return describe(Current(), commit, info)
}

// describe prefers the linker's commit to the one that Go has recorded.
func describe(version, commit string, build *debug.BuildInfo) Info {
	i := Info{Version: version, Go: build.GoVersion}
	if commit != "" {
		i.Commit, i.Modified = strings.CutSuffix(commit, "+changes")
		return i
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Commit = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
}

// String returns the parts on one line, such as "1.2.0, 0123456789ab, go1.26.8".
func (i Info) String() string {
	parts := []string{i.Version}
	if i.Commit != "" {
		source := i.Commit[:min(len(i.Commit), 12)]
		if i.Modified {
			source += " with changes"
		}
		parts = append(parts, source)
	}
	if i.Go != "" {
		parts = append(parts, i.Go)
	}
	return strings.Join(parts, ", ")
}

// Line returns what a program prints for --version, without the end of the line.
func Line(program string) string { return program + " " + Read().String() }
