// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

const modelCoolDown = time.Minute

// model is a naive store: maps, and a look at every address.
type model struct {
	holder  map[netip.Addr]int           // the key of each assigned address, attached or not
	cooling map[netip.Addr]time.Duration // since when
	blocks  map[string][]netip.Prefix    // by interface
	prefix  bool                         // the mode
	// stale holds the cooling addresses of removed blocks. The checkpoint forgets them
	// with the next write; after a restart before that they go on cooling.
	stale  map[netip.Addr]time.Duration
	unsure bool // a write has failed: the next call writes in any case
}

func (m *model) addresses() (all []netip.Addr) {
	for _, blocks := range m.blocks {
		for _, p := range blocks {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				all = append(all, a)
			}
		}
	}
	return all
}

func (m *model) attached(a netip.Addr) bool { return slices.Contains(m.addresses(), a) }

func (m *model) addressOf(n int) (netip.Addr, bool) {
	for a, k := range m.holder {
		if k == n {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// free returns the addresses that can be assigned now.
func (m *model) free(now time.Duration) (all []netip.Addr) {
	for _, blocks := range m.blocks {
		for _, p := range blocks {
			if p.IsSingleIP() == m.prefix {
				continue
			}
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				_, taken := m.holder[a]
				since, cools := m.cooling[a]
				if !taken && (!cools || now-since >= modelCoolDown) {
					all = append(all, a)
				}
			}
		}
	}
	return all
}

// subject is a DataStore beside its model.
type subject struct {
	t     *rapid.T
	g     Gomega
	ds    *DataStore
	clock *clock
	cp    func() Checkpointer
	plan  *bool
	model
}

func newSubject(t *rapid.T) *subject {
	s := &subject{t: t, g: NewWithT(t), clock: &clock{}, model: model{
		holder: map[netip.Addr]int{}, cooling: map[netip.Addr]time.Duration{}, stale: map[netip.Addr]time.Duration{},
		blocks: map[string][]netip.Prefix{},
		prefix: rapid.Bool().Draw(t, "prefix mode"),
	}}
	kind := rapid.SampledFrom([]string{"whole", "delta"}).Draw(t, "checkpoint")
	tear := rapid.Bool().Draw(t, "writes fail after they are kept")
	fail := false
	s.plan = &fail
	if kind == "whole" {
		w := &broken{TestCheckpoint: NewTestCheckpoint(nil), now: s.plan, after: tear}
		s.cp = func() Checkpointer { return w }
	} else {
		fault := journal.Fail
		if tear {
			fault = journal.Tear
		}
		j := &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault {
			if fail {
				return fault
			}
			return journal.None
		}}
		s.cp = func() Checkpointer { return NewJournalCheckpoint(j) }
	}
	s.open()
	return s
}

// broken is a Checkpointer that fails while now is true.
type broken struct {
	*TestCheckpoint
	now   *bool
	after bool
}

func (b *broken) Checkpoint(data any) error {
	if !*b.now {
		return b.TestCheckpoint.Checkpoint(data)
	}
	if b.after {
		return errors.Join(b.TestCheckpoint.Checkpoint(data), errWrite)
	}
	return errWrite
}

func (s *subject) open() {
	s.ds = New(s.clock.options(Options{Checkpoint: s.cp(), CoolDown: modelCoolDown, PrefixMode: s.prefix, BootID: "b"}))
}

func (s *subject) failed(err error) bool {
	failed := errors.Is(err, errWrite) || errors.Is(err, journal.ErrInjected)
	s.unsure = s.unsure || failed
	return failed
}

// wrote notes a call that has written, or may have.
func (s *subject) wrote(must bool) {
	if must || s.unsure {
		clear(s.stale)
		s.unsure = false
	}
}

func (s *subject) key() int { return rapid.IntRange(1, 12).Draw(s.t, "key") }

func (s *subject) eni() string {
	return fmt.Sprintf("eni-%d", rapid.IntRange(1, 3).Draw(s.t, "interface"))
}

func (s *subject) block() netip.Prefix {
	n := rapid.IntRange(0, 11).Draw(s.t, "block")
	if n < 4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n * 4)}), 30)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n + 8)}), 32)
}

