// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// nodeReleased holds the output of node release.
type nodeReleased struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"`
	// Until holds the time from which other nodes may have the node's ID and blocks, nil: now.
	Until *time.Time `json:"until,omitempty"`
}

func (a *app) nodeReleaseCmd() *cobra.Command {
	var force, dryRun bool
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Release the ID and the claims of a node that is gone for good",
		Long: `release gives up the ID and the claims of a node, and with them its subnets, so
that another node may have them. The node must be gone for good: its pods, if any
are left, then share their addresses with those of another node. If its agent may
still allocate addresses, since it was last seen less than cadastre.nodeIDs.expire
ago and has not said that it ends, other nodes wait until that time is over. An
agent refuses (exit code 4) to release its own node, and one that was there a moment
ago or that shows itself within half of cadastre.nodeIDs.fresh, for which release
waits; --force overrides the latter, and does not wait. No agent sees the pods of
another node: its last beat is the evidence that it is gone.`,
		Example: `  cadastre node release node-7
  cadastre node release node-7 --dry-run
  cadastre node release node-7 --force`,
		Args:              oneName,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, workTimeout)
			defer cancel()
			var reply localapi.NodeReleaseReply
			if err := a.client().post(
				ctx,
				localapi.PathNodeRelease,
				localapi.NodeReleaseRequest{Name: args[0], Force: force, DryRun: dryRun},
				&reply,
			); err != nil {
				return refusedNode(fmt.Errorf("node release: %w", err))
			}
			done := nodeReleased{args[0], reply.ID, reply.Until}
			return a.print(done, func(bool) string {
				if dryRun {
					return fmt.Sprintf("would release node ID %d of %s\n", done.ID, columns.Clean(done.Name))
				}
				text := fmt.Sprintf("released node ID %d of %s\n", done.ID, columns.Clean(done.Name))
				if done.Until != nil {
					text += fmt.Sprintf(
						"its agent may still run: other nodes get its addresses from %s on\n",
						done.Until.Format(time.RFC3339),
					)
				}
				return text
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also if the node was there a moment ago")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say whether the node would be released")
	return cmd
}

// refusedNode gives the error of a node that is there still its exit code.
func refusedNode(err error) error {
	var refused *refusedError
	if errors.As(err, &refused) && refused.status == http.StatusConflict {
		return &exitError{exitFindings, err}
	}
	return err
}

// oneName wants the name of a node.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes one NAME, but was given %d arguments", cmd.Name(), len(args))
	}
	return nil
}
