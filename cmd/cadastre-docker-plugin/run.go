// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness/engine"
)

// options holds the command line.
type options struct {
	socket, agent, data, engine string

	exit  func(int)        // ends the process at once
	ticks <-chan time.Time // the engine is read at each
}

// errVersion stands for --version.
var errVersion = errors.New("the version is wanted")

// checkEvery is the interval at which the database file is checked.
const checkEvery = 5 * time.Second

// fail ends the process with one sentence. Nothing is closed: an open database that
// another program has changed may hold its locks for ever.
func (o options) fail(log *slog.Logger) func(error) {
	return func(err error) {
		log.Error("the plugin ends", "error", err)
		o.exit(1)
	}
}

func parse(args []string, getenv func(string) string, stderr io.Writer) (opt options, err error) {
	fs := flag.NewFlagSet("cadastre-docker-plugin", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&opt.socket, "socket", "/run/docker/plugins/cadastre.sock",
		"the `path` of the socket that the engine connects to")
	fs.StringVar(&opt.agent, "agent", getenv("AGENT_SOCKET"),
		"the `path` of the agent's socket for Docker (default $AGENT_SOCKET)")
	fs.StringVar(&opt.engine, "engine", or(getenv("ENGINE"), "unix:///run/docker.sock"),
		"the `address` of the engine's API, or none (default $ENGINE)")
	fs.StringVar(&opt.data, "data", "/data", "the `directory` of the own ledger and of the local API's socket")
	showVersion := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		return opt, err
	}
	switch {
	case *showVersion:
		return opt, errVersion
	case fs.NArg() > 0:
		return opt, fmt.Errorf("unexpected argument %q: only flags are known", fs.Arg(0))
	case opt.agent == "":
		return opt, errors.New(
			"--agent and AGENT_SOCKET are empty: name the agent's socket, whether or not there is an agent",
		)
	case opt.agent == opt.socket:
		return opt, fmt.Errorf("--agent is %s, which is this program's own socket", opt.agent)
	}
	return opt, nil
}

// or returns the first text that is not empty.
func or(texts ...string) string {
	i := slices.IndexFunc(texts, func(s string) bool { return s != "" })
	return texts[max(i, 0)]
}

// run runs the program and returns its exit code, unless exit ends the process.
func run(
	ctx context.Context,
	args []string,
	getenv func(string) string,
	stdout, stderr io.Writer,
	exit func(int),
) int {
	opt, err := parse(args, getenv, stderr)
	opt.exit = exit
	ticker := time.NewTicker(observeEvery)
	defer ticker.Stop()
	opt.ticks = ticker.C
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errVersion):
		fmt.Fprintln(stdout, version.Line("cadastre-docker-plugin"))
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "cadastre-docker-plugin:", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	p, err := open(ctx, opt, log)
	if err == nil {
		err = errors.Join(p.serve(ctx), p.file.Close())
	}
	if err != nil {
		log.Error("the plugin ends", "error", err)
		return 1
	}
	return 0
}

// plugin holds the parts of the process.
type plugin struct {
	file   *bolt.File
	ledger *ledger.Ledger
	proxy  *proxy
	docker *dockeripam.DockerIPAM
	engine *observer
	api    *restapi.RESTAPI
	status localapi.Status // what of it does not change
}

// Keys of the local values in the database.
const (
	instanceKey = "instance"
	seenKey     = "agent-seen"
)

