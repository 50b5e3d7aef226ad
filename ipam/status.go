// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// ErrRestoring is the error of a Review before RestoreFinished.
var ErrRestoring = errors.New("the addresses of running pods are not restored yet")

// RestoreFinished marks the addresses of running pods as restored: from now on
// the state is reported, and addresses and CIDRs can be released.
func (m *IPAM) RestoreFinished() {
	for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
		if x, ok := m.replaced(f); ok {
			x.RestoreFinished()
		}
		m.finished(f)
	}
}

func (m *IPAM) finished(f ledger.Family) {
	m.restored[f].Store(true)
	if m.broken == nil {
		m.poke()
	}
}

func (m *IPAM) isRestored() bool {
	return m.restored[ledger.IPv4].Load() && m.restored[ledger.IPv6].Load()
}

// Unconfirmed returns the addresses of an earlier process, with their owners, that
// this process was not asked for yet. They stay until they are released.
func (m *IPAM) Unconfirmed() map[string]string {
	all := map[string]string{}
	if m.broken != nil {
		return all
	}
	for _, l := range m.leases() {
		if m.ours(&l) && m.replays.Open(l.Generation) {
			all[l.Addr.String()] = l.Key.ContainerID
		}
	}
	return all
}

// Review returns the state to report. It drains the CIDRs that the state reports as
// released.
func (m *IPAM) Review(ctx context.Context) (st Status, err error) {
	if m.broken != nil {
		return st, m.broken
	}
	if ctx.Err() != nil {
		return st, fmt.Errorf("review the state: %w", context.Cause(ctx))
	}
	m.change.Lock()
	defer m.change.Unlock()
	set := m.resources.set
	if set == nil {
		set = &NetResourceSet{Name: m.deps.Name}
	}
	report, err := m.report(ctx, set.message())
	switch {
	case err != nil:
		return Status{}, err
	case m.mode == ClusterPool:
		st.PodCIDRs = report.CidrStates
	case m.mode == Given:
		st.Used, st.ReleaseIPs = map[string]Use{}, report.Releases
		for a, x := range report.Used {
			st.Used[a] = Use{x.Owner, x.Resource}
		}
	}
	return st, nil
}

// report returns set with the state to report. IPAM.change is held.
func (m *IPAM) report(ctx context.Context, set *kv.NetResourceSet) (*kv.NetResourceSet, error) {
	switch {
	case !m.isRestored():
		return nil, ErrRestoring
	case m.mode == Given:
		return m.reportPoolIPs(ctx, set)
	case m.mode != ClusterPool:
		return set, nil
	}
	states, err := m.reviewCIDRs(ctx)
	if err != nil {
		return nil, err
	}
	next := proto.Clone(set).(*kv.NetResourceSet)
	next.CidrStates = states
	return next, nil
}

// Sync reports each change of the state with write, until ctx ends: at most once
// in every, and again after a failure. First it has the owner create the
// NetResourceSet. The caller starts Sync in a goroutine and waits for it.
func (m *IPAM) Sync(ctx context.Context, every time.Duration, write func(context.Context, Status) error) error {
	if m.broken != nil || m.mode != ClusterPool && m.mode != Given {
		return m.broken
	}
	if m.deps.Owner != nil {
		m.deps.Owner.UpdateNetResourceSetResource()
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	var last *Status
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		pause.Reset(every)
		st, err := m.Review(ctx)
		if errors.Is(err, ErrRestoring) {
			continue // RestoreFinished wakes it
		}
		if err == nil && (last == nil || !reflect.DeepEqual(*last, st)) {
			if err = write(ctx, st); err == nil {
				last = &st
			}
		}
		if err != nil && ctx.Err() == nil {
			m.log.Warn("the state of the addresses could not be reported: retrying", "error", err)
			m.poke()
		}
	}
}

// holder returns the owner of a lease, for people.
func (m *IPAM) holder(l *ledger.Lease) string {
	switch {
	case l.State == ledger.Quarantined:
		return fmt.Sprintf("%s (quarantined: %s)", l.Pod, l.Reason)
	case m.ours(l), l.Key.Network == m.deps.Door+cni:
		return l.Key.ContainerID
	}
	return nodeset.HolderOf(l)
}

// familyDump holds one family for Dump.
type familyDump struct {
	held   map[string]string
	status string
}

