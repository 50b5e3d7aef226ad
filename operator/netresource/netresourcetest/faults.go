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
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/operator/netresource"
)

// deadline returns a context for one call.
func (s *stage) deadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), s.p.Deadline)
}

// releaseAll releases all that a node has, as the manager does: those of one interface with
// one call.
func (s *stage) releaseAll(ctx context.Context, ops netresource.NetResourceOperations) error {
	all, count, err := s.read(ops)
	if err != nil || len(all) == 0 {
		return err
	}
	a := ops.PrepareIPRelease(count, s.log)
	if a == nil || len(a.IPsToRelease) == 0 {
		return fmt.Errorf("PrepareIPRelease of all %d addresses: nothing is chosen of a node that uses nothing", count)
	}
	byInterface := map[string][]string{}
	for _, key := range a.IPsToRelease {
		byInterface[all[key].Resource] = append(byInterface[all[key].Resource], key)
	}
	for _, on := range slices.Sorted(maps.Keys(byInterface)) {
		keys := byInterface[on]
		give := &netresource.ReleaseAction{
			InterfaceID: on, PoolID: v1alpha1.PoolID(all[keys[0]].SubnetID), IPsToRelease: keys,
		}
		if err := ops.ReleaseIPs(ctx, give); err != nil {
			return fmt.Errorf("ReleaseIPs of %v: %w", keys, err)
		}
	}
	return nil
}

