// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/stats"
)

func header(cluster uint64, rev int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: cluster, Revision: rev, RaftTerm: 1}
}

// reconnect makes a connection that there had been before, twice if it is the first.
func reconnect(s *Store) {
	to := &stats.ConnTagInfo{RemoteAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:1"))}
	for before := s.lines.replaced(); s.lines.replaced() == before; {
		s.lines.TagConn(context.Background(), to)
	}
}

// answerCase has a sequence of answers and the expected knowledge after them; resets
// reports whether the last one shows another past.
type answerCase struct {
	name   string
	learn  func(s *Store) error
	resets bool
	known  past
}

func answerCases() []answerCase {
	return []answerCase{
		{"nothing yet", func(*Store) error { return nil }, false, past{}},
		{"first answer", func(s *Store) error { return s.learn(past{}, header(1, 5)) }, false, past{1, 5, 0, 0, 0, 0}},
		{"the same revision", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			return s.learn(s.past, header(1, 5))
		}, false, past{1, 5, 0, 0, 0, 0}},
		{"a lower revision", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			return s.learn(s.past, header(1, 4))
		}, true, past{1, 4, 0, 4, 1, 5}},
		{"lower than a watch has delivered", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			s.saw(s.past, 9)
			return s.learn(s.past, header(1, 8))
		}, true, past{1, 8, 0, 8, 1, 9}},
		{"answers that overtake each other", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			slow := s.past
			_ = s.learn(s.past, header(1, 9))
			return s.learn(slow, header(1, 6))
		}, false, past{1, 9, 0, 0, 0, 0}},
		{"another cluster", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			return s.learn(s.past, header(2, 8))
		}, true, past{2, 8, 0, 8, 1, 5}},
		{"a member that is behind", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			return s.notice(s.past, header(1, 3))
		}, false, past{1, 5, 0, 0, 0, 0}},
		{"a member of another cluster", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			return s.notice(s.past, header(2, 8))
		}, true, past{2, 8, 0, 8, 1, 5}},
		{"an answer from before a reset", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			slow := s.past
			_ = s.learn(s.past, header(1, 3))
			return errors.Join(s.learn(slow, header(1, 6)), s.notice(slow, header(2, 6)))
		}, false, past{1, 3, 0, 3, 1, 5}},
		{"a delivery from before a reset", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			slow := s.past
			_ = s.learn(s.past, header(1, 3))
			s.saw(slow, 6)
			return nil
		}, false, past{1, 3, 0, 3, 1, 5}},
		{"over a connection that was replaced", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			reconnect(s)
			return errors.Join(s.learn(s.past, header(1, 7)), s.learn(s.past, header(1, 9)))
		}, false, past{1, 9, 1, 7, 0, 0}},
		{"first answer, over a connection that was replaced", func(s *Store) error {
			reconnect(s)
			return s.learn(s.past, header(1, 5))
		}, false, past{1, 5, 1, 0, 0, 0}},
		{"a slow answer over a connection that was replaced", func(s *Store) error {
			_ = s.learn(s.past, header(1, 5))
			slow := s.past
			_ = s.learn(s.past, header(1, 8))
			reconnect(s)
			return s.learn(slow, header(1, 6))
		}, false, past{1, 8, 1, 8, 0, 0}},
	}
}

// What is known is compared with what was known when a request was sent:
// answers overtake each other.
func TestLearn(t *testing.T) {
	for _, c := range answerCases() {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			s, err := Open(Config{Endpoints: []string{"127.0.0.1:1"}})
			g.Expect(err).NotTo(HaveOccurred())
			defer func() { _ = s.Close() }()
			w := &watcher{}
			w.ctx, w.stop = context.WithCancelCause(t.Context())
			s.watches[w] = struct{}{}
			if err := c.learn(s); c.resets {
				g.Expect(err).To(MatchError(ErrReset))
				g.Expect(context.Cause(w.ctx)).To(MatchError(ErrReset))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(s.past).To(Equal(c.known))
		})
	}
}
