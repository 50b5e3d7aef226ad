// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/kvdb"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks errors of the command line.
var errUsage = errors.New("see: cadastre-operator --help")

// host holds the parts of the program that its main adds or that tests replace.
type host struct {
	hostname  func() (string, error)
	clients   func(commandLine) (clients, error)
	store     func(storeOptions, clients, *slog.Logger) (kvdb.Store, error)
	providers []Provider
	klog      func(*slog.Logger) // sets the log of client-go; nil: it stays as it is
	listening func(net.Addr)     // called with the address of the listener; may be nil
}

// run runs the program, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, h host) int {
	o := commandLine{providers: h.providers}
	cmd := &cobra.Command{
		Use:   "cadastre-operator",
		Short: "Assign podCIDRs or pools to nodes and reflect Kubernetes' state into the cluster store",
		Long: `cadastre-operator assigns podCIDRs to nodes (--allocate-node-cidrs), keeps their
pools of addresses at watermarks (--netresource-provider), reflects Kubernetes'
state into the cluster store, and releases the node IDs and claims of nodes that
are gone (--kvdb-endpoints, or --kvdb-type=kubernetes for the last). With a cluster
store no node gets a podCIDR that the agent of another node claims. One of several
operators runs the controllers; the remaining ones wait for its Lease.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: want flags only", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return runWith(cmd.Context(), o, stdout, stderr, h) },
	}
	o.register(cmd.Flags())
	if err := o.registerProviders(cmd.Flags()); err != nil {
		fmt.Fprintln(stderr, "cadastre-operator:", err)
		return exitFailed
	}
	cmd.AddCommand(nodeCmd(h))
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	began := false
	cmd.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case !began || errors.Is(err, errUsage):
		if !errors.Is(err, errUsage) {
			err = fmt.Errorf("%w\n%w", err, errUsage)
		}
		fmt.Fprintln(stderr, "cadastre-operator:", err)
		return exitUsage
	}
	return exitFailed // the log has the error
}

// runWith validates the options and runs the operator.
func runWith(ctx context.Context, o commandLine, stdout, stderr io.Writer, h host) error {
	if o.version {
		_, err := fmt.Fprintln(stdout, version.Line("cadastre-operator"))
		return err
	}
	errs := o.validate()
	if len(errs) > 0 {
		return errors.Join(append(errs, errUsage)...)
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}))
	if h.klog != nil {
		h.klog(log)
	}
	for _, u := range o.unusedFlags() {
		log.Info("a flag of a cloud has no effect", "flag", "--"+u.flag+"="+u.value, "reason", u.reason)
	}
	p, err := open(ctx, o, h, log)
	if err != nil {
		log.Error("the operator cannot start", "error", err)
		return err
	}
	if err := errors.Join(p.serve(ctx), p.close()); err != nil {
		log.Error("the operator ends", "error", err)
		return err
	}
	log.Info("the operator has ended")
	return nil
}
