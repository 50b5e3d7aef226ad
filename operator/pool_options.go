// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Names of the flags of pools at watermarks, as in other operators of NetResourceSets
// if they have them.
const (
	flagProvider     = "netresource-provider"
	flagRelease      = "release-excess-ips"
	flagReleaseDelay = "excess-ip-release-delay"
	flagWorkers      = "netresource-workers"
	flagResync       = "netresource-resync-interval"
	flagProviderQPS  = "provider-qps"
	flagProviderBst  = "provider-burst"
	flagPoolCoolDown = "pool-cool-down"
	flagPreAllocate  = "pre-allocate"
	flagSweep        = "netresource-orphan-interval"
)

// Names of the flags of pools of a cloud.
const (
	flagIPv4        = "enable-ipv4"
	flagIPv6        = "enable-ipv6"
	flagPrefixes    = "enable-prefix-delegation"
	flagConsistency = "provider-consistency"
	flagOrphanAge   = "provider-orphan-age"
)

// providerClusterPool allocates blocks of AddressPools.
const providerClusterPool = "clusterpool"

// poolOptions holds the flags of pools at watermarks.
type poolOptions struct {
	provider               string
	release                bool
	releaseDelay, coolDown time.Duration
	workers, burst         int
	resync, sweep          time.Duration
	qps                    float64
	preAllocate            int
	cloud                  cloudOptions
}

// cloudOptions holds the flags of pools of a cloud.
type cloudOptions struct {
	ipv4, ipv6, prefixes   bool
	consistency, orphanAge time.Duration
}

func (o *cloudOptions) register(fs *pflag.FlagSet) {
	fs.BoolVar(&o.ipv4, flagIPv4, true, "nodes get IPv4 addresses of the cloud")
	fs.BoolVar(
		&o.ipv6,
		flagIPv6,
		false,
		"nodes get IPv6 addresses of the cloud, as many as of IPv4 if both are enabled",
	)
	fs.BoolVar(
		&o.prefixes,
		flagPrefixes,
		false,
		"nodes get prefixes of the cloud instead of addresses if their machines can have them",
	)
	fs.DurationVar(
		&o.consistency,
		flagConsistency,
		time.Minute,
		"how long after a change the cloud may show the state before it; 0: never",
	)
	fs.DurationVar(
		&o.orphanAge,
		flagOrphanAge,
		10*time.Minute,
		"age of an interface that the operator has created and no machine uses before it is deleted; 0: none is deleted",
	)
}

func (o *cloudOptions) validate(p *problems) {
	if !o.ipv4 && !o.ipv6 {
		p.add(flagIPv4, o.ipv4, "nodes need a family: give --%s or --%s", flagIPv4, flagIPv6)
	}
	if o.consistency < 0 {
		p.add(flagConsistency, o.consistency, "it must not be negative: write 0 for never")
	}
	if o.orphanAge < 0 {
		p.add(flagOrphanAge, o.orphanAge, "it must not be negative: write 0 to delete none")
	}
}

// register defines the flags; providers describes the values of --netresource-provider.
func (o *poolOptions) register(fs *pflag.FlagSet, providers string) {
	fs.StringVar(
		&o.provider,
		flagProvider,
		"",
		"keep the pools of NetResourceSets at their watermarks, with addresses of this `provider`: "+providers+
			"; empty: off",
	)
	fs.BoolVar(&o.release, flagRelease, false, "release excess addresses of nodes")
	fs.DurationVar(
		&o.releaseDelay,
		flagReleaseDelay,
		180*time.Second,
		"how long a node must have too many addresses before it gives them back; 0: at once",
	)
	fs.DurationVar(
		&o.sweep,
		flagSweep,
		5*time.Minute,
		"interval of the search for NetResourceSets without a Node: one that is found twice is deleted",
	)
	fs.DurationVar(
		&o.coolDown,
		flagPoolCoolDown,
		time.Minute,
		"cool-down of a released block before another node gets it",
	)
	fs.IntVar(&o.preAllocate, flagPreAllocate, 8, "free addresses of a node whose NetResourceSet has no preAllocate")
	fs.IntVar(&o.workers, flagWorkers, 50, "nodes that are processed at the same time")
	fs.DurationVar(&o.resync, flagResync, 30*time.Second, "interval of a resync of all nodes")
	fs.Float64Var(
		&o.qps,
		flagProviderQPS,
		20,
		"limit of requests a second to the cloud, of all nodes and controllers together; negative for none",
	)
	fs.IntVar(&o.burst, flagProviderBst, 30, "burst of requests to the cloud")
	o.cloud.register(fs)
}

// validate checks the flags; providers lists the values of --netresource-provider.
func (o *poolOptions) validate(p *problems, providers []string) {
	if o.provider == "" {
		return
	}
	if !slices.Contains(providers, o.provider) {
		p.add(flagProvider, o.provider, "want %s%s", strings.Join(providers, ", "), orProgram(o.provider))
	}
	if o.releaseDelay < 0 {
		p.add(flagReleaseDelay, o.releaseDelay, "it must not be negative: write 0 for at once")
	}
	if o.coolDown < 0 {
		p.add(flagPoolCoolDown, o.coolDown, "it must not be negative: write 0 for none")
	}
	if o.preAllocate < 1 {
		p.add(
			flagPreAllocate,
			o.preAllocate,
			"it must be at least 1: write preAllocate: -1 into a NetResourceSet that wants none",
		)
	}
	if o.workers < 1 || o.workers > 1000 {
		p.add(flagWorkers, o.workers, "it must be 1 to 1000")
	}
	if o.resync < time.Second {
		p.add(flagResync, o.resync, "it must be at least 1s")
	}
	if o.sweep < time.Second {
		p.add(flagSweep, o.sweep, "it must be at least 1s")
	}
	o.cloud.validate(p)
}

// validateBudget checks the flags of the budget of requests, which all sources of node CIDRs
// and addresses share.
func (o *poolOptions) validateBudget(p *problems) {
	if o.qps == 0 || math.IsNaN(o.qps) {
		p.add(flagProviderQPS, o.qps, "it must be a number and not 0: write a negative one for no limit")
	}
	if o.burst < 1 {
		p.add(flagProviderBst, o.burst, "it must be at least 1")
	}
}
