// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// nodeReleased is what node release prints.
type nodeReleased struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"`
}

func (a *app) nodeReleaseCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Make the ID of a node free that is gone for good",
		Long: `release makes the ID of a node free, and with it its subnets, so that another node
may claim them. The node must be gone for good: where it still runs, two nodes
may then use the same addresses. An agent refuses to release its own node, and
one that was there a moment ago; --force overrides the latter.`,
		Example: `  cadastre node release node-7
  cadastre node release node-7 --force`,
		Args:              oneName,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, workTimeout)
			defer cancel()
			var reply localapi.NodeReleaseReply
			if err := a.client().post(ctx, localapi.PathNodeRelease, localapi.NodeReleaseRequest{Name: args[0], Force: force}, &reply); err != nil {
				return fmt.Errorf("node release: %w", err)
			}
			done := nodeReleased{args[0], reply.ID}
			return a.print(done, func(bool) string { return fmt.Sprintf("released node ID %d of %s\n", done.ID, clean(done.Name)) })
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also if the node was there a moment ago")
	return cmd
}

// oneName wants the name of a node.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes one NAME, but was given %d arguments", cmd.Name(), len(args))
	}
	return nil
}
