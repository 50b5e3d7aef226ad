// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
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

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// Program holds the parameters of Main. A main of an agent with a cloud differs from that
// of cadastre-agent in Name and Cloud.
type Program struct {
	Name   string         // in messages, such as cadastre-agent
	Args   []string       // of the command line, without the name
	Stdout io.Writer      // of --version; nil: Stderr
	Stderr io.Writer      // of messages and of the log
	Exit   func(code int) // ends the process at once
	Cloud  *CloudProvider // for podBlocks interfaces; nil: none
	// Dataplane is a further value of cadastre.dataplane; nil: none.
	Dataplane *Dataplane
}

// errVersion stands for --version.
var errVersion = errors.New("the version is wanted")

// Main runs the agent as a program until ctx ends, and returns the exit code of the
// process.
func Main(ctx context.Context, p Program) int {
	node, env, err := p.parseFlags()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errVersion):
		fmt.Fprintln(cmp.Or(p.Stdout, p.Stderr), version.Line(p.Name))
		return 0
	case err != nil:
		fmt.Fprintf(p.Stderr, "%s: %v\n", p.Name, err)
		return 2
	}
	conf, _, err := contivconf.LoadInUse(node.ConfigFile)
	if err != nil {
		fmt.Fprintf(p.Stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	tail := &LogTail{}
	log := newLogger(io.MultiWriter(p.Stderr, tail), conf.Cadastre.Log)
	for _, n := range conf.Notes {
		log.Info("configuration: "+n.Text, "keys", strings.Join(n.Keys, ", "))
	}
	given := []Option{
		WithNode(node),
		WithLog(log),
		WithLogTail(tail),
		WithExit(func(error) { p.Exit(1) }),
	}
	if p.Cloud != nil {
		given = append(given, WithCloud(*p.Cloud, env))
	}
	if p.Dataplane != nil {
		given = append(given, WithDataplane(*p.Dataplane))
	}
	if err := runProgram(ctx, conf, given); err != nil {
		log.Error("the agent ends", "error", err)
		return 1
	}
	log.Info("the agent has ended")
	return 0
}

func runProgram(ctx context.Context, conf *contivconf.Config, opts []Option) error {
	docker, err := activated(dockerSocketName, os.Getenv)
	if err != nil {
		return err
	}
	a, err := New(conf, append(opts, WithListeners(Listeners{Docker: docker}))...)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func (p Program) parseFlags() (Node, CloudEnvironment, error) {
	node, env := DefaultNode(), CloudEnvironment{QPS: defaultCloudQPS, Burst: defaultCloudBurst}
	fs := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	fs.SetOutput(p.Stderr)
	showVersion := fs.Bool("version", false, "print the version and exit")
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
	if p.Cloud != nil {
		p.Cloud.flags(fs, &env)
		fs.Usage = func() {
			fmt.Fprintf(p.Stderr, "Usage of %s, whose podBlocks interfaces are %s:\n", p.Name, p.Cloud.Help)
			fs.PrintDefaults()
		}
	}
	if p.Dataplane != nil {
		p.Dataplane.flags(fs)
	}
	if err := fs.Parse(p.Args); err != nil {
		return node, env, err
	}
	switch {
	case *showVersion:
		return node, env, errVersion
	case fs.NArg() > 0:
		return node, env, fmt.Errorf("unexpected argument %q: only flags are known", fs.Arg(0))
	case node.CheckInterval <= 0:
		return node, env, fmt.Errorf(
			"--check-database-every is %s: give a duration above zero, such as %s",
			node.CheckInterval,
			DefaultCheckInterval,
		)
	case node.Name == "":
		return node, env, errors.New("--node-name is empty and the host has no name: give one")
	}
	return node, env, nil
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
