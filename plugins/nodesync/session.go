// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// What the disk says of sessions and machines, so that the next start can tell
// its own earlier run from a twin.

// announcePending stores the session of this run on the disk before its first
// beat, beside the one that this beat replaces. A crash between the two writes is
// still a restart: the store shows one of the two sessions.
func (k *IDClaimer) announcePending(replaces string) error {
	session := k.deps.Identity.Session
	if k.saved.Session == session || k.saved.Pending == session {
		return nil
	}
	r := k.saved
	r.Session, r.Pending = cmp.Or(replaces, r.Session), session
	return k.save(r)
}

// equalButTime reports whether r and s differ in nothing but the time of the last
// confirmation.
func (r remembered) equalButTime(s remembered) bool {
	r.Confirmed, s.Confirmed = time.Time{}, time.Time{}
	return r == s
}

// movedDisk returns a problem if the store last confirmed the ID on another
// machine, or if that cannot be told. The disk may then be a copy, and until the
// store has confirmed the ID, the agent cannot know whether the original is alive.
func (k *IDClaimer) movedDisk() (problem string, kind error) {
	if k.twins == nil || k.twins.moved == 0 {
		return "", nil
	}
	was, is := k.saved.Machine, k.deps.Identity.Machine
	switch {
	case was == Machine{}:
		problem = "the disk does not say on which machine the cluster store last confirmed it."
	case was.ProductUUID != "" && is.ProductUUID != "":
		problem = fmt.Sprintf(
			"the cluster store last confirmed it on another machine (%s; this machine: %s): was the disk copied?",
			was,
			is,
		)
	default:
		problem = fmt.Sprintf(
			"the machine was booted since the cluster store last confirmed it, or is another one: its product UUID is not known (%s; this machine: %s).",
			was,
			is,
		)
	}
	return problem + " Nothing new is allocated until the store confirms it", errMoved
}

// lookAgain notes when a twin counts as stopped, if err is about one.
func (k *IDClaimer) lookAgain(err error) {
	var twin *twinError
	is := errors.As(err, &twin)
	if is && !errors.Is(k.twin, twin.kind) {
		k.deps.Log.Warn("another process beats with this node's ID", "reason", twin.seen)
	}
	k.twin = nil
	if is {
		k.twin = twin.kind
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case is:
		k.look = twin.until
	case err == nil:
		k.look = time.Time{}
	}
}

// nextLook returns how long it is until a twin counts as stopped, 0 without one.
func (k *IDClaimer) nextLook() time.Duration {
	k.mu.Lock()
	at := k.look
	k.mu.Unlock()
	if at.IsZero() {
		return 0
	}
	return at.Sub(k.deps.Now())
}
