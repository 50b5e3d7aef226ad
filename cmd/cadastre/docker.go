// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// dockerCmd groups the verbs for Docker's pools.
func (a *app) dockerCmd() *cobra.Command {
	return group("docker", "List and release the pools of Docker's networks", a.dockerPoolsCmd())
}

const dockerPoolsHelp = `pools lists the pools that the Docker engine has requested for its networks, and
the addresses held in them. The pools are the agent's, or those of the managed
plugin cadastre-docker-plugin if its socket is named with --socket:

  cadastre --socket /var/lib/docker/plugins/ID/propagated-mount/agent.sock docker pools

The engine tells a driver neither the name of a network nor of a container: docker
network ls and docker network inspect show the network of a subnet.`

func (a *app) dockerPoolsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "List the pools of Docker's networks",
		Long:  dockerPoolsHelp,
		Example: `  cadastre docker pools
  cadastre docker pools release LocalDefault/10.50.0.0/24`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			pools, err := a.getDockerPools(ctx)
			if err != nil {
				return fmt.Errorf("docker pools: %w", err)
			}
			return a.print(pools, func(bool) string { return dockerPoolsTable(pools) })
		}),
	}
	cmd.AddCommand(a.dockerPoolReleaseCmd(), a.dockerPoolKeepCmd())
	return cmd
}

// getDockerPools returns all pools by ID; never nil.
func (a *app) getDockerPools(ctx context.Context) ([]localapi.DockerPool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pools := []localapi.DockerPool{}
	err := a.client().get(ctx, localapi.PathDockerPools, &pools)
	return pools, err
}

func dockerPoolsTable(pools []localapi.DockerPool) string {
	if len(pools) == 0 {
		return "no pools\n"
	}
	g := columns.Rows{{"POOL", "CIDR", "SUB-POOL", "LEASES", "REQUESTS", "REQUESTED WITH"}}
	for _, p := range pools {
		g.Add(p.ID, p.CIDR, p.SubPool, fmt.Sprint(p.Leases), fmt.Sprint(p.Requests), requestedWith(p))
	}
	text := g.String()
	for _, p := range pools {
		if x := p.GivenUp; x != nil {
			text += fmt.Sprintf(
				"\n%s: %s given up since %s: %s\n  cadastre docker pools keep %s undoes that\n",
				columns.Clean(p.ID),
				plural(
					x.Requests,
					"request is",
					"requests are",
				),
				x.Since.Format(time.RFC3339),
				columns.Clean(x.Evidence),
				columns.Clean(p.ID),
			)
		}
	}
	return text
}

// requestedWith describes the request that made a pool.
func requestedWith(p localapi.DockerPool) string {
	text := "its subnet"
	if p.Chosen {
		text = "no subnet"
	}
	if p.FromPods {
		text += ", from the pod block"
	}
	if p.Group != "" {
		text += ", cadastre.group=" + p.Group
	}
	return text
}

const dockerPoolKeepHelp = `keep undoes that requests for a pool are given up. The agent compares the requests
for each pool with the networks of the Docker engine. Requests that no network accounts
for are given up: after the time of cadastre.reclaim.undo they are taken back, and a pool
without any other requests ends with its addresses. docker pools shows them.

A pool that is kept stays until it is requested or released again.`

func (a *app) dockerPoolKeepCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "keep ID",
		Short:             "Keep a pool that no network of the Docker engine has",
		Long:              dockerPoolKeepHelp,
		Example:           `  cadastre docker pools keep LocalDefault/10.50.0.0/24`,
		Args:              oneDockerPool,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, workTimeout)
			defer cancel()
			var done localapi.DockerPoolKeep
			if err := a.client().post(
				ctx,
				localapi.PathDockerPoolKeep,
				localapi.DockerPoolKeep{ID: args[0]},
				&done,
			); err != nil {
				return fmt.Errorf("docker pools keep %s: %w", args[0], err)
			}
			return a.print(done, func(bool) string { return "kept pool " + columns.Clean(done.ID) + "\n" })
		}),
	}
}

// oneDockerPool accepts one ID.
func oneDockerPool(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf(
			"%s takes one ID of a pool, as cadastre docker pools lists it, but was given %d arguments",
			cmd.Name(),
			len(args),
		)
	}
	return nil
}

