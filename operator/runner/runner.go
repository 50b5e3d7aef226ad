// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Controller is one part of the work of a leader.
type Controller struct {
	Name string
	// Run works until ctx ends, and waits for everything that it has started.
	Run func(ctx context.Context) error
	// Ready returns an error that says what the controller waits for. nil: the
	// controller is ready as soon as it runs.
	Ready func() error
	// Metrics are registered before Run is called.
	Metrics []prometheus.Collector
}

// Waiting returns an error that says what the controller waits for, nil if it is
// ready.
func (c Controller) Waiting() error {
	if c.Ready == nil {
		return nil
	}
	return c.Ready()
}

// Config holds the dependencies of a Runner. Controllers is needed.
type Config struct {
	// Identity names this process; no other process has the same.
	Identity string
	// Election is nil for a process that is the only one.
	Election *Election
	// Controllers returns the controllers of one leadership.
	Controllers func(*Term) ([]Controller, error)
	Registry    prometheus.Registerer // nil: metrics are not registered
	Log         *slog.Logger          // nil: slog's default
	Now         func() time.Time      // nil: time.Now
}

// Runner runs controllers while this process leads.
type Runner struct {
	config Config

	mu          sync.Mutex
	leading     bool
	controllers []Controller // while leading
	lastAttempt time.Time    // of the election, to acquire or to renew
}

// New returns a Runner that does nothing before Run.
func New(c Config) *Runner {
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Runner{config: c}
}

// Run waits for the election, and then runs the controllers until ctx ends, one
// of them fails or returns, or another process leads. All of them have returned
// before Run does. It leads once: to lead again, start the process again.
func (r *Runner) Run(ctx context.Context) error {
	if r.config.Election != nil {
		return r.elect(ctx)
	}
	r.config.Log.Info("there is no election: no other process may run the same controllers")
	return r.work(ctx, &Term{name: r.config.Identity})
}

// work runs the controllers of one leadership, and waits for all of them.
func (r *Runner) work(ctx context.Context, term *Term) error {
	controllers, err := r.config.Controllers(term)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		for _, m := range c.Metrics {
			if err := r.config.Registry.Register(m); err != nil {
				return fmt.Errorf("register the metrics of controller %s: %w", c.Name, err)
			}
		}
	}
	r.set(true, controllers)
	defer r.set(false, nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	errs := make([]error, len(controllers))
	for i, c := range controllers {
		r.config.Log.Info("a controller runs", "controller", c.Name)
		group.Go(func() {
			defer cancel() // the process is restarted as a whole
			err := errors.New("it has ended its goroutine")
			defer func() {
				if err != nil {
					errs[i] = fmt.Errorf("controller %s: %w", c.Name, err)
				}
			}()
			if err = c.Run(ctx); err == nil && ctx.Err() == nil {
				err = errors.New("it returned before it was stopped")
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (r *Runner) set(leading bool, controllers []Controller) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading, r.controllers = leading, controllers
}

// Leading reports whether the controllers run.
func (r *Runner) Leading() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leading
}

// Running returns the controllers that run; none while another process leads.
func (r *Runner) Running() []Controller {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.controllers)
}

// Alive returns an error if the election has stopped, so that a supervisor
// restarts the process. An API server that does not answer is not an error.
func (r *Runner) Alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.config.Election
	if e == nil || r.lastAttempt.IsZero() {
		return nil
	}
	if idle := r.config.Now().Sub(r.lastAttempt); idle > e.LeaseDuration+e.RenewDeadline {
		return fmt.Errorf("the election used the lease last %s ago", idle.Round(time.Second))
	}
	return nil
}