// emptied releases all that a node has until the cloud shows that, and agrees.
func (s *stage) emptied(name string, ops netresource.NetResourceOperations) error {
	err := s.eventually("release all addresses", func() error {
		ctx, cancel := s.deadline()
		defer cancel()
		if err := s.releaseAll(ctx, ops); err != nil {
			return err
		}
		all, _, err := s.read(ops)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("the node has %v", slices.Sorted(maps.Keys(all)))
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.agrees(name, ops)
}

// fill takes addresses until the interface that is there is full, if interfaces have a
// limit, and then one unit more.
func (s *stage) fill(ctx context.Context, ops netresource.NetResourceOperations) error {
	err := s.take(ctx, ops, max(s.p.Limits.Units, 2)*s.p.Unit)
	return errors.Join(err, s.take(ctx, ops, s.p.Unit))
}

func filled(s *stage) error {
	if s.p.Limits.Units == 0 || s.p.Limits.Interfaces == 0 || s.world.Truth == nil {
		return fmt.Errorf("the machines have no limits: %w", errors.ErrUnsupported)
	}
	ops, _, err := s.node("a")
	if err != nil {
		return err
	}
	var last *netresource.AllocationAction
	for range 4 * s.p.Limits.Interfaces * s.p.Limits.Units {
		a, err := ops.PrepareIPAllocation(s.log)
		if err != nil {
			return fmt.Errorf("PrepareIPAllocation: %w", err)
		}
		if max(a.AvailableForAllocationIPv4, a.AvailableForAllocationIPv6) == 0 && a.AvailableInterfaces == 0 {
			break
		}
		last = a
		ctx, cancel := s.deadline()
		err = s.take(ctx, ops, s.p.Limits.Units*s.p.Unit)
		cancel()
		if err != nil {
			return fmt.Errorf("take addresses until the machine is full: %w", err)
		}
		if _, _, err := s.truth(); err != nil {
			return err
		}
	}
	if last == nil {
		return errors.New("PrepareIPAllocation: no address is available for an empty machine")
	}
	_, n, err := s.read(ops)
	if most := ops.GetMaximumAllocatableIPv4(); err == nil && most > 0 && n != most {
		err = fmt.Errorf("a full machine has %d addresses: want %d, which is GetMaximumAllocatableIPv4", n, most)
	}
	if err != nil {
		return err
	}
	// a manager with an old plan
	ctx, cancel := s.deadline()
	defer cancel()
	last.MaxIPsToAllocate = s.p.Unit
	for name, call := range map[string]func(*netresource.AllocationAction) error{
		"AllocateIPs": func(a *netresource.AllocationAction) error { return ops.AllocateIPs(ctx, a) },
		"CreateInterface": func(a *netresource.AllocationAction) error {
			_, _, err := ops.CreateInterface(ctx, a, s.log)
			return err
		},
	} {
		old := *last
		err := call(&old)
		if _, after, e := s.read(ops); e != nil || after != n {
			return fmt.Errorf(
				"%s for a full machine (%w): it has %d addresses, and had %d (%w)",
				name,
				err,
				after,
				n,
				e,
			)
		}
	}
	return s.agrees("a", ops)
}

func fullSubnet(s *stage) error {
	all := map[string]netresource.NetResourceOperations{}
	for _, name := range []string{"a", "b"} {
		ops, _, err := s.node(name)
		if err != nil {
			return err
		}
		all[name] = ops
	}
	failed := map[string]error{}
	for range 64 {
		for _, name := range []string{"a", "b"} {
			ctx, cancel := s.deadline()
			failed[name] = s.take(ctx, all[name], 4*s.p.Unit)
			cancel()
		}
		if failed["a"] != nil && failed["b"] != nil {
			break
		}
	}
	if failed["a"] == nil || failed["b"] == nil {
		return fmt.Errorf(
			"take addresses of a subnet with 16 units until it is full: the last calls returned %v: want errors",
			failed,
		)
	}
	taken := 0
	for name, ops := range all {
		if err := s.agrees(name, ops); err != nil {
			return err
		}
		_, n, err := s.read(ops)
		if err != nil {
			return err
		}
		taken += n
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
	ops, _, err := s.node("a")
	if err == nil {
		err = s.take(context.Background(), ops, 4*s.p.Unit)
	}
	if err != nil {
		return err
	}
	all, _, err := s.read(ops)
	if err != nil {
		return err
	}
	var units [2]int
	for key := range all {
		p, err := handshake.ParseKey(key)
		if err != nil {
			return fmt.Errorf("ResyncInterfacesAndIPs: key %q %w", key, err)
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
	if err := s.agrees("a", ops); err != nil {
		return err
	}
	if err := s.emptied("a", ops); err != nil {
		return err
	}
	return s.clean()
}

func hanging(s *stage) error {
	if err := s.faults(); err != nil {
		return err
	}
	ops, _, err := s.node("a")
	if err == nil {
		err = s.take(context.Background(), ops, 2*s.p.Unit)
	}
	if err != nil {
		return err
	}
	for _, fault := range []faultproxy.Outcome{faultproxy.Hang, faultproxy.HangDone} {
		for name, call := range map[string]func(context.Context){
			"Resync":                         func(ctx context.Context) { s.impl.Resync(ctx) },
			"AllocateIPs or CreateInterface": func(ctx context.Context) { _ = s.take(ctx, ops, s.p.Unit) },
			"ReleaseIPs":                     func(ctx context.Context) { _ = s.releaseAll(ctx, ops) },
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
	if err := s.agrees("a", ops); err != nil {
		return err
	}
	if err := s.take(context.Background(), ops, s.p.Unit); err != nil {
		return fmt.Errorf("take addresses after the cloud answers again: %w", err)
	}
	if err := s.emptied("a", ops); err != nil {
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
		ops, _, err := s.node("a")
		if err != nil {
			return err
		}
		for n, more := s.next(0); more; n, more = s.next(n) {
			plan, reached := at(n, fault, faultproxy.Pass)
			s.world.Plan(plan)
			ctx, cancel := s.deadline()
			_ = s.fill(ctx, ops)
			cancel()
			ctx, cancel = s.deadline()
			_ = s.releaseAll(ctx, ops)
			cancel()
			s.world.Plan(nil)
			last := !reached()
			if err := s.recovers("a", ops); err != nil {
				return fmt.Errorf("with outcome %q of request %d: %w", fault, n, err)
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
func (s *stage) recovers(name string, ops netresource.NetResourceOperations) error {
	if err := s.agrees(name, ops); err != nil {
		return err
	}
	err := s.eventually("take addresses", func() error {
		ctx, cancel := s.deadline()
		defer cancel()
		return s.take(ctx, ops, s.p.Unit)
	})
	if err != nil {
		return err
	}
	return s.emptied(name, ops)
}

func stale(s *stage) error {
	if s.p.Lag <= 0 || s.world.Truth == nil {
		return fmt.Errorf("readings of the provider are not old: %w", errors.ErrUnsupported)
	}
	ops, _, err := s.node("a")
	if err == nil {
		err = s.take(context.Background(), ops, 2*s.p.Unit)
	}
	if err != nil {
		return err
	}
	before, _, err := s.read(ops)
	if err != nil {
		return err
	}
	taken := slices.Sorted(maps.Keys(before))
	if err := s.stays(ops, fmt.Sprintf("%v were taken", taken), taken); err != nil {
		return err
	}
	// Fill the interface, so that the next call creates one.
	for range 2 * max(s.p.Limits.Units, 1) {
		a, err := ops.PrepareIPAllocation(s.log)
		if err != nil {
			return fmt.Errorf("PrepareIPAllocation: %w", err)
		}
		if err := s.take(context.Background(), ops, max(s.p.Limits.Units, 1)*s.p.Unit); err != nil {
			return err
		}
		if max(a.AvailableForAllocationIPv4, a.AvailableForAllocationIPv6) > 0 {
			continue
		}
		s.impl.Resync(context.Background())
		next, err := ops.PrepareIPAllocation(s.log)
		if err == nil && next.AvailableInterfaces >= a.AvailableInterfaces {
			err = fmt.Errorf("%d interfaces can be created after one was, and %d before: want one less",
				next.AvailableInterfaces, a.AvailableInterfaces)
		}
		if err != nil {
			return fmt.Errorf("PrepareIPAllocation, after an old reading: %w", err)
		}
		break
	}
	if err := s.releaseAll(context.Background(), ops); err != nil {
		return err
	}
	if err := s.stays(ops, "all were released", nil); err != nil {
		return err
	}
	return s.emptied("a", ops)
}

// stays reads the provider again and again for as long as readings may be old: the node must
// have just these addresses.
func (s *stage) stays(ops netresource.NetResourceOperations, what string, keys []string) error {
	const readings = 6
	for range readings {
		if s.impl.Resync(context.Background()).IsZero() {
			return errors.New("read the provider with Resync: it returned the zero time")
		}
		now, _, err := s.read(ops)
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
	ops, _, err := s.node("a")
	if err == nil {
		err = s.take(context.Background(), ops, 2*s.p.Unit)
	}
	if err == nil {
		err = s.agrees("a", ops)
	}
	if err != nil {
		return err
	}
	before, _, err := s.read(ops)
	if err != nil {
		return err
	}
	for name, call := range map[string]func(context.Context) error{
		"AllocateIPs or CreateInterface": func(ctx context.Context) error { return s.take(ctx, ops, s.p.Unit) },
		"ReleaseIPs":                     func(ctx context.Context) error { return s.releaseAll(ctx, ops) },
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
	if err := s.agrees("a", ops); err != nil {
		return err
	}
	after, _, err := s.read(ops)
	if err != nil {
		return err
	}
	want, has := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after))
	if !slices.Equal(want, has) {
		return fmt.Errorf("throttled calls: the node has %v: want %v as before", has, want)
	}
	return s.recovers("a", ops)
}

// takenOver ends a process at each request of a call: that request is done, its answer is
// lost, and no further one gets through. Another process goes on.
func takenOver(s *stage) error {
	if err := s.faults(); err != nil {
		return err
	}
	for n, more := s.next(0); more; n, more = s.next(n) {
		ops, _, err := s.node("a")
		if err != nil {
			return err
		}
		plan, reached := at(n, faultproxy.Lose, faultproxy.Fail)
		s.world.Plan(plan)
		ctx, cancel := s.deadline()
		_ = s.fill(ctx, ops)
		cancel()
		s.world.Plan(nil)
		last := !reached()
		if err := s.start(); err != nil {
			return err
		}
		ops, _, err = s.node("a")
		if err != nil {
			return err
		}
		if err := s.recovers("a", ops); err != nil {
			return fmt.Errorf("after a process that ended with request %d: %w", n, err)
		}
		if last {
			break
		}
	}
	return s.clean()
}