// Dump returns the owner of each address by family, and the state in one line. A
// blacklisted address of a block has the suffix "(blacklisted)".
func (m *IPAM) Dump() (allocv4 map[string]string, allocv6 map[string]string, status string) {
	if m.broken != nil {
		return nil, nil, "Not running: " + m.broken.Error()
	}
	four, six := m.dump()
	var parts []string
	for f, x := range []struct {
		name string
		a    Allocator
		d    *familyDump
	}{{"IPv4: ", m.IPv4Allocator, &four}, {"IPv6: ", m.IPv6Allocator, &six}} {
		if x.a == nil {
			x.d.held = nil
			continue
		}
		if a, ok := m.replaced(ledger.Family(f)); ok {
			*x.d = m.dumpReplaced(a)
		}
		parts = append(parts, x.name+x.d.status)
	}
	if len(parts) == 0 {
		return nil, nil, "Not running"
	}
	return four.held, six.held, strings.Join(parts, ", ")
}

func (m *IPAM) dump() (four, six familyDump) {
	if m.mode == Delegated {
		return familyDump{nil, Delegated.String()}, familyDump{nil, Delegated.String()}
	}
	four.held, six.held = map[string]string{}, map[string]string{}
	of := func(v4 bool) map[string]string {
		if v4 {
			return four.held
		}
		return six.held
	}
	for _, l := range m.leases() {
		of(l.Addr.Is4())[l.Addr.String()] = m.holder(&l)
	}
	n4, n6 := len(four.held), len(six.held)
	stats := m.stats()
	for _, e := range m.deps.Ledger.Exclusions() {
		shown := of(e.Addr.Is4())
		if _, held := shown[e.Addr.String()]; held || e.Pool != m.pool.Name {
			continue
		}
		for _, s := range stats {
			if s.Block.Contains(e.Addr) {
				shown[e.Addr.String()] = e.Owner + " (blacklisted)"
			}
		}
	}
	four.status, six.status = m.oneLine(ledger.IPv4, n4, stats), m.oneLine(ledger.IPv6, n6, stats)
	return four, six
}

// stats returns the counts of the pool's blocks.
func (m *IPAM) stats() (all []ledger.BlockStat) {
	for _, s := range m.deps.Ledger.Stats() {
		if s.Pool == m.pool.Name {
			all = append(all, s)
		}
	}
	return all
}

// oneLine returns the numbers of held and of allocatable addresses, with the blocks.
func (m *IPAM) oneLine(f ledger.Family, held int, stats []ledger.BlockStat) string {
	total, from := uint64(0), ""
	for _, s := range stats {
		if s.Family != f || s.State != ledger.Active {
			continue
		}
		total = add(total, s.Size-min(s.Size, s.Reserved))
		if m.mode != Given {
			from += " " + s.Block.String()
		}
	}
	line := fmt.Sprintf("%d/%d allocated", held, total)
	if from != "" {
		line += " from" + from
	}
	return line
}

// DebugStatus returns the state of the IPAM as text for people.
func (m *IPAM) DebugStatus() string {
	if m == nil {
		return "<nil>"
	}
	var b strings.Builder
	_, _, status := m.Dump()
	fmt.Fprintf(&b, "mode: %s (%s)\nstatus: %s\n", m.mode, m.named, status)
	if m.broken != nil {
		return b.String()
	}
	fmt.Fprintf(
		&b,
		"pool: %s, cool-down %s, network %s\nrestored: %t\nexpired: %d\n",
		m.pool.Name,
		m.pool.CoolDown,
		m.deps.Door,
		m.isRestored(),
		m.deps.Ledger.Expired(),
	)
	for _, s := range m.stats() {
		fmt.Fprintf(
			&b,
			"block %s: %s, %d held, %d cooling, %d quarantined, %d free\n",
			s.Block,
			s.State,
			s.Held+s.Infra,
			s.Cooling,
			s.Quarantined,
			s.Free,
		)
	}
	for _, e := range m.deps.Ledger.Exclusions() {
		if e.Pool == m.pool.Name {
			fmt.Fprintf(&b, "blacklisted %s: %q %s\n", e.Addr, e.Owner, e.Reason)
		}
	}
	for _, l := range m.leases() {
		switch {
		case l.Reclaiming(): // a round of the witnesses ends it, not its Expiry
			fmt.Fprintf(&b, "pending %s: %q, whose owner seems to be gone\n", l.Addr, m.holder(&l))
		case l.State == ledger.Pending:
			fmt.Fprintf(
				&b,
				"pending %s: %q, for %s, until uptime %s\n",
				l.Addr,
				m.holder(&l),
				l.Expiry.After,
				l.Expires,
			)
		}
	}
	unconfirmed := m.Unconfirmed()
	for _, a := range slices.Sorted(maps.Keys(unconfirmed)) {
		fmt.Fprintf(&b, "unconfirmed %s: %q\n", a, unconfirmed[a])
	}
	return b.String()
}
