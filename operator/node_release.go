// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// nodeCmd returns the commands for nodes of clusters whose store is the API server.
func nodeCmd(h host) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Manage nodes of clusters whose store is the API server",
		RunE:  func(*cobra.Command, []string) error { return errUsage },
	}
	cmd.AddCommand(nodeReleaseCmd(h))
	return cmd
}

// nodeReleaseCmd returns the command that releases the ID of a node. It writes
// with the rights of its caller: an agent may not release another node's ID.
func nodeReleaseCmd(h host) *cobra.Command {
	var o commandLine
	var gone nodesync.Gone
	cmd := &cobra.Command{
		Use:   "release NAME",
		Short: "Release the ID and the claims of a node that is gone for good",
		Long: `release releases the ID and the claims of a node, and with them its subnets, so
that another node can get them. The node must be gone for good: if pods of it still
run, they share their addresses with pods of another node. release refuses a node
whose agent has sent a beat within --fresh, unless --force is given. A node's clock
may be slow, so release looks for a beat for half of that time first. If the agent
may still allocate, because its last beat is younger than --node-id-expire and does
not announce its end, other nodes wait until that time is over.

It is for clusters whose store is the API server. With etcd as the store,
"cadastre node release NAME" does the same through an agent.`,
		Example: `  kubectl -n cadastre-system exec deployment/cadastre-operator -- /cadastre-operator node release node-7
  cadastre-operator node release node-7 --kubeconfig=$HOME/.kube/config`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return fmt.Errorf("node release: %d arguments: want one NAME", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			gone.Name = args[0]
			id, err := releaseNode(cmd, h, o, gone)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "cadastre-operator: node release:", err)
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "released node ID %d of %s\n", id, gone.Name)
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringVar(
		&o.kubeconfig,
		flagKubeconfig,
		"",
		"the `file` that says where the API server is; empty in a pod, whose account is used",
	)
	fs.BoolVar(&gone.Force, "force", false, "release the node even if its agent has sent a beat within --fresh")
	fs.DurationVar(
		&gone.Fresh,
		"fresh",
		3*time.Minute,
		"how long after its last beat an agent counts as alive, as nodeIDs.fresh of contiv.conf",
	)
	fs.DurationVar(
		&gone.Expire,
		flagExpire,
		24*time.Hour,
		"how long after its last beat an agent may allocate, as nodeIDs.expire of contiv.conf",
	)
	o.qps, o.burst = 50, 100
	return cmd
}

// releaseNode releases the ID of a node, and returns it.
func releaseNode(cmd *cobra.Command, h host, o commandLine, gone nodesync.Gone) (id uint32, err error) {
	c, err := h.clients(o)
	if err != nil {
		return 0, err
	}
	store, err := h.store(storeOptions{kind: storeKubernetes}, c, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	gone.Watch = gone.Fresh / 2 // an agent beats at least as often
	gone.Claims = &claims.Register{Store: store, Fresh: gone.Fresh, Expire: gone.Expire}
	return nodesync.Release(cmd.Context(), store, gone, time.Now())
}