func (s *subject) assign(*rapid.T) {
	n := s.key()
	ip, _, err := s.ds.AssignPodIPv4Address(key(n))
	have, has := s.addressOf(n)
	free := s.free(s.clock.uptime())
	switch {
	case s.failed(err):
		s.g.Expect(*s.plan).To(BeTrue())
	case has && !s.attached(have):
		s.g.Expect(err).To(MatchError(ErrNotAttached))
		s.wrote(false)
	case has:
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(ip).To(Equal(have.String()))
		s.wrote(false)
	case len(free) == 0:
		s.g.Expect(err).To(MatchError(ErrNoAvailableIP))
	default:
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(free).To(ContainElement(netip.MustParseAddr(ip)))
		s.wrote(true)
		s.holder[netip.MustParseAddr(ip)] = n
		delete(s.cooling, netip.MustParseAddr(ip))
	}
}

func (s *subject) unassign(*rapid.T) {
	n := s.key()
	have, has := s.addressOf(n)
	ip, _, err := s.ds.UnassignPodIPv4Address(key(n))
	switch {
	case s.failed(err):
		s.g.Expect(*s.plan).To(BeTrue())
	case !has:
		s.g.Expect(err).To(BeIdenticalTo(ErrUnknownPod))
		s.wrote(false)
	default:
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(ip).To(Equal(have.String()))
		s.wrote(true)
		s.release(have)
	}
}

// release makes a cool. A block of the other mode is removed with its last pod.
func (s *subject) release(a netip.Addr) {
	delete(s.holder, a)
	for id, blocks := range s.blocks {
		for _, p := range blocks {
			if !p.Contains(a) || p.IsSingleIP() != s.prefix {
				continue
			}
			for x := range s.holder {
				if p.Contains(x) { // not the last one
					s.cooling[a] = s.clock.uptime()
					return
				}
			}
			s.drop(id, p)
			return
		}
	}
	s.cooling[a] = s.clock.uptime()
}

func (s *subject) drop(id string, p netip.Prefix) {
	s.blocks[id] = slices.DeleteFunc(slices.Clone(s.blocks[id]), func(q netip.Prefix) bool { return p == q })
	maps.DeleteFunc(s.holder, func(a netip.Addr, _ int) bool { return p.Contains(a) })
	maps.DeleteFunc(s.cooling, func(a netip.Addr, since time.Duration) bool {
		if p.Contains(a) {
			s.stale[a] = since
		}
		return p.Contains(a)
	})
}

func (s *subject) add(*rapid.T) {
	id, p := s.eni(), s.block()
	if _, ok := s.blocks[id]; !ok {
		s.g.Expect(s.ds.AddENI(id, int(id[4]-'0'), false, false)).To(Succeed())
		s.blocks[id] = nil
	}
	var err error
	if p.IsSingleIP() {
		err = s.ds.AddAddress(id, p.Addr())
	} else {
		err = s.ds.AddPrefix(id, p)
	}
	if s.failed(err) {
		return
	}
	for _, blocks := range s.blocks {
		if slices.ContainsFunc(blocks, p.Overlaps) {
			s.g.Expect(err).To(text(IPAlreadyInStoreError))
			return
		}
	}
	s.g.Expect(err).NotTo(HaveOccurred())
	s.wrote(true)
	s.blocks[id] = append(s.blocks[id], p)
}

func (s *subject) remove(*rapid.T) {
	id, p, force := s.eni(), s.block(), rapid.Bool().Draw(s.t, "force")
	err := s.ds.Remove(id, p, force)
	_, known := s.blocks[id]
	used := false
	for a := range s.holder {
		used = used || p.Contains(a)
	}
	switch {
	case s.failed(err):
	case !known:
		s.g.Expect(err).To(text(UnknownENIError))
	case !slices.Contains(s.blocks[id], p):
		s.g.Expect(err).To(text(UnknownIPError))
	case used && !force:
		s.g.Expect(err).To(text(IPInUseError))
	default:
		s.g.Expect(err).NotTo(HaveOccurred())
		s.wrote(true)
		s.drop(id, p)
	}
}

