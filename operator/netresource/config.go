// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cadastre/cadastre/api/watermark"
)

// Config holds the dependencies and settings of a manager. A provider and API are needed.
type Config struct {
	Provider         Provider
	Instances        AllocationImplementation // a published one instead
	API              NetResourceSetGetterUpdater
	Metrics          MetricsAPI
	Workers          int64 // nodes at once; at least 1
	ReleaseExcess    bool  // excess addresses are released
	PrefixDelegation bool  // nodes get prefixes, if the provider supports them

	ReleaseDelay    time.Duration // how long a node must have too many addresses before it releases them; 0: 3 minutes, less: none
	ResyncInterval  time.Duration // 0: 30 seconds
	TriggerInterval time.Duration // least time between two rounds; 0: 10 milliseconds
	RetryInterval   time.Duration // first wait after an error; 0: 1 second
	RetryMost       time.Duration // longest wait after an error; 0: 1 minute
	// how long the provider may show the state before a call; 0: 1 minute, less: not at all
	Consistency time.Duration
	// CallTimeout is the deadline of a call of the provider for one node; 0: 30
	// seconds.
	CallTimeout time.Duration
	ReadTimeout time.Duration // deadline of a reading of the provider; 0: 2 minutes

	// Fence returns nil if this manager still led at some moment after the call. It
	// is called before each write and each call of the provider; nil: there is no
	// other manager.
	Fence func(context.Context) error
	// Since is the start of this leadership: the Fence of every other manager fails
	// from then on; zero: there was none.
	Since time.Time

	Pending func(nodeName string) int // pods of the node that have no address yet, none of the host's network; nil: 0
	Now     func() time.Time          // nil: the clock
	Random  func() float64            // from 0 to 1, for jitter; nil: the runtime's
	Log     *slog.Logger              // nil: slog's default

	excess func(watermark.Marks, watermark.Level) int // nil: watermark.Marks.Excess
}

func (c Config) withDefaults() Config {
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	c.Workers = max(c.Workers, 1)
	c.ReleaseDelay = max(cmp.Or(c.ReleaseDelay, 3*time.Minute), 0)
	c.ResyncInterval = cmp.Or(c.ResyncInterval, 30*time.Second)
	c.TriggerInterval = cmp.Or(c.TriggerInterval, 10*time.Millisecond)
	c.RetryInterval = cmp.Or(c.RetryInterval, time.Second)
	c.RetryMost = max(cmp.Or(c.RetryMost, time.Minute), c.RetryInterval)
	c.Consistency = max(cmp.Or(c.Consistency, time.Minute), 0)
	c.CallTimeout, c.ReadTimeout = cmp.Or(c.CallTimeout, 30*time.Second), cmp.Or(c.ReadTimeout, 2*time.Minute)
	if c.Pending == nil {
		c.Pending = func(string) int { return 0 }
	}
	if c.excess == nil {
		c.excess = watermark.Marks.Excess
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}
