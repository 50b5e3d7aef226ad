// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
)

// An excess limits the releases of the family that is counted; those of the other one are
// the provider's choice, also a /80.
func TestExcessLimitsTheCountedFamily(t *testing.T) {
	g := NewWithT(t)
	r := releases{gone: map[string]time.Time{}, want: map[string]handshake.Want{}}
	chosen := []string{"fd00::1:0:0:0/80", "fd00::5", "10.0.0.5", "10.0.0.4", "10.0.0.3"}
	r.choose(chosen, 2, nil)
	all := handshake.Want{Excess: true}
	g.Expect(r.want).To(Equal(map[string]handshake.Want{"fd00::1:0:0:0/80": all, "fd00::5": all, "10.0.0.5": all, "10.0.0.4": all}))

	clear(r.want)
	entries := map[string]handshake.State{}
	for _, key := range chosen {
		entries[key] = handshake.Marked
	}
	r.abort(entries, 1)
	back := handshake.Want{Needed: true}
	g.Expect(r.want).To(Equal(map[string]handshake.Want{"fd00::1:0:0:0/80": back, "fd00::5": back, "10.0.0.3": back}))
}

// What counts is the smallest excess of the delay, not the fate of single addresses.
func TestExcessOfADelay(t *testing.T) {
	g, at := NewWithT(t), func(second int) time.Time { return time.Unix(int64(second), 0) }
	var e excess
	g.Expect(e.since(at(0))).To(BeZero())
	g.Expect(e.note(5, at(1))).To(BeTrue())
	g.Expect(e.note(8, at(2))).To(BeTrue())
	g.Expect(e.note(8, at(3))).To(BeFalse())
	g.Expect([]int{e.since(at(0)), e.since(at(1)), e.since(at(2))}).To(Equal([]int{0, 5, 8}))
	g.Expect(e.note(3, at(4))).To(BeFalse(), "less than before")
	g.Expect(e.note(7, at(5))).To(BeTrue())
	g.Expect([]int{e.since(at(0)), e.since(at(1)), e.since(at(4)), e.since(at(5))}).To(Equal([]int{0, 3, 3, 7}))
	g.Expect(e.note(0, at(6))).To(BeFalse())
	g.Expect(e.note(7, at(7))).To(BeTrue())
	g.Expect([]int{e.since(at(6)), e.since(at(7))}).To(Equal([]int{0, 7}))
}
