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
	g, now := NewWithT(t), time.Unix(1000, 0)
	r := releases{since: map[string]time.Time{}, gone: map[string]time.Time{}, want: map[string]handshake.Want{}}
	chosen := []string{"fd00::1:0:0:0/80", "fd00::5", "10.0.0.5", "10.0.0.4", "10.0.0.3"}
	for range 2 { // a candidate first, and marked when it is ripe
		r.choose(chosen, 2, nil, now)
		for key, since := range r.since {
			if since.IsZero() {
				r.since[key] = now
			}
		}
	}
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
