// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/agent"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// run runs the agent until ctx ends and returns the exit code of the process. exit
// ends the process at once.
func run(ctx context.Context, args []string, stderr io.Writer, exit func(int)) int {
	node, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "cadastre-agent:", err)
		return 2
	}
	conf, _, err := contivconf.LoadInUse(node.ConfigFile)
	if err != nil {
		fmt.Fprintln(stderr, "cadastre-agent:", err)
		return 1
	}
	tail := &agent.LogTail{}
	log := newLogger(io.MultiWriter(stderr, tail), conf.Cadastre.Log)
	for _, n := range conf.Notes {
		log.Info("configuration: "+n.Text, "keys", strings.Join(n.Keys, ", "))
	}
	given := []agent.Option{
		agent.WithNode(node),
		agent.WithLog(log),
		agent.WithLogTail(tail),
		agent.WithExit(func(error) { exit(1) }),
	}
	if err := runAgent(ctx, conf, given); err != nil {
		log.Error("the agent ends", "error", err)
		return 1
	}
	log.Info("the agent has ended")
	return 0
}

func runAgent(ctx context.Context, conf *contivconf.Config, opts []agent.Option) error {
	docker, err := activated(dockerSocketName, os.Getenv)
	if err != nil {
		return err
	}
	a, err := agent.New(conf, append(opts, agent.WithListeners(agent.Listeners{Docker: docker}))...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func parseFlags(args []string, stderr io.Writer) (agent.Node, error) {
	node := agent.DefaultNode()
	fs := flag.NewFlagSet("cadastre-agent", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&node.ConfigFile, "config", node.ConfigFile, "the configuration `file`")
	fs.StringVar(&node.Name, "node-name", node.Name, "the `name` of this node, as Kubernetes has it")
	fs.StringVar(&node.StateDir, "state-dir", node.StateDir, "the `directory` of the database")
	fs.StringVar(&node.RunDir, "run-dir", node.RunDir, "the `directory` of the socket; must be emptied by a reboot")
	fs.DurationVar(
		&node.CheckInterval,
		"check-database-every",
		node.CheckInterval,
		"the `interval` at which the agent checks the database file for changes by other programs, and repeats a commit that failed",
	)
	fs.StringVar(&node.BootIDFile, "boot-id", node.BootIDFile, "the `file` with the boot ID of this machine")
	fs.StringVar(
		&node.ProductUUIDFile,
		"product-uuid",
		node.ProductUUIDFile,
		"the `file` with the DMI product UUID of this machine, by which the agent notices a copy of the disk on another machine; only root may read it",
	)
	if err := fs.Parse(args); err != nil {
		return node, err
	}
	switch {
	case fs.NArg() > 0:
		return node, fmt.Errorf("unexpected argument %q: only flags are known", fs.Arg(0))
	case node.CheckInterval <= 0:
		return node, fmt.Errorf(
			"--check-database-every is %s: give a duration above zero, such as %s",
			node.CheckInterval,
			agent.DefaultCheckInterval,
		)
	case node.Name == "":
		return node, errors.New("--node-name is empty and the host has no name: give one")
	}
	return node, nil
}

func newLogger(w io.Writer, conf contivconf.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: conf.Level.Slog()}
	if conf.Format == contivconf.LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// dockerSocketName names the socket that a supervisor opens for Docker.
const dockerSocketName = "docker"

// activated returns the listener of a name that a supervisor has opened for this
// process (systemd's LISTEN_FDS), nil if there is none.
func activated(name string, getenv func(string) string) (net.Listener, error) {
	if getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil {
		return nil, fmt.Errorf("LISTEN_FDS %q is not a number", getenv("LISTEN_FDS"))
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		if i >= len(names) || names[i] != name {
			continue
		}
		const first = 3
		f := os.NewFile(uintptr(first+i), name)
		defer func() { _ = f.Close() }()
		l, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("use the socket %q that was opened for this process: %w", name, err)
		}
		return l, nil
	}
	return nil, nil
}
