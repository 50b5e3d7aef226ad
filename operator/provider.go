// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// Provider is a cloud that a program adds with WithProvider. The program opens it once,
// before it is elected, if a flag selects it.
type Provider struct {
	Name string // the value of --netresource-provider and --cloud-provider, such as openstack
	Help string // one line about the addresses that it gives, for --help
	// Flags defines the provider's flags. Their names begin with the provider's name,
	// because they share the command line with those of the program. It may be nil.
	Flags func(fs *pflag.FlagSet)
	// Open returns the cloud, after the flags have been read. An error ends the program;
	// it names the flag or the variable that is wrong.
	Open func(ctx context.Context, env Environment) (Opened, error)
}

// Environment holds the parts of the program for a provider.
type Environment struct {
	Log *slog.Logger
	// QPS and Burst are --provider-qps and --provider-burst: the budget of all requests
	// that the process sends to the cloud (cloud/budget). A negative QPS sets none.
	QPS   float64
	Burst int
}

// Opened is an open provider.
type Opened struct {
	Cloud      cloud.Cloud            // interfaces of machines, for --netresource-provider; nil: none
	Aliases    nodeipam.Cloud         // prefixes of machines, for --cidr-allocator-type; nil: none
	Collectors []prometheus.Collector // metrics of the requests
}

// Option extends the program.
type Option func(*host)

// WithProvider adds a cloud to the program.
func WithProvider(p Provider) Option {
	return func(h *host) { h.providers = append(h.providers, p) }
}
