// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/controller"
)

// slack bounds the error of the stored time of the last confirmation, and of the
// clock compared with an earlier reading.
func (k *IDClaimer) slack() time.Duration { return k.deps.Expire / 24 }

// remaining returns the time for which the ID may be used if it is not confirmed again.
func (k *IDClaimer) remaining() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.confirmed.Add(k.deps.Expire * 5 / 6).Sub(k.deps.Now())
}

// Until returns when this node stops allocating if the store does not confirm its ID
// again, zero without an ID. Any goroutine may call it.
func (k *IDClaimer) Until() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held.ID == 0 {
		return time.Time{}
	}
	return k.confirmed.Add(k.deps.Expire * 5 / 6)
}

// overdue returns a problem if the store has not confirmed the ID for so long that another
// node may soon release it. It returns one too if the clock is behind the last
// confirmation.
func (k *IDClaimer) overdue() (problem string, kind error) {
	left := k.remaining()
	k.mu.Lock()
	id, confirmed := k.held.ID, k.confirmed
	k.mu.Unlock()
	switch {
	case id == 0:
		return "", nil
	case left <= 0:
		return fmt.Sprintf(
			"the cluster store has not confirmed node ID %d since %s; after %s another node may have it",
			id,
			confirmed.UTC().Format(time.RFC3339),
			k.deps.Expire,
		), errOverdue
	case left > k.deps.Expire*5/6+k.slack():
		return fmt.Sprintf(
			"the cluster store confirmed node ID %d at %s, which the clock says is still to come",
			id,
			confirmed.UTC().Format(time.RFC3339),
		), errOverdue
	}
	return "", nil
}

// checkTerm stops allocation if the ID is overdue.
func (k *IDClaimer) checkTerm() {
	k.reporting.Lock()
	defer k.reporting.Unlock()
	if problem, kind := k.overdue(); problem != "" && k.Problem() == "" {
		k.setProblem(problem, kind)
	}
}

func reason(held Held, problem string) string {
	return fmt.Sprintf("node ID %d: %s", held.ID, problem)
}

// setProblem records a problem, or its end, and announces it. The caller holds reporting.
func (k *IDClaimer) setProblem(problem string, kind error) {
	k.mu.Lock()
	was, wasKind, held := k.problem, k.kind, k.held
	k.problem, k.kind = problem, kind
	k.mu.Unlock()
	switch problem {
	case was:
		return
	case "":
		k.deps.Leases.Suspend("")
	default:
		k.deps.Leases.Suspend(reason(held, problem))
	}
	if !errors.Is(kind, wasKind) { // else it is the same problem with another time in its text
		k.announce(held, problem)
	}
}

// announceEarlier announces a problem that arose before the event loop existed.
func (k *IDClaimer) announceEarlier() {
	k.reporting.Lock()
	defer k.reporting.Unlock()
	if k.pending {
		k.announce(k.Held(), k.Problem())
	}
}

func (k *IDClaimer) announce(held Held, problem string) {
	k.pending = false
	if problem == "" {
		k.deps.Log.Info("the node ID is this node's again", "nodeID", held.ID, "generation", held.Generation)
	} else {
		k.deps.Log.Error("this node's ID is in doubt: no new address is allocated, existing leases stay",
			"nodeID", held.ID, "problem", problem)
	}
	err := k.deps.EventLoop.PushEvent(&NodeIDChange{Held: held, Problem: problem})
	if err != nil && !errors.Is(err, controller.ErrClosedController) {
		k.deps.Log.Warn("the event history lacks a change of the node ID", "error", err)
	}
}
