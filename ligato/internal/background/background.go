// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package background runs the goroutines of a plugin between its AfterInit and its Close.
package background

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group holds the goroutines of one plugin. Stop ends and awaits all of them. A function
// that fails, or returns before it is stopped, has its error handed to Fail.
type Group struct {
	fail   func(error)
	ctx    context.Context //nolint:containedctx // from AfterInit to Close, which take none
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New returns a group without goroutines. fail is called from the goroutine that failed,
// and must not wait for it.
func New(fail func(error)) *Group {
	ctx, cancel := context.WithCancel(context.Background())
	return &Group{fail: fail, ctx: ctx, cancel: cancel}
}

// Go calls f in a goroutine.
func (g *Group) Go(name string, f func(context.Context) error) {
	g.wg.Go(func() {
		err := f(g.ctx)
		if err == nil && g.ctx.Err() == nil {
			err = errors.New("it returned before it was stopped")
		}
		if err == nil {
			return
		}
		g.fail(fmt.Errorf("%s: %w", name, err))
	})
}

// Stop ends the functions and waits for them. A nil group has none.
func (g *Group) Stop() {
	if g == nil {
		return
	}
	g.cancel()
	g.wg.Wait()
}
