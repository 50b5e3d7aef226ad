// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// Expiry makes a lease pending: the lease is released after a time, unless a caller
// with the token stops the expiry. It counts the time since boot and survives a
// restart; after a reboot it begins again.
type Expiry struct {
	Token string        // of this attempt; needed to stop the expiry
	After time.Duration // above 0
}

// check returns an error unless e is zero or complete.
func (e Expiry) check() error {
	switch {
	case e == Expiry{}:
		return nil
	case e.After <= 0:
		return fmt.Errorf("expiry after %s: want a time above 0", e.After)
	case e.Token == "":
		return fmt.Errorf("expiry after %s: its token is empty", e.After)
	}
	return nil
}

// timer is the Expiry of a lease. Each pool has a heap of the timers of its leases.
type timer struct {
	Expiry
	at    time.Duration // uptime
	index int           // in the heap
	lease *lease
}

// timers is a heap; the timer that expires first is on top.
type timers []*timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at < t[j].at }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	n := x.(*timer)
	n.index = len(*t)
	*t = append(*t, n)
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	old := *t
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	return n
}

// state returns the state of a lease with this timer; t may be nil.
func (t *timer) state() State {
	if t == nil {
		return Held
	}
	return Pending
}

// newTimer returns the timer of x, nil for the zero Expiry.
func (l *Ledger) newTimer(x *lease, e Expiry) *timer {
	if e == (Expiry{}) {
		return nil
	}
	return &timer{Expiry: e, at: l.opt.Uptime() + e.After, lease: x}
}

// ends reports whether the ledger itself ends the lease of the timer; t may be nil.
func (t *timer) ends() bool { return t != nil && t.Token != ReclaimToken }

// arm adds the timer of x to the heap of its pool.
func (l *Ledger) arm(x *lease) {
	if !x.timer.ends() {
		return
	}
	heap.Push(&x.block.pool.timers, x.timer)
	l.timersArmed++
	l.due = min(l.due, x.timer.at)
	l.wakeRun()
}

// disarm removes the timer of x from the heap of its pool.
func (l *Ledger) disarm(x *lease) {
	if !x.timer.ends() {
		return
	}
	heap.Remove(&x.block.pool.timers, x.timer.index)
	l.timersArmed--
}

// expirePending releases the pending leases whose time is over. Each method that
// reads leases calls it first, so that no answer depends on Run. It skips unknown
// pools: the component that confirms their leases may not have begun.
func (l *Ledger) expirePending() {
	if l.timersArmed == 0 {
		return
	}
	now := l.opt.Uptime()
	if now < l.due {
		return
	}
	l.due = never
	for _, p := range l.pools {
		if p.known {
			l.expirePendingOf(p, now)
			l.expiryChanged(p)
		}
	}
}

// never is after every uptime.
const never = time.Duration(math.MaxInt64)

// expiryChanged notes when a lease of p expires next.
func (l *Ledger) expiryChanged(p *pool) {
	if p.known && len(p.timers) > 0 {
		l.due = min(l.due, p.timers[0].at)
	}
}

func (l *Ledger) expirePendingOf(p *pool, now time.Duration) {
	var busy []*timer // of leases that a stage changes: the end of the stage decides
	for len(p.timers) > 0 && p.timers[0].at <= now {
		t := p.timers[0]
		x := t.lease
		if x.owner != nil {
			heap.Pop(&p.timers)
			busy = append(busy, t)
			continue
		}
		l.noteLease(Expired, x, "not confirmed within "+t.After.String())
		l.unlink(x)
		if coolsDown(x) {
			l.cool(x, t.at, l.opt.Now().UnixNano())
		} else {
			l.drop(x)
		}
		l.dirty[leaseKey(p.Name, x.addr)] = struct{}{}
		l.expired++
		l.opt.Log.Info("pending lease was not confirmed in time: it is released",
			append(DecisionOn([]Lease{x.value()}, x.reason).Attributes(), "after", t.After)...)
		l.sweep(x.block)
		l.wakeRun()
	}
	for _, t := range busy {
		heap.Push(&p.timers, t)
	}
}

// Expired returns the number of leases that were released since Open because their
// expiry was not stopped.
func (l *Ledger) Expired() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	return l.expired
}