// open opens the own ledger and assembles the parts.
func open(ctx context.Context, opt options, log *slog.Logger) (p *plugin, err error) {
	file, err := bolt.OpenFile(filepath.Join(opt.data, "cadastre.db"), bolt.FileOptions{
		Holder: "cadastre-docker-plugin",
		Fail:   opt.fail(log),
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	instance, err := file.Local(instanceKey)
	if err == nil && instance == "" {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		instance = hex.EncodeToString(b[:])
		err = file.SetLocal(instanceKey, instance)
	}
	if err != nil {
		return nil, err
	}
	seen, err := file.Local(seenKey)
	if err != nil {
		return nil, err
	}
	shares, err := httpserver.ShareOfProcess()
	if err != nil {
		return nil, err
	}
	_ = file.Probe(ctx) // its outcome is the file's health
	p = &plugin{file: file}
	p.ledger, err = ledger.Open(ctx, file.Journal(), ledger.Options{
		Log:     log,
		History: ledger.HistoryOptions{Reader: file.Journal()},
	})
	if err != nil {
		return nil, err
	}
	p.proxy = newProxy(log, opt.agent, seen != "", func() error { return file.SetLocal(seenKey, "yes") })
	config := ipamapi.Config{
		Local:  ipamapi.Space{Name: ownLocal},
		Global: ipamapi.Space{Name: ownGlobal},
		HostID: instance,
	}
	host := dockeripam.Host{Log: log, Own: func() []netip.Prefix { return nil }}
	reader := engine.New(engine.Options{Endpoint: opt.engine, Driver: driverName, Needed: true})
	p.docker = dockeripam.NewPlugin(dockeripam.Deps{
		PluginDeps: controller.PluginDeps{Log: log},
		Socket:     opt.socket,
		Around:     p.proxy.around,
		Limits: httpserver.Limits{
			Connections: shares.Local / 2,
		}, // a forwarded request has a connection to the agent, too
		NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
			return ipamapi.New(ctx, ipamapi.Deps{
				Ledger:  p.ledger,
				Records: file.Records("docker"),
				Host:    host,
				Engine:  ipamapi.Engine{Reader: reader, Name: driverName},
				Config:  config,
				Log:     log,
			})
		},
	})
	began := time.Now()
	p.engine = &observer{
		log:    log,
		engine: reader,
		ledger: p.ledger,
		docker: p.docker,
		host:   host,
		uptime: func() time.Duration { return time.Since(began) },
		ticks:  opt.ticks,
	}
	api := p.apiDeps(opt, instance, log)
	api.Listen.Limits.Connections = shares.Other
	p.api = restapi.NewPlugin(api)
	return p, nil
}

// apiDeps returns the dependencies of the local API: there are no pods.
func (p *plugin) apiDeps(opt options, instance string, log *slog.Logger) restapi.Deps {
	name, _ := os.Hostname()
	p.status = localapi.Status{
		Version:   version.Current() + " (Docker's plugin)",
		NodeName:  name,
		Instance:  instance,
		Started:   time.Now().UTC(),
		Live:      true,
		Ready:     true,
		Serving:   true,
		KVDB:      "bolt",
		StateDir:  opt.data,
		PodBlocks: "nowhere: there are no pods here",
		Loop:      controller.Status{Running: true, Resynced: true, Healthy: true},
	}
	return restapi.Deps{
		PluginDeps: controller.PluginDeps{Log: log},
		Listen:     restapi.Listen{Socket: filepath.Join(opt.data, "agent.sock")},
		Agent:      p,
		Ledger:     p.ledger,
		Metrics:    prometheus.NewRegistry(),
		Database:   p.file,
		Docker:     p.docker,
	}
}

// Status describes the plugin as the local API shows it.
func (p *plugin) Status() localapi.Status {
	s := p.status
	s.Notes = []string{p.proxy.Status()}
	if err := p.file.Health(); err != nil {
		s.DatabaseError = err.Error()
		s.Ready, s.ReadyError = false, "a commit to the database failed: "+err.Error()
	}
	for _, b := range p.ledger.Stats() {
		s.Blocks = append(s.Blocks, restapi.BlockOf(b))
	}
	return s
}

// serve runs all parts until ctx ends or one of them fails.
func (p *plugin) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := func(ctx context.Context) error { return p.file.Watch(ctx, checkEvery) }
	parts := []func(context.Context) error{
		watch, p.ledger.Run, p.docker.Run, p.docker.Serve, p.api.Serve, p.engine.run,
	}
	errs := make([]error, len(parts))
	var wait sync.WaitGroup
	for i, part := range parts {
		wait.Go(func() {
			errs[i] = part(ctx)
			cancel() // no part runs without the others
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
