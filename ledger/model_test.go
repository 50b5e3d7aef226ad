// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// promise holds the addresses of each key that the test's clients were told.
type promise map[ledger.Key]string // addresses that a key holds

// TestRandomFaultsKeepEveryAnswer runs random claims, releases, block changes, commits
// that fail (with and without having been applied), restarts, reboots and clocks that
// jump. It compares the ledger with what its clients were told.
func TestRandomFaultsKeepEveryAnswer(t *testing.T) {
	first, count := effort.Seeds(t, 300)
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			g := NewWithT(t)
			if err := wander(g, rand.New(rand.NewPCG(seed, 7)), 300, int(seed%2)*64, nil); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		})
	}
}

func TestModelFindsAStolenLease(t *testing.T) {
	g := NewWithT(t)
	found := 0
	for seed := range uint64(20) { // a lease is stolen behind the clients' backs
		steal := func(b *bench, told promise) {
			for k := range told {
				_, err := b.Release(context.Background(), ledger.Selector{Key: k})
				if err == nil {
					return
				}
			}
		}
		if wander(g, rand.New(rand.NewPCG(seed, 7)), 300, 64, steal) != nil {
			found++
		}
	}
	g.Expect(found).To(BeNumerically(">=", 18), "at times the victim is released before it is looked at")
}

// wander keeps at most so many entries of the history, 0: the default.
func wander(g Gomega, rnd *rand.Rand, steps, entries int, sabotage func(*bench, promise)) error {
	ctx := context.Background()
	fault := journal.None
	b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return fault }})
	b.entries = entries
	b.reopen()
	pool := ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true}
	blocks := [][]string{{"10.1.5.0/28", "fd00::/124"}, {"10.1.5.0/28", "10.1.6.0/29", "fd00::/124"}, {"10.1.5.0/29", "fd00:1::/124"}, {"10.1.4.0/27", "fd00::/124"}}
	now := blocks[0]
	b.pool(pool, now...)
	told, unsure := promise{}, map[ledger.Key]bool{}
	for step := range steps {
		fault = journal.None
		if rnd.IntN(8) == 0 {
			fault = []journal.Fault{journal.Fail, journal.Tear}[rnd.IntN(2)]
		}
		n := rnd.IntN(20)
		k := key(n)
		var what string
		switch op := rnd.IntN(20); {
		case op < 8:
			got, err := b.claim(n)
			what = fmt.Sprint("claim ", n, " -> ", got, err)
			if had, ok := told[k]; ok && got != had && !errors.Is(err, journal.ErrInjected) {
				return fmt.Errorf("step %d: %s, it was told %s", step, what, had)
			}
			if err == nil {
				told[k] = got
				delete(unsure, k)
			} else if errors.Is(err, journal.ErrInjected) && told[k] == "" {
				unsure[k] = true
			}
		case op < 14:
			_, err := b.Release(ctx, ledger.Selector{Key: k})
			what = fmt.Sprint("release ", n, err)
			delete(told, k)
			unsure[k] = err != nil
		case op < 15:
			if next := blocks[rnd.IntN(len(blocks))]; b.tryPool(pool, next...) == nil {
				now = next
			}
			what = fmt.Sprint("blocks ", now)
		case op < 17:
			b.uptime += time.Duration(rnd.IntN(90)) * time.Second
			b.wall = b.wall.Add(time.Duration(rnd.IntN(1000)-500) * time.Hour)
			what = "clocks"
		case op < 19:
			fault = journal.None
			b.reopen()
			b.pool(pool, now...)
			what = "restart"
		default:
			if rnd.IntN(4) > 0 {
				continue
			}
			fault = journal.None
			b.boot, b.uptime = fmt.Sprint("boot-", step), time.Second
			b.reopen()
			b.pool(pool, now...)
			clear(told)
			clear(unsure)
			what = "reboot"
		}
		if sabotage != nil && step == steps/2 {
			sabotage(b, told)
		}
		if err := kept(b, told, unsure, now); err != nil {
			return fmt.Errorf("step %d: after %s: %w", step, what, err)
		}
	}
	return nil
}

// kept checks the ledger against what was told.
func kept(b *bench, told promise, unsure map[ledger.Key]bool, now []string) error {
	findings, err := b.Check(context.Background())
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if len(findings) > 0 {
		return fmt.Errorf("check: %v", findings)
	}
	if err := historyAgrees(b); err != nil {
		return err
	}
	held, seen := promise{}, map[netip.Addr]ledger.Key{}
	for _, l := range b.Leases() {
		if other, ok := seen[l.Addr]; ok {
			return fmt.Errorf("%s is leased twice: %s and %s", l.Addr, other, l.Key)
		}
		seen[l.Addr] = l.Key
		if l.State != ledger.Held {
			continue
		}
		if held[l.Key] != "" {
			held[l.Key] += " "
		}
		held[l.Key] += l.Addr.String()
		if last := netip.PrefixFrom(l.Addr, l.Block.Bits()).Masked(); l.Addr == last.Addr() {
			return fmt.Errorf("%s is the first address of its block", l.Addr)
		}
	}
	for k, a := range told {
		if held[k] != a {
			return fmt.Errorf("%s was told %s, it holds %q", k, a, held[k])
		}
	}
	for k, a := range held {
		if told[k] == "" && !unsure[k] {
			return fmt.Errorf("%s holds %s, no client was told", k, a)
		}
	}
	for _, s := range b.Stats() {
		if s.State == ledger.Active && !slices.Contains(now, s.Block.String()) {
			return fmt.Errorf("block %s allocates, it should drain", s.Block)
		}
	}
	return nil
}
