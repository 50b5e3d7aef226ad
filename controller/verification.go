// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// VerificationResync compares the state of a resync with that of the events before it.
// A difference is a bug of a handler: the loop reports it and applies the new state.
type VerificationResync struct{}

// GetName returns "Verification Resync".
func (ev *VerificationResync) GetName() string { return "Verification Resync" }

func (ev *VerificationResync) String() string { return ev.GetName() }

// Method returns UpstreamResync.
func (ev *VerificationResync) Method() EventMethodType { return UpstreamResync }

// IsBlocking returns false.
func (ev *VerificationResync) IsBlocking() bool { return false }

// Done does nothing.
func (ev *VerificationResync) Done(error) {}

// verification records whether one is due. Only the loop uses it.
type verification struct {
	due bool
	of  uint64 // event that it is due for
}

// noteOutcome decides whether the event should be verified. A verification and
// its follow-ups are not, or one that always makes some would never end.
func (r *run) noteOutcome(err error) {
	if !r.c.cfg.EnableVerification || r.txn == nil {
		return
	}
	switch r.ev.Event.(type) {
	case *HealingResync:
		return
	}
	switch {
	case err == nil && !r.ev.verified:
		r.c.verification = verification{due: true, of: r.rec.SeqNum}
	case err != nil && !r.reverted:
		r.c.verification.due = false // what it has left is known
	}
}

// verify processes a VerificationResync if one is due, and nothing that
// would change the state again is under way.
func (c *Controller) verify(ctx, work context.Context) {
	v := &c.verification
	if !v.due || c.fatal != nil || ctx.Err() != nil {
		return
	}
	if c.healing.due {
		v.due = false
		return
	}
	if _, followUps := c.queue.lengths(); followUps > 0 {
		return
	}
	v.due = false
	ev := c.own(&VerificationResync{})
	ev.isFollowUp, ev.followUpTo, ev.verified = true, v.of, true
	c.process(work, ev)
}

// findings compares what a VerificationResync has come to with what there was.
func (r *run) findings() {
	var found []string
	for _, err := range r.errs {
		found = append(found, "failed: "+short(err.Error()))
	}
	if len(r.errs) == 0 {
		found = compare(r.c.wanted.messages(), r.txn.resynced())
		r.unchanged = len(found) == 0
	}
	for _, ev := range r.txn.followUps {
		found = append(found, "follow-up: "+ev.name)
	}
	for _, x := range r.c.deps.Committers {
		if s, ok := x.(StagingCommitter); ok {
			if err := r.c.guard(func() error {
				for _, text := range s.Staged() {
					found = append(found, "staged: "+text)
				}
				return nil
			}); err != nil {
				found = append(found, "staged: "+short(err.Error()))
			}
		}
	}
	if len(found) == 0 {
		return
	}
	r.rec.Verification = found
	r.c.deps.Log.Error("a resync has come to another state than the events before it",
		"seq", r.rec.SeqNum, "after", r.rec.FollowUpTo, "found", found)
	r.c.setStatus(func(s *Status) { s.VerificationFailures++ })
}

// compare returns the differences between two states, in the order of their keys.
func compare(before, after map[string]proto.Message) (found []string) {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		x, y := before[k], after[k]
		switch {
		case proto.Equal(x, y):
		case x == nil:
			found = append(found, "added "+k+": "+text(y))
		case y == nil:
			found = append(found, "removed "+k+": "+text(x))
		default:
			found = append(found, "changed "+k+": from "+text(x)+" to "+text(y))
		}
	}
	return found
}

// text returns a message as a short text.
func text(m proto.Message) string {
	s := string(m.ProtoReflect().Descriptor().Name())
	return short(s + "{" + prototext.MarshalOptions{}.Format(m) + "}")
}

// short cuts a long text.
func short(s string) string {
	const most = 200
	n := 0
	for i := range s {
		if n++; n > most {
			return s[:i] + "..."
		}
	}
	return s
}
