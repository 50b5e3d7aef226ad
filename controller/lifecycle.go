// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
)

// lifecycle records how far a loop has come. A loop runs once.
type lifecycle struct {
	mu          sync.Mutex
	initialized bool
	started     bool
	stop        context.CancelFunc
	ended       chan struct{} // closed after the loop
	err         error         // of the loop, once ended is closed
}

func newLifecycle() lifecycle { return lifecycle{stop: func() {}, ended: make(chan struct{})} }

// String returns the name of the plugin.
func (c *Controller) String() string { return "controller" }

// AddHandlers appends handlers to those of Deps: plugins that need the loop to be
// made. It must not be called after Init.
func (c *Controller) AddHandlers(handlers ...EventHandler) {
	c.deps.Handlers = append(c.deps.Handlers, handlers...)
}

// AddCommitters appends committers to those of Deps. It must not be called after Init.
func (c *Controller) AddCommitters(committers ...Committer) {
	c.deps.Committers = append(c.deps.Committers, committers...)
}

// Init checks the configuration, the handlers and the committers. It starts nothing,
// and a further call does nothing.
func (c *Controller) Init() error {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	if c.life.initialized {
		return nil
	}
	if err := c.check(); err != nil {
		return fmt.Errorf("init %s: %w", c, err)
	}
	c.life.initialized = true
	return nil
}

func (c *Controller) check() error {
	if c.cfg.QueueSize <= 0 {
		return fmt.Errorf("QueueSize %d: want a number above 0", c.cfg.QueueSize)
	}
	for i, h := range c.deps.Handlers {
		if h == nil || isNil(h) {
			return fmt.Errorf("handler %d is nil: want an EventHandler", i)
		}
	}
	for i, x := range c.deps.Committers {
		if x == nil || isNil(x) {
			return fmt.Errorf("committer %d is nil: want a Committer", i)
		}
	}
	return nil
}

// AfterInit starts the loop in a goroutine, which Close ends and awaits. If an error
// ends the loop before, Status().Fatal holds it and Close returns it.
func (c *Controller) AfterInit() error {
	ctx, cancel := context.WithCancel(context.Background())
	if err := c.start(cancel); err != nil {
		cancel()
		return err
	}
	go func() { _ = c.run(ctx) }() // Close returns the error
	return nil
}

// Run calls Init and runs the loop until ctx ends, an error is fatal, or Close is
// called. It returns nil unless an error is fatal. All events that the loop has
// accepted are done when it returns.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.Init(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.start(cancel); err != nil {
		return err
	}
	return c.run(ctx)
}

// run runs the loop and records its end, also if something that the loop calls by itself,
// such as a handler of the log, ends the goroutine.
func (c *Controller) run(ctx context.Context) (err error) {
	err = NewFatalError(errGoexit)
	defer func() { c.end(err) }()
	err = c.loop(ctx)
	return err
}

// Close ends the loop, waits until all accepted events are done, and returns the
// fatal error that has ended the loop, if one has. The queued events of a loop that
// was never started are done with ErrClosedController. A further call returns the
// same error. A handler or a Done that calls it gets ErrWaitInLoop.
func (c *Controller) Close() error {
	if OnLoop() {
		return fmt.Errorf("close %s: %w", c, ErrWaitInLoop)
	}
	c.life.mu.Lock()
	started, stop := c.life.started, c.life.stop
	c.life.started = true
	c.life.mu.Unlock()
	if !started { // the loop begins and ends at once: it knows the callers that it calls itself
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.run(ended)
	}
	stop()
	<-c.life.ended
	return c.life.err
}

// Ended returns a channel that closes when the loop has ended. Status().Fatal then holds
// the error that has ended it, if one has.
func (c *Controller) Ended() <-chan struct{} { return c.life.ended }

// start records that the loop is about to run, which stop ends.
func (c *Controller) start(stop context.CancelFunc) error {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	switch {
	case c.life.started:
		return fmt.Errorf("start %s: %w", c, errStarted)
	case !c.life.initialized:
		return fmt.Errorf("start %s: call Init before", c)
	}
	c.life.started, c.life.stop = true, stop
	return nil
}

// end records that the loop has ended.
func (c *Controller) end(err error) {
	c.life.err = err
	close(c.life.ended)
}
