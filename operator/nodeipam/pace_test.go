// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestWants is upstream's table of when a node is to be written after the cloud
// was asked.
func TestWants(t *testing.T) {
	for _, x := range []struct {
		what  string
		cidrs []string
		cloud []string
		want  bool
		fails bool
	}{
		{"unreadable", []string{"10.10.0.0"}, []string{"10.10.0.0/24"}, true, false},
		{"two of one family", nil, []string{"10.10.0.0/24", "10.20.0.0/24"}, false, true},
		{"three", nil, []string{"10.10.0.0/24", "fd00::/64", "10.20.0.0/24"}, false, true},
		{"equal", []string{"10.10.0.0/24"}, []string{"10.10.0.0/24"}, false, false},
		{"empty", nil, []string{"10.10.0.0/24"}, true, false},
		{"different", []string{"10.10.0.0/24"}, []string{"10.20.0.0/24"}, true, false},
		{"equal, two", []string{"10.10.0.0/24", "2001:db8::/64"}, []string{"10.10.0.0/24", "2001:db8::/64"}, false, false},
		{"equal, two, another order", []string{"2001:db8::/64", "10.10.0.0/24"}, []string{"10.10.0.0/24", "2001:db8::/64"}, false, false},
		{"equal, other text", []string{"10.10.0.0/24", "2001:db8:0::/64"}, []string{"10.10.0.0/24", "2001:db8::/64"}, false, false},
		{"IPv6 differs", []string{"10.10.0.0/24", "2001:db8::/64"}, []string{"10.10.0.0/24", "2001:db9::/64"}, true, false},
		{"IPv4 differs", []string{"10.10.0.0/24", "2001:db8::/64"}, []string{"10.20.0.0/24", "2001:db8::/64"}, true, false},
		{"IPv6 is missing", []string{"10.10.0.0/24"}, []string{"10.10.0.0/24", "2001:db8::/64"}, true, false},
	} {
		g := NewWithT(t)
		node := newServer().put("a", with(x.cidrs...))
		got, err := wants(node, prefixes(x.cloud...))
		g.Expect(err != nil).To(Equal(x.fails), x.what)
		g.Expect(got).To(Equal(x.want), x.what)
	}
}

func TestCloudDelays(t *testing.T) {
	g := NewWithT(t)
	for before, base := range map[int]time.Duration{
		0: 250 * time.Millisecond, 1: 500 * time.Millisecond, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second, 5: 5 * time.Second,
		50: 5 * time.Second, 5000: 5 * time.Second,
	} {
		g.Expect(cloudDelay(before, 0)).To(Equal(base/2), "after %d", before)
		g.Expect(cloudDelay(before, .5)).To(Equal(base))
		g.Expect(cloudDelay(before, .999999)).To(And(BeNumerically(">", base), BeNumerically("<", 3*base/2)))
	}
}

func TestDefaultSyncIntervals(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Settings{}.withDefaults().Sync).To(Equal(Config{Resync: 30 * time.Second, MaxBackoff: 10 * time.Second, InitialRetry: 250 * time.Millisecond}))
	own := Config{Resync: 1, MaxBackoff: 2, InitialRetry: 3}
	g.Expect(Settings{Sync: own}.withDefaults().Sync).To(Equal(own))
}

func TestCloudTriesAreBounded(t *testing.T) {
	g := NewWithT(t)
	p := &cloudPolicy{random: func() float64 { return .5 }, rest: time.Hour}
	for range 3 {
		for range quickTries {
			wait, again := p.after(errors.New("no"))
			g.Expect(again).To(BeTrue())
			g.Expect(wait).To(BeNumerically("<=", 5*time.Second))
		}
		for range 3 {
			wait, again := p.after(errors.New("no"))
			g.Expect(again).To(BeTrue(), "it is not forgotten")
			g.Expect(wait).To(Equal(time.Hour))
		}
		_, again := p.after(nil)
		g.Expect(again).To(BeFalse())
	}
}
