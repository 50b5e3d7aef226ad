// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/witness/rebuild"
)

// rebuildFlags holds the flags of rebuild.
type rebuildFlags struct {
	stateDir, runDir string
	bootID           string
	config           string
	nodeID           uint32
	blocks           []string
	network          string
	results          string
	netns            []string
	processes        bool
	runtime, engine  string
	driver           string
	write            bool
}

// rebuilt holds the output of rebuild.
type rebuilt struct {
	Database string `json:"database"`
	Written  bool   `json:"written"`
	Trusted  bool   `json:"trusted"` // the agent will allocate new addresses at once
	rebuild.Plan
}

func (a *app) rebuildCmd() *cobra.Command {
	var f rebuildFlags
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Make a database from what the kernel, the runtime and the Docker engine show",
		Long: `rebuild makes a new database for a node whose own is gone or damaged and has no
backup. It reads the network namespaces, the sandboxes of the container runtime,
the results that runtimes keep of each CNI ADD, and the networks of the Docker
engine. Without --write it prints the leases and writes nothing. The agent must
not run, and it never writes over a database.

An address in use without a known owner is quarantined. If evidence is missing,
the agent serves the leases of the new database, and allocates no new address
before a person who knows that nothing else is in use has run cadastre accept.`,
		Example: `  cadastre rebuild --node-id 5
  cadastre rebuild --node-id 5 --write
  cadastre rebuild --block default=10.1.7.0/24 --network k8s --engine none`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return a.rebuild(ctx, &f)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.stateDir, "state-dir", defaultStateDir, "the agent's state `DIRECTORY`")
	flags.StringVar(&f.runDir, "run-dir", defaultRunDir, "the agent's run `DIRECTORY`")
	flags.StringVar(&f.bootID, "boot-id", "/proc/sys/kernel/random/boot_id",
		"the `FILE` with the boot ID of this machine: the one that the agent reads")
	flags.StringVar(&f.config, "config", defaultConfig, "the configuration `FILE`")
	flags.Uint32Var(&f.nodeID, "node-id", 0, "this node's ID (default: the one that the file pins)")
	flags.StringArrayVar(&f.blocks, "block", nil,
		"a further `POOL=PREFIX` of this node, such as default=10.1.5.0/24; may be repeated")
	flags.StringVar(&f.network, "network", "", "CNI `NETWORK` of sandboxes without a CNI result")
	flags.StringVar(&f.results, "cni-results", "/var/lib/cni/results", "`DIRECTORY` of the CNI results")
	flags.StringArrayVar(&f.netns, "netns", nil,
		"`DIRECTORY` of files of network namespaces; may be repeated (default: those of the configuration)")
	flags.BoolVar(
		&f.processes,
		"processes",
		true,
		"also read the network namespaces of processes; without them you vouch that no process holds another one",
	)
	flags.StringVar(&f.runtime, "runtime", "",
		"CRI `SOCKET`, such as unix:///run/containerd/containerd.sock; auto; none (default: that of the configuration)")
	flags.StringVar(&f.engine, "engine", "",
		"`SOCKET` of the Docker engine; auto; none (default: that of the configuration)")
	flags.BoolVar(&f.write, "write", false, "write the database")
	for _, flag := range []string{"state-dir", "run-dir", "cni-results", "netns"} {
		if err := cmd.MarkFlagDirname(flag); err != nil {
			panic(err) // the flag does not exist
		}
	}
	return cmd
}

// complete sets the values that no flag has set. The engine knows the driver by the name
// of its socket.
func (f *rebuildFlags) complete(cfg *contivconf.Config) {
	w := cfg.Cadastre.Witnesses
	if f.netns == nil {
		f.netns = w.NetNS
	}
	f.runtime, f.engine = cmp.Or(f.runtime, w.Runtime), cmp.Or(f.engine, w.Engine)
	f.driver = strings.TrimSuffix(filepath.Base(cfg.Cadastre.Docker.Socket), ".sock")
}

