// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

const version = "0.1.0-dev"

// versions holds the output of version.
type versions struct {
	Client     clientVersion `json:"client"`
	Agent      string        `json:"agent"` // "" where none answers
	AgentError string        `json:"agentError,omitempty"`
}

// clientVersion describes the build of this program.
type clientVersion struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source, where known
	Modified bool   `json:"modified,omitempty"` // the source differed from that
	Go       string `json:"go"`
}

func thisVersion() clientVersion {
	v := clientVersion{Version: version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Go = info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v clientVersion) String() string {
	text := v.Version
	if v.Revision != "" {
		text += ", " + v.Revision[:min(len(v.Revision), 12)]
		if v.Modified {
			text += " with changes"
		}
	}
	return text + ", " + v.Go
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Show the version of this program, and of the agent if it answers",
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			v := versions{Client: thisVersion()}
			var s localapi.Status
			if err := a.client().get(ctx, localapi.PathStatus, &s); err != nil {
				v.AgentError = err.Error()
			}
			v.Agent = s.Version
			return a.print(v, func(bool) string {
				agent := v.Agent
				if v.AgentError != "" {
					agent = "unknown: " + v.AgentError
				}
				return grid{{"cadastre", v.Client.String()}, {"agent", agent}}.String()
			})
		}),
	}
}
