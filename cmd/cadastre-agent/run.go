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
	"os"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// version of the program.
const version = "0.1.0-dev"

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	opt, err := parseFlags(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "cadastre-agent:", err)
		return 2
	}
	conf, unused, err := contivconf.Load(opt.config)
	if err != nil {
		fmt.Fprintln(stderr, "cadastre-agent:", err)
		return 1
	}
	log := newLogger(stderr, conf.Cadastre.Log)
	if len(unused) > 0 {
		log.Info("configuration keys that are not used yet", "keys", strings.Join(unused, ", "))
	}
	clock, err := newHostClock()
	if err != nil {
		log.Error("the agent cannot start", "error", err)
		return 1
	}
	a, err := wire(ctx, opt, conf, log, clock)
	if err != nil {
		log.Error("the agent cannot start", "error", err)
		return 1
	}
	if err := errors.Join(a.serve(ctx, a.restapi.Serve), a.close()); err != nil {
		log.Error("the agent ends", "error", err)
		return 1
	}
	log.Info("the agent has ended")
	return 0
}

// options are the command line.
type options struct {
	config      string
	nodeName    string
	stateDir    string
	runDir      string
	acceptOlder bool
}

func parseFlags(args []string, stderr io.Writer) (options, error) {
	var opt options
	host, _ := os.Hostname()
	fs := flag.NewFlagSet("cadastre-agent", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&opt.config, "config", "/etc/cadastre/contiv.conf", "the configuration `file`")
	fs.StringVar(&opt.nodeName, "node-name", host, "the `name` of this node, as Kubernetes has it")
	fs.StringVar(&opt.stateDir, "state-dir", "/var/lib/cadastre", "the `directory` of the database")
	fs.StringVar(&opt.runDir, "run-dir", "/run/cadastre", "the `directory` of the socket; must be emptied by a reboot")
	fs.BoolVar(&opt.acceptOlder, "accept-older-store", false, "lend addresses although the database came back older than it was: addresses lent since then may be lent twice")
	if err := fs.Parse(args); err != nil {
		return opt, err
	}
	switch {
	case fs.NArg() > 0:
		return opt, fmt.Errorf("unexpected argument %q: only flags are known", fs.Arg(0))
	case opt.nodeName == "":
		return opt, errors.New("--node-name is empty and the host has no name: give one")
	}
	return opt, nil
}

func newLogger(w io.Writer, conf contivconf.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: conf.Level.Slog()}
	if conf.Format == contivconf.LogJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