func (a *app) rebuild(ctx context.Context, f *rebuildFlags) error {
	cfg, _, err := contivconf.LoadInUse(f.config)
	if err != nil {
		return fmt.Errorf("rebuild: %w: name the file with --config", err)
	}
	f.complete(cfg)
	in := rebuild.Input{Network: f.network, Wires: cfg.Cadastre.Dataplane.MakesLinks()}
	if in.Pools, err = poolsOf(cfg, f.nodeID, f.blocks); err != nil {
		return err
	}
	attachments, unread, err := rebuild.ReadCache(f.results, cniPlugin)
	in.Unread = unread
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	target := &rebuildTarget{
		stateDir: f.stateDir,
		runDir:   f.runDir,
		bootID:   f.bootID,
		now:      a.now,
		docker:   cfg.Cadastre.Docker,
	}
	if err := target.check(); err != nil {
		return err
	}
	p := a.progress(ctx, "rebuild", step{name: "read", unit: "sources", total: rebuildSources})
	defer p.end()
	w := readWorld(ctx, f, attachments, a.now, p)
	r := rebuilt{Database: filepath.Join(f.stateDir, databaseName), Plan: rebuild.Make(w, in)}
	if f.write {
		p.begin(step{name: "write " + plural(len(r.Records), "lease", "leases")})
		if err := target.write(ctx, in.Pools, &r.Plan, w); err != nil {
			return err
		}
		r.Written, r.Trusted = true, r.Complete()
	}
	p.end()
	return a.print(r, func(bool) string { return cleanLines(rebuiltText(&r)) })
}

// rebuiltText returns the plan for people.
func rebuiltText(r *rebuilt) string {
	var b strings.Builder
	verb := "rebuild --write would make"
	if r.Written {
		verb = "made"
	}
	leases := 0
	for _, x := range r.Records {
		leases += len(x.Addrs)
	}
	fmt.Fprintf(&b, "%s %s: %s, %s quarantined\n", verb, r.Database,
		plural(leases, "lease", "leases"), plural(len(r.Quarantined), "address", "addresses"))
	for _, x := range r.Records {
		for _, addr := range x.Addrs {
			fmt.Fprintf(&b, "\n%s  pool %s  key %s  pod %s\n", addr, x.Pool, x.Key, orNone(x.Pod.String()))
		}
		for _, e := range x.Evidence {
			fmt.Fprintf(&b, "    %s\n", e)
		}
	}
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(&b, "\n%s:\n    %s\n", title, strings.Join(lines, "\n    "))
		}
	}
	section("Quarantined", lines(r.Quarantined))
	section("In use outside of every block of this node, not written", lines(r.Outside))
	var docker []string
	for _, x := range r.Docker {
		docker = append(docker, fmt.Sprintf("%s  %s of network %s, %s", x.Addr, x.What, x.Network, x.Subnet))
	}
	section("Used by the Docker engine, with the pools of its networks", docker)
	section("Not written, because nothing uses it any more", r.Skipped)
	section("Missing evidence", r.Missing)
	b.WriteString(nextStep(r))
	return b.String()
}

// nextStep says what the administrator does next.
func nextStep(r *rebuilt) string {
	switch {
	case r.Written && r.Trusted:
		return "\nStart the agent.\n"
	case r.Written:
		return `
Evidence is missing: the agent will serve these leases, and allocate no new
addresses. Once it runs, see whether something else is in use, and accept it:
    cadastre accept
`
	case !r.Complete():
		return "\nEvidence is missing. With --write, the agent would wait for cadastre accept.\n"
	}
	return "\nNothing was written. To write it: cadastre rebuild --write\n"
}

func lines(all []rebuild.Unattributed) (text []string) {
	for _, u := range all {
		text = append(text, fmt.Sprintf("%s  %s", u.Addr, u.Reason))
	}
	return text
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
