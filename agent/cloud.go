// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"flag"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/cloud"
)

// CloudProvider is the cloud of an agent with podBlocks interfaces. WithCloud adds it to
// an agent, Program.Cloud to a program.
type CloudProvider struct {
	Name string // of the cloud, such as openstack
	Help string // one line about the addresses that it gives, for --help
	// Flags defines the provider's flags. Their names begin with the provider's name. It
	// may be nil.
	Flags func(fs *pflag.FlagSet)
	// Open returns the cloud, after the flags have been read. The agent serves pods while
	// Open fails, and calls it again.
	Open func(ctx context.Context, env CloudEnvironment) (OpenedCloud, error)
}

// CloudEnvironment holds the parts of an agent for a provider.
type CloudEnvironment struct {
	Log *slog.Logger
	// QPS and Burst are the budget of all requests that the agent sends to the cloud
	// (cloud/budget). A negative QPS sets none.
	QPS   float64
	Burst int
}

// OpenedCloud is an open provider.
type OpenedCloud struct {
	Cloud      cloud.Cloud
	Collectors []prometheus.Collector // metrics of the requests
}

// Defaults of the budget of one agent. An agent sends a few requests a minute; all agents
// of a project share the cloud's own limit.
const (
	defaultCloudQPS   = 2
	defaultCloudBurst = 10
)

// givenCloud is a provider with its environment.
type givenCloud struct {
	CloudProvider
	env CloudEnvironment
}

// WithCloud adds the cloud that podBlocks interfaces needs. Without that mode the agent
// does not open it.
func WithCloud(p CloudProvider, env CloudEnvironment) Option {
	return func(a *Agent) { a.cloud = &givenCloud{p, env} }
}

// flags defines the flags of the provider and of its budget.
func (p *CloudProvider) flags(fs *flag.FlagSet, env *CloudEnvironment) {
	fs.Float64Var(
		&env.QPS,
		"provider-qps",
		env.QPS,
		"the `number` of requests in a second that this agent sends to its cloud at most; negative: no limit",
	)
	fs.IntVar(
		&env.Burst,
		"provider-burst",
		env.Burst,
		"the `number` of requests that it may send at once",
	)
	if p.Flags == nil {
		return
	}
	own := pflag.NewFlagSet(p.Name, pflag.ContinueOnError)
	p.Flags(own)
	own.VisitAll(func(f *pflag.Flag) { fs.Var(flagValue{f.Value}, f.Name, f.Usage) })
}

// flagValue is a flag of the provider in a flag.FlagSet, which calls String of zero values
// to print defaults. Lists of pflag panic then.
type flagValue struct{ pflag.Value }

// String implements flag.Value.
func (v flagValue) String() string {
	if v.Value == nil {
		return ""
	}
	return v.Value.String()
}

// IsBoolFlag reports whether the flag needs no value.
func (v flagValue) IsBoolFlag() bool { return v.Type() == "bool" }
