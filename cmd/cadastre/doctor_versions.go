// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strings"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// bundleVersions holds the versions part of a bundle.
type bundleVersions struct {
	versions
	System string `json:"system,omitempty"` // such as "Debian GNU/Linux 12 (bookworm)"
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu"`
}

// versions asks the agent for its status, and returns the versions of all programs.
func (d *doctor) versions(ctx context.Context, s *localapi.Status) []byte {
	v := bundleVersions{versions: versions{Client: thisVersion()}, CPU: runtime.GOARCH}
	err := d.within(ctx, func(ctx context.Context) error { return d.client.get(ctx, localapi.PathStatus, s) })
	if err != nil {
		v.AgentError = err.Error()
	}
	v.Agent = s.Version
	v.System = systemName("/etc/os-release")
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		v.Kernel = strings.TrimSpace(string(release))
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return []byte(err.Error())
	}
	return append(text, '\n')
}

// systemName returns the PRETTY_NAME of os-release, "" if there is none.
func systemName(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"'`)
		}
	}
	return ""
}
