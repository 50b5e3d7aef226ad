// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"flag"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

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
	if !plane.IsOther() || a.dataplane != nil && a.dataplane.Name == string(plane) {
		return nil
	}
	return fmt.Errorf("new agent: cadastre.dataplane %q is not a data plane of this program: "+
		"run cadastre-agent-%s of module %s/, or write \"dataplane: linux\"", plane, plane, plane)
}