// StartExpiry makes held leases pending. It fails if the selector has no lease,
// or one that is pending already.
func (l *Ledger) StartExpiry(ctx context.Context, sel Selector, e Expiry) error {
	err := l.autocommit(ctx, func(st *Stage) error { return st.startExpiry(&sel, e) })
	return explain(err, "start an expiry for %s", sel.describe())
}

// StopExpiry makes pending leases held: they are confirmed. The token must be
// that of their Expiry. It fails if a lease is not, or no longer, pending.
func (l *Ledger) StopExpiry(ctx context.Context, sel Selector, token string) error {
	err := l.autocommit(ctx, func(st *Stage) error { return st.stopExpiry(&sel, token) })
	return explain(err, "stop the expiry of %s", sel.describe())
}

// StartExpiry stages the change that Ledger.StartExpiry commits.
func (st *Stage) StartExpiry(sel Selector, e Expiry) error {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	return st.startExpiry(&sel, e)
}

// StopExpiry stages the change that Ledger.StopExpiry commits.
func (st *Stage) StopExpiry(sel Selector, token string) error {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	return st.stopExpiry(&sel, token)
}

func (st *Stage) startExpiry(sel *Selector, e Expiry) error {
	if err := e.check(); err != nil || e == (Expiry{}) {
		return fmt.Errorf(
			"start an expiry for %s: %w",
			sel.describe(),
			errorOr(err, "it has neither a token nor a time"),
		)
	}
	found, err := st.extendable(sel)
	if err != nil {
		return fmt.Errorf("start an expiry for %s: %w", sel.describe(), err)
	}
	for _, x := range found {
		if x.state != Held {
			return fmt.Errorf("start an expiry for %s: %w", x.addr, ErrPending)
		}
	}
	for _, x := range found {
		st.extend(x, st.l.newTimer(x, e), sel.Reason)
	}
	return nil
}

func (st *Stage) stopExpiry(sel *Selector, token string) error {
	found, err := st.extendable(sel)
	if err != nil {
		return fmt.Errorf("stop the expiry of %s: %w", sel.describe(), err)
	}
	for _, x := range found {
		switch {
		case x.timer == nil:
			return fmt.Errorf("stop the expiry of %s: %w", x.addr, ErrNotPending)
		case x.timer.Token != token:
			return fmt.Errorf("stop the expiry of %s: %w: %q", x.addr, ErrToken, token)
		}
	}
	for _, x := range found {
		st.extend(x, nil, sel.Reason)
	}
	return nil
}

// errorOr returns err, or an error with a text if err is nil.
func errorOr(err error, text string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%s", text)
}

// describe names the selection in an error.
func (s *Selector) describe() string {
	switch {
	case s.Key != (Key{}):
		return s.Key.String()
	case s.Pod.Name != "":
		return s.Pod.String()
	}
	return s.Addr.String()
}

// extendable returns the held and pending leases of a selector. It waits for other
// stages that change them.
func (st *Stage) extendable(sel *Selector) ([]*lease, error) {
	found, err := st.l.selectLeases(st, sel)
	if err != nil {
		return nil, err
	}
	if sel.Generation != 0 {
		found = slices.DeleteFunc(found, func(x *lease) bool { return x.gen != sel.Generation })
	}
	if len(found) == 0 {
		return nil, ErrNoLease
	}
	for _, x := range found {
		switch {
		case x.releasing:
			return nil, fmt.Errorf("%s: its release is in progress: %w", x.addr, ErrBusy)
		case x.owner != nil:
			return nil, fmt.Errorf("%s: it is staged already: %w", x.addr, ErrBusy)
		case x.state != Held && x.state != Pending:
			return nil, fmt.Errorf("%s is %s: %w", x.addr, x.state, ErrNoLease)
		}
	}
	return found, nil
}

// extend stages another timer of x; nil for none.
func (st *Stage) extend(x *lease, t *timer, reason string) {
	x.owner = st
	st.changes = append(st.changes, change{kind: extended, lease: x, timer: t, reason: reason, event: st.event})
}

// pendingReason returns the reason that a lease with the timer of an extension has: that
// of a pending lease, "" for a held one.
func (c *change) pendingReason() string {
	if c.timer == nil {
		return ""
	}
	return c.reason
}