const dockerPoolReleaseHelp = `release ends a pool that the Docker engine does not release itself, because it has
lost the network: it was reset, or its state directory was replaced. Remove a network
that the engine still knows with "docker network rm": the engine then releases the
pool.

A pool with leases is refused (exit code 4), and so is one that a network of the
engine or a link of the kernel uses, or if a witness cannot be read completely.
--force releases it with all its addresses, its gateway included. If a network still
uses the pool, its running containers keep their addresses while other networks may be
given the same ones, and it gets no address for a new container.`

func (a *app) dockerPoolReleaseCmd() *cobra.Command {
	var force, yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "release ID",
		Short: "Release a pool that the Docker engine has lost",
		Long:  dockerPoolReleaseHelp,
		Example: `  cadastre docker pools release LocalDefault/10.50.0.0/24
  cadastre docker pools release LocalDefault/10.50.0.0/24 --force --yes`,
		Args:              oneDockerPool,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			req := localapi.DockerPoolRelease{ID: args[0], Force: force, DryRun: dryRun}
			if err := a.releaseDockerPool(ctx, req, yes); err != nil {
				return fmt.Errorf("docker pools release %s: %w", args[0], err)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(
		&force,
		"force",
		false,
		"also with leases: a network that still uses the pool then shares its addresses with others",
	)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would end, and what is in use")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.MarkFlagsMutuallyExclusive("yes", "dry-run")
	return cmd
}

func (a *app) releaseDockerPool(ctx context.Context, req localapi.DockerPoolRelease, yes bool) error {
	pools, err := a.getDockerPools(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pools, func(p localapi.DockerPool) bool { return p.ID == req.ID })
	if i < 0 {
		return errors.New("there is no such pool: cadastre docker pools lists them")
	}
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	look := req
	look.DryRun = true
	var would localapi.DockerPoolReleased
	if err := a.client().postInUse(ctx, localapi.PathDockerPoolRelease, look, &would); err != nil {
		return err
	}
	if req.DryRun || would.Refused != "" && !req.Force {
		return a.showDockerPool(pools[i:i+1], would, req.Force)
	}
	if !yes && (pools[i].Leases == 0 || req.Force) {
		fmt.Fprint(a.stderr, dockerPoolsTable(pools[i:i+1])+inUseText(would.InUse))
		if n := pools[i].Leases; n > 0 {
			a.note("Its %s will be free for other networks, whether or not a container still uses them.",
				plural(n, "address", "addresses"))
		}
		if err := a.ask(ctx, "Release this pool? [y/N] "); err != nil {
			return err
		}
	}
	var done localapi.DockerPoolReleased
	err = a.client().postInUse(ctx, localapi.PathDockerPoolRelease, req, &done)
	var refused *refusedError
	switch {
	case errors.As(err, &refused) && refused.status == http.StatusConflict:
		return &exitError{exitFindings, fmt.Errorf("%w\n"+engineReleases, err)}
	case err != nil:
		return err
	case done.Refused != "": // it has come into use meanwhile
		return a.showDockerPool(pools[i:i+1], done, req.Force)
	}
	return a.print(done, func(bool) string {
		return fmt.Sprintf(
			"released pool %s and %s in it\n",
			columns.Clean(done.ID),
			plural(len(done.Leases), "address", "addresses"),
		)
	})
}

// engineReleases says what to do about a pool that is not released.
const engineReleases = "remove the network with docker network rm, and the engine releases the pool; " +
	"if the engine has lost the network, --force releases the pool with these addresses"

// showDockerPool shows a pool that is not released, and what is in use of it. It fails if the
// agent refuses to release the pool.
func (a *app) showDockerPool(pool []localapi.DockerPool, would localapi.DockerPoolReleased, force bool) error {
	err := a.print(would, func(bool) string { return dockerPoolsTable(pool) + inUseText(would.InUse) })
	if refused := would.Refused != "" || pool[0].Leases > 0; err != nil || force || !refused {
		return err
	}
	return &exitError{exitFindings, errors.New("refused: nothing was released\n" + engineReleases)}
}
