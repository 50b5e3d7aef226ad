// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam

import (
	"context"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// PoolsChange opens and closes pools of Docker networks.
type PoolsChange struct {
	Change ipamapi.PoolChange
	done   chan error
}

// GetName returns "Docker Pools Change".
func (ev *PoolsChange) GetName() string { return "Docker Pools Change" }

func (ev *PoolsChange) String() string {
	s := ev.GetName()
	for _, x := range ev.Change.Open {
		s += fmt.Sprintf("\n* open %s: %v", x.Pool.Name, x.Blocks)
	}
	for _, x := range ev.Change.Close {
		s += fmt.Sprintf("\n* close %s", x.Pool)
	}
	return s
}

// Method returns Update.
func (ev *PoolsChange) Method() controller.EventMethodType { return controller.Update }

// TransactionType returns RevertOnFailure.
func (ev *PoolsChange) TransactionType() controller.UpdateTransactionType {
	return controller.RevertOnFailure
}

// Direction returns Forward.
func (ev *PoolsChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking returns true.
func (ev *PoolsChange) IsBlocking() bool { return true }

// Done passes the outcome to the caller that waits.
func (ev *PoolsChange) Done(err error) { ev.done <- err }

// opener changes the ledger's pools through the loop, which owns them.
type opener struct{ loop controller.EventLoop }

// changeLimit limits the time that the engine waits for the loop.
const changeLimit = 30 * time.Second

// Change pushes the change and waits for its outcome, for at most changeLimit.
func (o opener) Change(ctx context.Context, change ipamapi.PoolChange) error {
	cause := fmt.Errorf("the event loop has not handled it for %s: see cadastre status", changeLimit)
	ctx, cancel := context.WithTimeoutCause(ctx, changeLimit, cause)
	defer cancel()
	return o.push(ctx, change)
}

func (o opener) push(ctx context.Context, change ipamapi.PoolChange) error {
	ev := &PoolsChange{Change: change, done: make(chan error, 1)}
	if err := o.loop.PushEventWait(ctx, ev); err != nil {
		return err
	}
	select {
	case err := <-ev.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", ev.GetName(), context.Cause(ctx))
	}
}
