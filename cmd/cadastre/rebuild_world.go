// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/engine"
	"github.com/cadastre/cadastre/witness/kernel"
	"github.com/cadastre/cadastre/witness/rebuild"
	"github.com/cadastre/cadastre/witness/runtime"
)

const (
	cniPlugin = "cadastre-cni"
	podPool   = "default" // of pods, as the agent names it
)

// rebuildSources counts the sources that readWorld reads.
const rebuildSources = 3

// readWorld reads the runtime, the engine and then the kernel.
func readWorld(
	ctx context.Context,
	f *rebuildFlags,
	attachments []witness.Attachment,
	now func() time.Time,
	p *progress,
) *witness.World {
	w := &witness.World{Taken: now(), Driver: f.driver, Attachments: attachments}
	if boot, err := os.ReadFile(f.bootID); err == nil {
		w.BootID = strings.TrimSpace(string(boot))
	}
	var paths []string
	for _, a := range attachments {
		paths = append(paths, a.NetNS)
	}
	sandboxes := runtime.New(runtime.Options{Endpoint: f.runtime, Now: now})
	defer sandboxes.Close()
	v, err := sandboxes.ReadDetailed(ctx)
	if w.Runtime = v; err == nil {
		for _, s := range v.Sandboxes {
			paths = append(paths, s.NetNS)
		}
	}
	report := witness.ReportOf(witness.Runtime, err)
	if errors.Is(err, runtime.ErrNoRuntime) {
		report = witness.ReportOf(witness.Runtime, fmt.Errorf("%w: write --runtime none if this node has none", err))
	}
	w.Reports = append(w.Reports, report)
	p.set(1)
	w.Engine, err = engine.New(engine.Options{Endpoint: f.engine, Driver: f.driver, Now: now}).Read(ctx)
	w.Reports = append(w.Reports, witness.ReportOf(witness.Engine, err))
	p.set(2)
	w.Kernel, err = kernel.New(kernel.Options{Dirs: f.netns, NoProcesses: !f.processes, Now: now}).Read(ctx, paths)
	if w.Kernel != nil && !f.processes {
		w.Kernel.Limits = "" // the user vouches for the processes
	}
	w.Reports = append(w.Reports, witness.ReportOf(witness.Kernel, err))
	p.set(rebuildSources)
	return w
}

// poolsOf returns the blocks of a node: those that the configuration and the node ID give
// it, and further ones.
func poolsOf(cfg *contivconf.Config, id uint32, further []string) ([]rebuild.Pool, error) {
	families := cfg.IPAM.Cluster.Families
	if id == 0 {
		id = cfg.Cadastre.NodeID
	}
	pools := []rebuild.Pool{{Name: podPool}}
	switch {
	case cfg.Cadastre.PodBlocks == contivconf.PodBlocksStatic:
		addBlocks(&pools[0], families, cfg.Cadastre.StaticPodCIDRs)
	case cfg.Cadastre.PodBlocks == contivconf.PodBlocksNodeID && id != 0:
		for _, f := range families {
			n, err := f.Node(id)
			if err != nil {
				return nil, usagef("--node-id: %w", err)
			}
			addBlocks(&pools[0], families, []netip.Prefix{n.PodSubnet})
		}
	case cfg.Cadastre.PodBlocks == contivconf.PodBlocksNodeID && len(further) == 0:
		return nil, usagef("--node-id is missing, and the configuration pins none: " +
			"cadastre node list on another node shows the ID of this one")
	}
	for _, text := range further {
		name, prefix, _ := strings.Cut(text, "=")
		p, err := netip.ParsePrefix(prefix)
		if err != nil || name == "" || p != p.Masked() {
			return nil, usagef("--block: %q is not POOL=PREFIX: write default=10.1.5.0/24", text)
		}
		i := slices.IndexFunc(pools, func(x rebuild.Pool) bool { return x.Name == name })
		if i < 0 {
			pools = append(pools, rebuild.Pool{Name: name})
			i = len(pools) - 1
		}
		addBlocks(&pools[i], families, []netip.Prefix{p})
	}
	if len(pools[0].Blocks) == 0 {
		return nil, usagef("--block: podBlocks is %v, which names no block of this node: write --block %s=PREFIX",
			cfg.Cadastre.PodBlocks, podPool)
	}
	return pools, nil
}

// addBlocks adds blocks to a pool. In the pods' pool the agent has two addresses of the
// first block of each family.
func addBlocks(pool *rebuild.Pool, families []addrplan.Family, blocks []netip.Prefix) {
	for _, b := range blocks {
		sameFamily := func(x netip.Prefix) bool { return x.Addr().Is4() == b.Addr().Is4() }
		first := !slices.ContainsFunc(pool.Blocks, sameFamily)
		if slices.Contains(pool.Blocks, b) {
			continue
		}
		pool.Blocks = append(pool.Blocks, b)
		if pool.Name != podPool || !first || len(families) == 0 {
			continue
		}
		if n, err := families[0].WithPodSubnet(0, b); err == nil {
			pool.Reserved = append(pool.Reserved, n.PodGateway, n.NatLoopback)
		}
	}
}
