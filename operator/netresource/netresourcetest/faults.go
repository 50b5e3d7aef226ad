// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresourcetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/operator/netresource"
)

// deadline returns a context for one call.
func (s *stage) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.p.Deadline)
}

// releaseAll releases all that a node has, as the manager does: those of one interface with
// one call.
func (n *node) releaseAll(ctx context.Context) error {
	all, count, err := n.read()
	if err != nil || len(all) == 0 {
		return err
	}
	chosen, err := n.spare(count)
	if err != nil || len(chosen) == 0 {
		return errors.Join(
			err,
			fmt.Errorf("call Spare of all %d addresses: nothing is chosen of a node that uses nothing", count),
		)
	}
	byInterface := map[string][]string{}
	for _, key := range chosen {
		byInterface[all[key].Resource] = append(byInterface[all[key].Resource], key)
	}
	for _, on := range slices.Sorted(maps.Keys(byInterface)) {
		keys := byInterface[on]
		if err := n.release(ctx, all[keys[0]], keys...); err != nil {
			return err
		}
	}
	return nil
}

// emptied releases all that a node has until the cloud shows that, and agrees.
func (s *stage) emptied(n *node) error {
	err := s.eventually("release all addresses", func() error {
		ctx, cancel := s.deadline()
		defer cancel()
		if err := n.releaseAll(ctx); err != nil {
			return err
		}
		all, _, err := n.read()
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("the node has %v", slices.Sorted(maps.Keys(all)))
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.agrees(n)
}

// fill takes addresses until the interface that is there is full, if interfaces have a
// limit, and then one unit more.
func (n *node) fill(ctx context.Context) error {
	p := n.s.p
	err := n.take(ctx, max(p.Limits.Units, 2)*p.Unit)
	return errors.Join(err, n.take(ctx, p.Unit))
}

func filled(s *stage) error {
	if s.p.Limits.Units == 0 || s.p.Limits.Interfaces == 0 || s.world.Truth == nil {
		return fmt.Errorf("the machines have no limits: %w", errors.ErrUnsupported)
	}
	n, err := s.node("a")
	if err != nil {
		return err
	}
	for range 4 * s.p.Limits.Interfaces * s.p.Limits.Units {
		ctx, cancel := s.deadline()
		err = n.take(ctx, s.p.Limits.Units*s.p.Unit)
		cancel()
		if err != nil {
			break
		}
		if _, _, err := s.truth(); err != nil {
			return err
		}
	}
	if !errors.Is(err, errFull) {
		return fmt.Errorf("take addresses until the machine is full: %w", err)
	}
	state, err := n.state()
	if err != nil {
		return err
	}
	_, count, err := n.read()
	if err == nil && state.Most > 0 && count != state.Most {
		err = fmt.Errorf("a full machine has %d addresses: want %d, as State says", count, state.Most)
	}
	if err != nil {
		return err
	}
	return s.agrees(n)
}

func fullSubnet(s *stage) error {
	var all []*node
	for _, name := range []string{"a", "b"} {
		n, err := s.node(name)
		if err != nil {
			return err
		}
		all = append(all, n)
	}
	failed := make([]error, len(all))
	for range 64 {
		for i, n := range all {
			ctx, cancel := s.deadline()
			failed[i] = n.take(ctx, 4*s.p.Unit)
			cancel()
		}
		if failed[0] != nil && failed[1] != nil {
			break
		}
	}
	if failed[0] == nil || failed[1] == nil {
		return fmt.Errorf(
			"take addresses of a subnet with 16 units until it is full: the last calls returned %v: want errors, or nothing",
			failed,
		)
	}
	taken := 0
	for _, n := range all {
		if err := s.agrees(n); err != nil {
			return err
		}
		_, count, err := n.read()
		if err != nil {
			return err
		}
		taken += count
	}
	if taken < 4*s.p.Unit || taken > 16*s.p.Unit {
		return fmt.Errorf(
			"a subnet with 16 units is full with %d addresses: want %d to %d",
			taken,
			4*s.p.Unit,
			16*s.p.Unit,
		)
	}
	return nil
}

func dualStack(s *stage) error {
	n, err := s.node("a")
	if err == nil {
		err = n.take(context.Background(), 4*s.p.Unit)
	}
	if err != nil {
		return err
	}
	all, _, err := n.read()
	if err != nil {
		return err
	}
	var units [2]int
	for key := range all {
		p, err := handshake.ParseKey(key)
		if err != nil {
			return fmt.Errorf("call State: key %q %w", key, err)
		}
		units[familyOf(p)]++
	}
	if units[0] == 0 || units[1] == 0 || s.p.Unit == 1 && units[0] != units[1] {
		return fmt.Errorf(
			"a node of two families has %d units of IPv4 and %d of IPv6: want as many of both",
			units[0],
			units[1],
		)
	}
	if err := s.agrees(n); err != nil {
		return err
	}
	if err := s.emptied(n); err != nil {
		return err
	}
	return s.clean()
}

func hanging(s *stage) error {
	if err := s.faults(); err != nil {
		return err
	}
	n, err := s.node("a")
	if err == nil {
		err = n.take(context.Background(), 2*s.p.Unit)
	}
	if err != nil {
		return err
	}
	for _, fault := range []faultproxy.Outcome{faultproxy.Hang, faultproxy.HangDone} {
		for name, call := range map[string]func(context.Context){
			"Read":     func(ctx context.Context) { _ = s.readAll(ctx) },
			"Allocate": func(ctx context.Context) { _ = n.take(ctx, s.p.Unit) },
			"Release":  func(ctx context.Context) { _ = n.releaseAll(ctx) },
		} {
			s.world.Plan(func(faultproxy.Request) faultproxy.Outcome { return fault })
			err := within(s.p.Patience+s.p.Deadline, func() error {
				ctx, cancel := context.WithTimeout(context.Background(), min(s.p.Deadline, time.Second))
				defer cancel()
				call(ctx)
				return nil
			})
			s.world.Plan(nil)
			if err != nil {
				return fmt.Errorf("%s, with a deadline and a cloud that does not answer: %w", name, err)
			}
		}
	}
	if err := s.agrees(n); err != nil {
		return err
	}
	if err := n.take(context.Background(), s.p.Unit); err != nil {
		return fmt.Errorf("take addresses after the cloud answers again: %w", err)
	}
	if err := s.emptied(n); err != nil {
		return err
	}
	return s.clean()
}

// at returns a plan with one outcome for request number n and another one for those after
// it, and a function that reports whether there was such a request.
func at(n int, fault, after faultproxy.Outcome) (plan Plan, reached func() bool) {
	var requests atomic.Int64
	return func(faultproxy.Request) faultproxy.Outcome {
		switch i := requests.Add(1); {
		case i == int64(n):
			return fault
		case i > int64(n):
			return after
		}
		return faultproxy.Pass
	}, func() bool { return requests.Load() >= int64(n) }
}

// faultedRequests is the number of requests of a call at which faults are tried, in a round.
const faultedRequests = 4

// next returns the number of the request of a call to try a fault at, after request n, and
// whether there is one.
func (s *stage) next(n int) (int, bool) {
	step := 1
	if s.p.Slow {
		step = faultedRequests
	}
	return n + step, n+step <= faultedRequests*s.p.Rounds
}

// failing returns a check that gives each request of a node's life one outcome.
func failing(fault faultproxy.Outcome) func(*stage) error {
	return func(s *stage) error {
		if err := s.faults(); err != nil {
			return err
		}
		n, err := s.node("a")
		if err != nil {
			return err
		}
		for i, more := s.next(0); more; i, more = s.next(i) {
			plan, reached := at(i, fault, faultproxy.Pass)
			s.world.Plan(plan)
			ctx, cancel := s.deadline()
			_ = n.fill(ctx)
			cancel()
			ctx, cancel = s.deadline()
			_ = n.releaseAll(ctx)
			cancel()
			s.world.Plan(nil)
			last := !reached()
			if err := s.recovers(n); err != nil {
				return fmt.Errorf("with outcome %q of request %d: %w", fault, i, err)
			}
			if last {
				break
			}
		}
		return s.clean()
	}
}

// recovers returns an error unless a node agrees with the cloud after faults, gets
// addresses, and releases all.
func (s *stage) recovers(n *node) error {
	if err := s.agrees(n); err != nil {
		return err
	}
	err := s.eventually("take addresses", func() error {
		ctx, cancel := s.deadline()
		defer cancel()
		return n.take(ctx, s.p.Unit)
	})
	if err != nil {
		return err
	}
	return s.emptied(n)
}

func stale(s *stage) error {
	if s.p.Lag <= 0 || s.world.Truth == nil {
		return fmt.Errorf("readings of the provider are not old: %w", errors.ErrUnsupported)
	}
	n, err := s.node("a")
	if err == nil {
		err = n.take(context.Background(), 2*s.p.Unit)
	}
	if err != nil {
		return err
	}
	before, _, err := n.read()
	if err != nil {
		return err
	}
	taken := slices.Sorted(maps.Keys(before))
	if err := s.stays(n, fmt.Sprintf("%v were taken", taken), taken); err != nil {
		return err
	}
	// Fill the interface, so that the next call creates one.
	var last netresource.Allocation
	for range 2 * max(s.p.Limits.Units, 1) {
		got, err := s.impl.Allocate(context.Background(), n.set, max(s.p.Limits.Units, 1)*s.p.Unit)
		if err != nil {
			return fmt.Errorf("call Allocate: %w", err)
		}
		if err := s.readAll(context.Background()); err != nil {
			return err
		}
		if last.Interface == "" || got.Interface == last.Interface {
			last = got
			continue
		}
		next, err := s.impl.Allocate(context.Background(), n.set, s.p.Unit)
		if err == nil && next.Interfaces >= got.Interfaces {
			err = fmt.Errorf(
				"%d interfaces can be created after one was, and %d before: want one less",
				next.Interfaces,
				got.Interfaces,
			)
		}
		if err != nil {
			return fmt.Errorf("call Allocate, after an old reading: %w", err)
		}
		break
	}
	if err := n.releaseAll(context.Background()); err != nil {
		return err
	}
	if err := s.stays(n, "all were released", nil); err != nil {
		return err
	}
	return s.emptied(n)
}

// stays reads the provider again and again for as long as readings may be old: the node must
// have just these addresses.
func (s *stage) stays(n *node, what string, keys []string) error {
	const readings = 6
	for range readings {
		if err := s.readAll(context.Background()); err != nil {
			return err
		}
		now, _, err := n.read()
		if err != nil {
			return err
		}
		if has := slices.Sorted(maps.Keys(now)); !slices.Equal(has, keys) {
			return fmt.Errorf("after %s, and an old reading: the node has %v: want %v", what, has, keys)
		}
		time.Sleep(s.p.Lag / readings)
	}
	return nil
}

func throttled(s *stage) error {
	if err := s.faults(); err != nil {
		return err
	}
	n, err := s.node("a")
	if err == nil {
		err = n.take(context.Background(), 2*s.p.Unit)
	}
	if err == nil {
		err = s.agrees(n)
	}
	if err != nil {
		return err
	}
	before, _, err := n.read()
	if err != nil {
		return err
	}
	for name, call := range map[string]func(context.Context) error{
		"Allocate": func(ctx context.Context) error { return n.take(ctx, s.p.Unit) },
		"Release":  func(ctx context.Context) error { return n.releaseAll(ctx) },
	} {
		s.world.Plan(func(faultproxy.Request) faultproxy.Outcome { return faultproxy.Throttle })
		ctx, cancel := s.deadline()
		err := call(ctx)
		cancel()
		s.world.Plan(nil)
		if !errors.Is(err, netresource.ErrThrottled) {
			return fmt.Errorf("%s, throttled: the error is %w: want one that wraps netresource.ErrThrottled", name, err)
		}
	}
	if err := s.agrees(n); err != nil {
		return err
	}
	after, _, err := n.read()
	if err != nil {
		return err
	}
	want, has := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))
	if !slices.Equal(want, has) {
		return fmt.Errorf("throttled calls: the node has %v: want %v as before", has, want)
	}
	return s.recovers(n)
}

// takenOver ends a process at each request of a call: that request is done, its answer is
// lost, and no further one gets through. Another process goes on.
func takenOver(s *stage) error {
	if err := s.faults(); err != nil {
		return err
	}
	for i, more := s.next(0); more; i, more = s.next(i) {
		n, err := s.node("a")
		if err != nil {
			return err
		}
		plan, reached := at(i, faultproxy.Lose, faultproxy.Fail)
		s.world.Plan(plan)
		ctx, cancel := s.deadline()
		_ = n.fill(ctx)
		cancel()
		s.world.Plan(nil)
		last := !reached()
		if err := s.start(); err != nil {
			return err
		}
		n, err = s.node("a")
		if err != nil {
			return err
		}
		if err := s.recovers(n); err != nil {
			return fmt.Errorf("after a process that ended with request %d: %w", i, err)
		}
		if last {
			break
		}
	}
	return s.clean()
}
