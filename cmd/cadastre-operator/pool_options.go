// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// The flags of pools at watermarks. Those that other operators of NetResourceSets
// have are called as there.
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

// providerClusterPool cuts blocks of AddressPools.
const providerClusterPool = "clusterpool"

func allProviders() []string { return []string{providerClusterPool} }

// poolOptions are those of pools at watermarks.
type poolOptions struct {
	provider               string
	release                bool
	releaseDelay, coolDown time.Duration
	workers, burst         int
	resync, sweep          time.Duration
	qps                    float64
	preAllocate            int
}

func (o *poolOptions) register(fs *pflag.FlagSet) {
	fs.StringVar(&o.provider, flagProvider, "", "keep the pools of NetResourceSets at their watermarks, with addresses of this `provider`: "+strings.Join(allProviders(), ", ")+" (blocks of AddressPools); empty: do not")
	fs.BoolVar(&o.release, flagRelease, false, "ask back what nodes have too much of")
	fs.DurationVar(&o.releaseDelay, flagReleaseDelay, 180*time.Second, "how long something is too much before it is asked back; 0 for at once")
	fs.DurationVar(&o.sweep, flagSweep, 5*time.Minute, "how often NetResourceSets without a Node are looked for: one that is found twice is deleted")
	fs.DurationVar(&o.coolDown, flagPoolCoolDown, time.Minute, "how long a block rests that came back, before another node gets it")
	fs.IntVar(&o.preAllocate, flagPreAllocate, 8, "how many free addresses a node has whose NetResourceSet does not say")
	fs.IntVar(&o.workers, flagWorkers, 50, "how many nodes are looked after at once")
	fs.DurationVar(&o.resync, flagResync, 30*time.Second, "how often all nodes are looked at, beside when something changes")
	fs.Float64Var(&o.qps, flagProviderQPS, 20, "calls to the provider in a second, at most; negative for no limit")
	fs.IntVar(&o.burst, flagProviderBst, 30, "calls to the provider at once")
}

func (o *poolOptions) validate(p *problems) {
	if o.provider == "" {
		return
	}
	if !slices.Contains(allProviders(), o.provider) {
		p.add(flagProvider, o.provider, "there is no such provider: there is %s", strings.Join(allProviders(), ", "))
	}
	if o.releaseDelay < 0 {
		p.add(flagReleaseDelay, o.releaseDelay, "it must not be negative: write 0 for at once")
	}
	if o.coolDown < 0 {
		p.add(flagPoolCoolDown, o.coolDown, "it must not be negative: write 0 for no rest")
	}
	if o.preAllocate < 1 {
		p.add(flagPreAllocate, o.preAllocate, "it must be at least 1: a NetResourceSet with preAllocate: -1 wants none")
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
	if o.qps == 0 || math.IsNaN(o.qps) {
		p.add(flagProviderQPS, o.qps, "it must be a number and not 0: write a negative one for no limit")
	}
	if o.burst < 1 {
		p.add(flagProviderBst, o.burst, "it must be at least 1")
	}
}
