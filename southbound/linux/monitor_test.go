// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// watchers runs Watch of all descriptors of a node.
type watchers struct {
	Gomega
	ns      *netlab.Namespace
	monitor *monitor
	stop    func() error

	mu     sync.Mutex
	told   map[string]int // by kind: how often a value, or all, may have changed
	slowly int            // the kinds that also compare slowly, and follow by now
}

func newWatchers(t *testing.T) *watchers {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	w := &watchers{Gomega: NewWithT(t), ns: newNamespace(t), told: map[string]int{}}
	opt := Options{Namespace: w.ns.Path(), After: func(time.Duration) <-chan time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.slowly++
		return nil
	}}.withDefaults()
	w.monitor = opt.monitor
	all, err := Descriptors(opt)
	w.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, len(all))
	for _, d := range all {
		go func() {
			ended <- d.(southbound.Watcher).Watch(ctx, func(string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.told[d.Name()]++
			})
		}()
	}
	w.stop = sync.OnceValue(func() (err error) {
		cancel()
		for range all {
			err = errors.Join(err, <-ended)
		}
		return errors.Join(err, closeAll(all))
	})
	t.Cleanup(func() { w.Expect(w.stop()).To(Succeed()) })
	// All compare at the start, but for wires.
	w.Eventually(w.notices, "10s").Should(Equal(map[string]int{
		"linux node": 1, "linux network link": 1, "linux tunnel": 1, "linux egress": 1, "linux route": 1,
		"linux network": 1, "linux uplink": 1, "linux uplink address": 1,
	}))
	w.Eventually(func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.slowly }, "10s").Should(Equal(3))
	return w
}

// notices returns how often each kind was told since the start.
func (w *watchers) notices() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.told)
}

// TestTwoSocketsWatchANode counts the sockets of the namespace that receive announcements.
func TestTwoSocketsWatchANode(t *testing.T) {
	w := newWatchers(t)
	subscribed := func() (protocols []string) {
		w.Expect(w.ns.Do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/netlink")
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); f[0] != "sk" && f[3] != "00000000" {
					protocols = append(protocols, f[1])
				}
			}
			return err
		})).To(Succeed())
		return protocols
	}
	w.Expect(subscribed()).To(ConsistOf("0", "12"), "NETLINK_ROUTE and NETLINK_NETFILTER")
	w.Expect(w.stop()).To(Succeed())
	w.Expect(subscribed()).To(BeEmpty())
}

// TestEachKindComparesAllAfterAnOverrun has a follower that does not read, so that the queue fills.
func TestEachKindComparesAllAfterAnOverrun(t *testing.T) {
	w := newWatchers(t)
	idle, err := w.monitor.Follow(unix.NETLINK_ROUTE)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(rtnl.Within(w.ns.Path(), func() error {
		s, err := rtnl.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		var all []*rtnl.Request
		for i := range 30000 { // of no value
			to := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			all = append(all, object{kind: rejectObject, prefix: whole(to), table: 1007}.add(linkID{}))
		}
		return s.Run(all)
	})).To(Succeed())
	idle.Close()
	w.Eventually(w.notices, "10s").Should(Equal(map[string]int{
		"linux node": 2, "linux network link": 2, "linux tunnel": 2, "linux egress": 1, "linux route": 2,
		"linux network": 2, "linux uplink": 2, "linux uplink address": 2, "linux wire": 1,
	}))
}
