// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

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
	i := version.Read()
	return clientVersion{Version: i.Version, Revision: i.Commit, Modified: i.Modified, Go: i.Go}
}

func (v clientVersion) String() string {
	return version.Info{Version: v.Version, Commit: v.Revision, Modified: v.Modified, Go: v.Go}.String()
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
				return columns.Rows{{"cadastre", v.Client.String()}, {"agent", agent}}.String()
			})
		}),
	}
}
