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
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// version of the program.
const version = "0.1.0-dev"

// run is the whole program; it returns the exit code, unless it ends with exit.
func run(ctx context.Context, args []string, stderr io.Writer, exit func(int)) int {
	opt, err := parseFlags(args, stderr)
	opt.exit = exit
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "cadastre-agent:", err)
		return 2
	}
	conf, unused, err := contivconf.LoadInUse(opt.config)
	if err != nil {
		fmt.Fprintln(stderr, "cadastre-agent:", err)
		return 1
	}
	log := newLogger(stderr, conf.Cadastre.Log)
	if len(unused) > 0 {
		log.Info("configuration keys that are not used yet", "keys", strings.Join(unused, ", "))
	}
	clock, err := newHostClock(opt.bootIDFile)
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
	config     string
	nodeName   string
	stateDir   string
	runDir     string
	checkEvery time.Duration // the database; 0: defaultCheckEvery

	bootIDFile      string
	productUUIDFile string

	exit func(int) // ends the process at once; nil: the agent ends as it does on any error
}

const defaultCheckEvery = 5 * time.Second

// fail ends the process with one sentence. Nothing is closed: an open database that
// another program has changed may hold its locks for ever.
func (o options) fail(log *slog.Logger) func(error) {
	return func(err error) {
		log.Error("the agent ends", "error", err)
		if o.exit != nil {
			o.exit(1)
		}
	}
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
	fs.DurationVar(&opt.checkEvery, "check-database-every", defaultCheckEvery, "the `interval` at which the database file is checked for changes by other programs, and at which a commit is tried again after one has failed")
	fs.StringVar(&opt.bootIDFile, "boot-id", "/proc/sys/kernel/random/boot_id", "the `file` with the boot ID of this machine")
	fs.StringVar(&opt.productUUIDFile, "product-uuid", "/sys/class/dmi/id/product_uuid", "the `file` with the DMI product UUID of this machine, by which a copy of the disk on another machine is noticed; root alone may read it")
	if err := fs.Parse(args); err != nil {
		return opt, err
	}
	switch {
	case fs.NArg() > 0:
		return opt, fmt.Errorf("unexpected argument %q: only flags are known", fs.Arg(0))
	case opt.checkEvery <= 0:
		return opt, fmt.Errorf("--check-database-every is %s: give a duration above zero, such as %s", opt.checkEvery, defaultCheckEvery)
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
