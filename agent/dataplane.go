// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"flag"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/southbound"
)

// Dataplane is a data plane beside that of the Linux kernel. WithDataplane adds it to an
// agent, Program.Dataplane to a program.
type Dataplane struct {
	Name string // value of cadastre.dataplane, such as vpp
	Help string // one line about it, for --help
	// Flags defines the flags of the data plane. Their names begin with its name. It may be
	// nil.
	Flags func(fs *pflag.FlagSet)
	// Open returns the descriptors of all values, after the flags have been read. The agent's
	// scheduler closes them. The program that makes the values need not run: while their errors
	// wrap southbound.ErrAway, the agent answers for the leases that exist, and connects no pod.
	Open func(ctx context.Context, env DataplaneEnvironment) ([]*southbound.Descriptor, error)
}

// DataplaneEnvironment holds the parts of an agent for a data plane.
type DataplaneEnvironment struct {
	Log  *slog.Logger
	Node string // the name of this node
	// Conf is the whole configuration. Conf.Cadastre.VPP and Conf.VPPNode have the keys of
	// dataplane vpp.
	Conf *contivconf.Config
}

// WithDataplane adds a data plane. The agent uses it if cadastre.dataplane is its name.
func WithDataplane(d Dataplane) Option {
	return func(a *Agent) { a.dataplane = &d }
}

// flags defines the flags of the data plane.
func (d *Dataplane) flags(fs *flag.FlagSet) {
	if d.Flags == nil {
		return
	}
	own := pflag.NewFlagSet(d.Name, pflag.ContinueOnError)
	d.Flags(own)
	own.VisitAll(func(f *pflag.Flag) { fs.Var(flagValue{f.Value}, f.Name, f.Usage) })
}

// hasDataplane returns an error if the configuration needs a data plane that the agent
// does not have.
func (a *Agent) hasDataplane() error {
	plane := a.conf.Cadastre.Dataplane
	if !plane.IsOther() || a.sink != nil || a.dataplane != nil && a.dataplane.Name == string(plane) {
		return nil
	}
	return fmt.Errorf("new agent: cadastre.dataplane %q is not a data plane of this program: "+
		"run cadastre-agent-%s of module %s/, or write \"dataplane: linux\"", plane, plane, plane)
}

// returned is told when a data plane is back in which values have failed.
type returned struct{ failed chan struct{} }

func newReturned() *returned { return &returned{make(chan struct{}, 1)} }

func (r *returned) note(failed controller.ValueErrors) {
	if len(failed) == 0 {
		return
	}
	select {
	case r.failed <- struct{}{}:
	default: // a resync is due already
	}
}

// healReturned repeats what failed when the data plane was back, by a resync: the event loop
// knows of no failure.
func (a *assembly) healReturned(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.returned.failed:
		}
		ev := &controller.HealingResync{Type: controller.Periodic}
		if err := a.loop.PushEventWait(ctx, ev); err != nil && ctx.Err() == nil {
			return fmt.Errorf("repeat what failed when the data plane came back: %w", err)
		}
	}
}

// away returns the reason why no pod can be connected for now, nil if there is none.
func (a *assembly) away() error {
	if s, ok := a.sink.(*southbound.Scheduler); ok {
		return s.Away()
	}
	return nil
}
