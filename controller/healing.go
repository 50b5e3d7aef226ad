// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"
)

// healing decides when the next healing resync is due. It belongs to the loop.
type healing struct {
	timer    *time.Timer  // due after an error
	periodic *time.Ticker // never ticks unless enabled
	due      bool
	err      error
	attempts int // in a row that failed
}

func (h *healing) start(cfg Config) {
	h.timer = time.NewTimer(time.Hour)
	h.timer.Stop()
	h.periodic = time.NewTicker(max(cfg.PeriodicHealingInterval, time.Second))
	if !cfg.EnablePeriodicHealing {
		h.periodic.Stop()
	}
}

func (h *healing) stop() {
	h.timer.Stop()
	h.periodic.Stop()
}

func (h *healing) event() *HealingResync {
	h.due = false
	return &HealingResync{Type: AfterError, Err: h.err, Attempt: h.attempts + 1}
}

// heal schedules a resync because of err, one at a time.
func (c *Controller) heal(err error, now bool) {
	h := &c.healing
	h.err = err
	c.setStatus(func(s *Status) { s.Healthy, s.LastError = false, err.Error() })
	if h.due {
		return
	}
	delay := c.cfg.DelayAfterErrorHealing
	limit := max(delay, c.cfg.HealingBackoffLimit)
	for range h.attempts {
		delay = min(2*delay, limit)
	}
	if now && h.attempts == 0 {
		delay = 0
	}
	h.due = true
	h.timer.Reset(delay)
	c.deps.Log.Warn("healing resync scheduled", "in", delay, "attempt", h.attempts+1, "error", err)
}

// resynced notes the outcome of a resync that rebuilt the wanted state.
func (c *Controller) resynced(ev Event, err error) {
	// A single value that the southbound refuses, such as a foreign route, does not stop
	// the loop: all other values were applied, and healing continues.
	values := valueErrors(err) != nil
	if err == nil || values {
		if !c.synced {
			c.synced = true
			c.queue.signal() // for what waited for it
		}
		c.setStatus(func(s *Status) { s.Resynced = true })
	}
	if err == nil {
		c.healing.attempts = 0
		c.healing.due = false
		c.healing.timer.Stop()
		c.setStatus(func(s *Status) { s.Healthy, s.LastError = true, "" })
		return
	}
	if h, ok := ev.(*HealingResync); ok && h.Type == AfterError {
		c.healing.attempts = min(c.healing.attempts+1, c.cfg.MaxHealingAttempts)
		if c.healing.attempts == c.cfg.MaxHealingAttempts && !values {
			c.fatal = fmt.Errorf("%w: %d healing resyncs in a row have failed: %w", ErrFatal, c.healing.attempts, err)
			return
		}
	}
	c.heal(err, false)
}
