// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

// A store without any node record is new, or was wiped while no agent ran. In a
// wiped one an ID that looks free may be that of a node whose pods still live. So
// an ID that is claimed while the store is young is quarantined: its holder
// allocates nothing for Identity.Quarantine, and a node that remembers the ID takes
// it back. The holder ends the quarantine by a write of its record, on which taking
// back is conditional, so that no clock decides between the two.

// errYoung is the kind of problem of an ID in quarantine.
var errYoung = errors.New("the node ID was claimed in a new or wiped store")

// quarantine returns until when an ID is quarantined that is claimed now, 0 for not at
// all. The first claim in a store begins the quarantine. For claims that find it under
// way it ends at the same time.
func (r *register) quarantine(who Identity, now time.Time) int64 {
	if who.Quarantine == 0 {
		return 0
	}
	end := now.Add(who.Quarantine).UnixNano()
	if len(r.byID) == 0 {
		return end
	}
	var latest int64
	for _, s := range r.byID {
		if s.NodeRecord != nil && s.QuarantinedUntil > now.UnixNano() {
			latest = max(latest, s.QuarantinedUntil)
		}
	}
	return min(latest, end) // whatever clock another node has
}

// takesBack reports whether this node may take an ID from another one: it remembers
// the ID, and the other node has it in quarantine.
func takesBack(s stored, c claim) bool {
	return c.want.ID == s.Id && s.unreadable == nil && s.QuarantinedUntil != 0
}

// quarantined returns the problem of the ID that was just confirmed, nil for none,
// and when it ends.
func (k *IDClaimer) quarantined() (problem string, ends time.Time) {
	until := k.own.record.GetQuarantinedUntil()
	if until == 0 {
		return "", time.Time{}
	}
	ends = time.Unix(0, until)
	return fmt.Sprintf(
		"the cluster store was new or wiped when this node claimed it: a node that held it before may still use its addresses, and takes it back if it returns; new addresses are allocated from %s on",
		ends.UTC().Format(time.RFC3339),
	), ends
}

// endQuarantine ends the quarantine in the record that is about to be written, if
// its time is over.
func endQuarantine(r *kv.NodeRecord, now time.Time) {
	if r.QuarantinedUntil != 0 && now.UnixNano() >= r.QuarantinedUntil {
		r.QuarantinedUntil = 0
	}
}

// tookBack reports whether another node took this node's ID back that was in
// quarantine. Nothing of it was allocated, so that the next start claims another one.
func (k *IDClaimer) tookBack(kind error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Is(kind, ErrIDTaken) && errors.Is(k.kind, errYoung)
}

// nextQuarantine returns how long the quarantine of the ID still takes, 0 for none.
func (k *IDClaimer) nextQuarantine() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.young.IsZero() {
		return 0
	}
	return max(k.young.Sub(k.deps.Now()), time.Millisecond)
}
