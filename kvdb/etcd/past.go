// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// past holds the known history of the store.
type past struct {
	cluster uint64 // 0 while nothing is known
	rev     int64  // the highest one seen, which the store never goes below
	lines   int    // how often connections had been replaced at the last linearizable answer
	since   int64  // what was known of lower revisions is from before that
	resets  int    // how often all this was found to be wrong
	old     int64  // the highest revision seen before the last time
}

// learn takes note of a linearizable answer; known is what was known before
// the request was sent. It ends all watches, and answers ErrReset, if the two
// cannot be of one history.
func (s *Store) learn(known past, h *pb.ResponseHeader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past.resets != known.resets {
		return nil // from before a reset, perhaps; it tells nothing of the store as it is now
	}
	if known.cluster != 0 && h.ClusterId == known.cluster && h.Revision < known.rev {
		return s.reset(h, fmt.Errorf("%w: revision %d was seen before, now it is %d", ErrReset, known.rev, h.Revision))
	}
	first := s.past.cluster == 0
	if err := s.recognize(h); err != nil {
		return err
	}
	if lines := s.lines.replaced(); lines != s.past.lines {
		if s.past.lines = lines; !first {
			s.past.since = s.past.rev
		}
	}
	return nil
}

// notice takes note of what a member said by itself, which may be behind.
func (s *Store) notice(known past, h *pb.ResponseHeader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past.resets != known.resets {
		return nil
	}
	return s.recognize(h)
}

// saw takes note of a revision that a watch delivered.
func (s *Store) saw(known past, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.past.resets == known.resets {
		s.past.rev = max(s.past.rev, rev)
	}
}

// trust tells why a watch must not continue what was read at rev.
func (s *Store) trust(known past, rev int64) error {
	switch {
	case known.cluster == 0:
		return nil // it was not read here
	case rev > known.rev && rev <= known.old:
		return fmt.Errorf("%w: revision %d is one of the time before", ErrReset, rev)
	case rev < known.since || known.lines != s.lines.replaced():
		return errLost
	}
	return nil
}

func (s *Store) recognize(h *pb.ResponseHeader) error {
	if s.past.cluster != 0 && h.ClusterId != s.past.cluster {
		return s.reset(h, fmt.Errorf("%w: it was cluster %x, now it is %x", ErrReset, s.past.cluster, h.ClusterId))
	}
	s.past.cluster = h.ClusterId
	s.past.rev = max(s.past.rev, h.Revision)
	return nil
}

func (s *Store) reset(h *pb.ResponseHeader, why error) error {
	s.past = past{
		cluster: h.ClusterId,
		rev:     h.Revision,
		lines:   s.lines.replaced(),
		since:   h.Revision,
		resets:  s.past.resets + 1,
		old:     max(s.past.rev, s.past.old),
	}
	for w := range s.watches {
		w.stop(ending{why})
	}
	s.log.Warn("etcd has another past than the one that was known: all watches end",
		"endpoints", s.cfg.Endpoints, "reason", why)
	return why
}