func (s *subject) detach(*rapid.T) {
	id, force := s.eni(), rapid.Bool().Draw(s.t, "force")
	err := s.ds.RemoveENIFromDataStore(id, force)
	blocks, known := s.blocks[id]
	used := false
	for a := range s.holder {
		used = used || slices.ContainsFunc(blocks, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	switch {
	case s.failed(err):
	case !known:
		s.g.Expect(err).To(text(UnknownENIError))
	case used && !force:
		s.g.Expect(err).To(text(ENIInUseError))
	default:
		s.g.Expect(err).NotTo(HaveOccurred())
		s.wrote(len(blocks) > 0)
		for _, p := range blocks {
			s.drop(id, p)
		}
		delete(s.blocks, id)
	}
}

// restart opens another store. Some interfaces are attached before the checkpoint
// is read, some afterwards, some never.
func (s *subject) restart(*rapid.T) {
	if _, _, err := s.ds.UnassignPodIPv4Address(key(99)); s.failed(err) {
		return // faults_test.go covers the leftovers of a failed write
	}
	s.wrote(false)
	maps.Copy(s.cooling, s.stale)
	clear(s.stale)
	before := s.blocks
	s.open()
	s.blocks = map[string][]netip.Prefix{}
	add := func(when string) {
		for _, id := range slices.Sorted(maps.Keys(before)) {
			if s.blocks[id] != nil || rapid.Bool().Draw(s.t, id+" is not seen "+when) {
				continue
			}
			s.g.Expect(s.ds.AddENI(id, int(id[4]-'0'), false, false)).To(Succeed())
			s.blocks[id] = []netip.Prefix{}
			for _, p := range before[id] {
				if p.IsSingleIP() {
					s.g.Expect(s.ds.AddAddress(id, p.Addr())).To(Succeed())
				} else {
					s.g.Expect(s.ds.AddPrefix(id, p)).To(Succeed())
				}
				s.blocks[id] = append(s.blocks[id], p)
			}
		}
	}
	add("before")
	s.g.Expect(s.ds.ReadBackingStore()).To(Succeed())
	add("afterwards")
}

func (s *subject) check(*rapid.T) {
	got := map[netip.Addr]int{}
	for ip, k := range held(s.ds) {
		var n int
		_, err := fmt.Sscanf(k.ContainerID, "container-%d", &n)
		s.g.Expect(err).NotTo(HaveOccurred())
		got[netip.MustParseAddr(ip)] = n
	}
	s.g.Expect(got).To(Equal(s.holder))
	var want Stats
	for _, a := range s.addresses() {
		want.Total++
		since, cools := s.cooling[a]
		if _, taken := s.holder[a]; taken {
			want.Assigned++
		} else if cools && s.clock.uptime()-since < modelCoolDown {
			want.Cooling++
		}
	}
	is := s.ds.GetIPStats(ledger.IPv4)
	s.g.Expect([]int{is.Total, is.Assigned, is.Cooling}).To(Equal([]int{want.Total, want.Assigned, want.Cooling}))
	s.g.Expect(s.ds.Check()).To(BeEmpty())
}

func TestAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSubject(t)
		t.Repeat(map[string]func(*rapid.T){
			"":         s.check,
			"assign":   s.assign,
			"assign2":  s.assign,
			"unassign": s.unassign,
			"add":      s.add,
			"remove":   s.remove,
			"detach":   s.detach,
			"restart":  s.restart,
			"pass": func(t *rapid.T) {
				s.clock.pass(time.Duration(rapid.IntRange(1, 70).Draw(t, "seconds")) * time.Second)
			},
			"break": func(t *rapid.T) { *s.plan = rapid.Bool().Draw(t, "writes fail") },
		})
	})
}
