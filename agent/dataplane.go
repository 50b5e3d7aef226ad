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
	// Open returns the descriptors of all values, after the flags have been read. The
	// agent's scheduler closes them. While Open fails, the agent answers for the leases that
	// exist, connects no pod, and calls Open again.
	Open func(ctx context.Context, env DataplaneEnvironment) ([]southbound.Descriptor, error)
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

// opener opens the data plane of the configuration, and sends the values that failed then.
func (a *Agent) opener(opened chan<- controller.ValueErrors) southbound.Opener {
	return southbound.Opener{
		Name: a.dataplane.Name,
		Open: func(ctx context.Context) ([]southbound.Descriptor, error) {
			return a.dataplane.Open(ctx, DataplaneEnvironment{Log: a.log, Node: a.node.Name, Conf: a.conf})
		},
		Opened: func(failed controller.ValueErrors) {
			a.log.Info("the data plane is open", "dataplane", a.dataplane.Name, "failed", len(failed))
			opened <- failed
		},
	}
}

// healOpened waits until the data plane is open. If values have failed then, a resync
// repeats them: the event loop knows of no failure.
func (a *assembly) healOpened(ctx context.Context) error {
	select {
	case failed := <-a.opened:
		if len(failed) > 0 {
			ev := &controller.HealingResync{Type: controller.Periodic}
			if err := a.loop.PushEventWait(ctx, ev); err != nil && ctx.Err() == nil {
				return fmt.Errorf("repeat what failed when the data plane was opened: %w", err)
			}
		}
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// notOpen returns the reason why the data plane is not open, nil if it is.
func (a *assembly) notOpen() error {
	if late, ok := a.sink.(*southbound.Late); ok {
		return late.NotOpen()
	}
	return nil
}
