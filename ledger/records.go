// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Keys of records. A lease is keyed by its pool and address, so that no journal can
// hold one address twice.
const (
	metaKey      = "M"
	blockPrefix  = "B"
	leasePrefix  = "L"
	policyPrefix = "P"
)

func leaseKey(pool string, a netip.Addr) string {
	var room [64]byte
	b := append(append(append(room[:0], leasePrefix...), pool...), 0)
	if a.Is4() {
		four := a.As4()
		return string(append(b, four[:]...))
	}
	six := a.As16()
	return string(append(b, six[:]...))
}

func blockKey(pool string, p netip.Prefix) string {
	return blockPrefix + pool + "\x00" + p.String()
}

func policyKey(pool string) string { return policyPrefix + pool }

// leaseOp returns the op that writes the record of x.
func (l *Ledger) leaseOp(x *lease) (kvdb.Op, error) {
	m := l.newRecord(x.addr)
	m.BlockBits, m.Pool = uint32(x.block.prefix.Bits()), x.block.pool.Name
	m.State, m.Purpose = uint32(x.state), uint32(x.purpose)
	m.Network, m.ContainerId, m.IfName = x.key.Network, x.key.ContainerID, x.key.IfName
	m.PodNamespace, m.PodName, m.PodUid = x.pod.Namespace, x.pod.Name, x.pod.UID
	m.Generation, m.Since, m.Reason, m.Netns = x.gen, x.since, x.reason, x.netns
	m.Namespace, m.Wired, m.Mac = x.netnsID.Message(), x.wired, x.mac
	if x.accepted > 0 && x.state != Cooling {
		m.AcceptedUptime, m.BootId = int64(x.accepted), l.opt.BootID
	}
	if x.state == Cooling {
		m.CoolingSinceUptime, m.BootId = int64(x.cooled), l.opt.BootID
	}
	if t := x.timer; t != nil {
		m.ExpiryToken, m.BootId = t.Token, l.opt.BootID
		m.ExpiresAfter, m.PendingSinceUptime = int64(t.After), int64(t.at-t.After)
	}
	if e, ok := x.block.pool.excluded[x.addr]; ok {
		e.write(m)
	}
	return record(leaseKey(x.block.pool.Name, x.addr), m)
}

// newRecord returns the empty record of an address. It is used again by the next call.
func (l *Ledger) newRecord(a netip.Addr) *kv.Lease {
	b := l.record.Address[:0]
	l.record.Reset()
	if a.Is4() {
		four := a.As4()
		b = append(b, four[:]...)
	} else {
		six := a.As16()
		b = append(b, six[:]...)
	}
	l.record.Address = b
	return &l.record
}

// record returns the op that writes m.
func record(key string, m *kv.Lease) (kvdb.Op, error) {
	v, err := proto.Marshal(m)
	if err != nil {
		return kvdb.Op{}, fmt.Errorf("lease record %q: %w", key, err)
	}
	return kvdb.Put(key, v), nil
}

// blockOp returns the op that writes the record of b.
func blockOp(b *block) (kvdb.Op, error) {
	v, err := proto.Marshal(&kv.Block{Pool: b.pool.Name, Prefix: b.prefix.String(), Draining: b.state == Draining})
	if err != nil {
		return kvdb.Op{}, fmt.Errorf("record of block %s: %w", b.prefix, err)
	}
	return kvdb.Put(blockKey(b.pool.Name, b.prefix), v), nil
}

// hasPolicyRecord reports whether the journal has the policy of p. A pool without blocks
// has no lease that could follow the policy.
func (p *pool) hasPolicyRecord() bool { return p.CoolDown != DefaultCoolDown && p.hasBlocks() }

// policyOp returns the op that writes the policy of p.
func policyOp(p *pool) (kvdb.Op, error) {
	if !p.hasPolicyRecord() {
		return kvdb.Delete(policyKey(p.Name)), nil
	}
	v, err := proto.Marshal(&kv.Policy{Pool: p.Name, CoolDown: int64(p.CoolDown)})
	if err != nil {
		return kvdb.Op{}, fmt.Errorf("policy of pool %q: %w", p.Name, err)
	}
	return kvdb.Put(policyKey(p.Name), v), nil
}

// currentOp returns the op that writes the record of key as memory has it; false if a
// stage is about to change the record.
func (l *Ledger) currentOp(key string) (kvdb.Op, bool, error) {
	name, rest, _ := strings.Cut(key[1:], "\x00")
	p := l.pools[name]
	if p == nil {
		return kvdb.Delete(key), true, nil
	}
	if strings.HasPrefix(key, policyPrefix) {
		op, err := policyOp(p)
		return op, !p.staged, err
	}
	if strings.HasPrefix(key, blockPrefix) {
		prefix, err := netip.ParsePrefix(rest)
		if err != nil {
			return kvdb.Op{}, false, fmt.Errorf("block record %q: %w", key, err)
		}
		fp := &p.fam[FamilyOf(prefix.Addr())]
		if i, ok := fp.search(prefix); ok {
			op, err := blockOp(fp.blocks[i])
			return op, !fp.blocks[i].staged, err
		}
		return kvdb.Delete(key), true, nil
	}
	a, _ := netip.AddrFromSlice([]byte(rest))
	x := p.fam[FamilyOf(a)].lease(a)
	if e := p.excluded[a]; e.stage != nil {
		return kvdb.Op{}, false, nil
	}
	if x == nil {
		op, err := l.emptyOp(p, a)
		return op, true, err
	}
	if x.owner != nil {
		return kvdb.Op{}, false, nil
	}
	op, err := l.leaseOp(x)
	return op, true, err
}

// load builds memory from the journal.
func (l *Ledger) load(ctx context.Context) error {
	names := map[string]string{} // a few strings that every lease repeats
	intern := func(s string) string {
		if t, ok := names[s]; ok {
			return t
		}
		names[s] = s
		return s
	}
	var meta kv.Meta
	var leases []*kv.Lease
	err := l.journal.Load(ctx, func(r kvdb.KeyValue) error {
		switch {
		case r.Key == metaKey:
			return proto.Unmarshal(r.Value, &meta)
		case strings.HasPrefix(r.Key, blockPrefix):
			return l.loadBlock(r.Value)
		case strings.HasPrefix(r.Key, policyPrefix):
			return l.loadPolicy(r.Value)
		case strings.HasPrefix(r.Key, leasePrefix):
			m := &kv.Lease{}
			if err := proto.Unmarshal(r.Value, m); err != nil {
				return fmt.Errorf("lease record %q: %w", r.Key, err)
			}
			m.Pool, m.Network = intern(m.Pool), intern(m.Network)
			m.IfName, m.PodNamespace = intern(m.IfName), intern(m.PodNamespace)
			leases = append(leases, m)
			return nil
		}
		return fmt.Errorf("record %q: this version does not know its kind", r.Key)
	})
	if err != nil {
		return err
	}
	var cooling []*lease
	for _, m := range leases {
		x, err := l.loadLease(m)
		if err != nil {
			return err
		}
		if x == nil {
			continue
		}
		if x.state == Cooling {
			x.cooled = l.resumeCooling(m)
			cooling = append(cooling, x)
		}
	}
	slices.SortStableFunc(cooling, func(x, y *lease) int { return cmp.Compare(x.cooled, y.cooled) })
	for _, x := range cooling {
		x.block.family().insertCooling(x)
	}
	l.setCursors()
	return l.enterBoot(ctx, &meta)
}

// resumeCooling returns the uptime at which the cooling of a record began. A record
// of another boot begins now, since no other clock can be trusted.
func (l *Ledger) resumeCooling(m *kv.Lease) time.Duration {
	now := l.opt.Uptime()
	if m.BootId != "" && m.BootId == l.opt.BootID {
		return min(now, time.Duration(m.CoolingSinceUptime))
	}
	return now
}

// resumeTimer returns the timer of a record. A record of another boot begins now.
func (l *Ledger) resumeTimer(x *lease, m *kv.Lease) *timer {
	t := l.newTimer(x, Expiry{m.ExpiryToken, time.Duration(m.ExpiresAfter)})
	if m.BootId != "" && m.BootId == l.opt.BootID {
		t.at = min(t.at, time.Duration(m.PendingSinceUptime)+t.After)
	}
	return t
}

// resumeAccepted returns the uptime at which the request of a record was accepted. A
// request of another boot was accepted before all of this one.
func (l *Ledger) resumeAccepted(m *kv.Lease) time.Duration {
	if m.BootId != "" && m.BootId == l.opt.BootID {
		return min(l.opt.Uptime(), time.Duration(m.AcceptedUptime))
	}
	return 0
}

func (l *Ledger) loadBlock(value []byte) error {
	var m kv.Block
	if err := proto.Unmarshal(value, &m); err != nil {
		return fmt.Errorf("block record: %w", err)
	}
	prefix, err := netip.ParsePrefix(m.Prefix)
	if err != nil {
		return fmt.Errorf("block record of pool %q: %w", m.Pool, err)
	}
	p := l.pool(m.Pool)
	b := p.newBlock(prefix)
	if m.Draining {
		b.state = Draining
	}
	b.family().add(b)
	return nil
}

func (l *Ledger) loadPolicy(value []byte) error {
	var m kv.Policy
	if err := proto.Unmarshal(value, &m); err != nil {
		return fmt.Errorf("policy record: %w", err)
	}
	if m.CoolDown < 0 {
		return fmt.Errorf("policy record of pool %q: cool-down %s is negative", m.Pool, time.Duration(m.CoolDown))
	}
	l.pool(m.Pool).CoolDown = time.Duration(m.CoolDown)
	return nil
}

func (l *Ledger) loadLease(m *kv.Lease) (*lease, error) {
	a, ok := netip.AddrFromSlice(m.Address)
	if !ok || m.State > uint32(Quarantined) || m.Purpose > uint32(ForInfra) || int(m.BlockBits) > a.BitLen() {
		return nil, fmt.Errorf(
			"lease record of pool %q: address %x in state %d is not valid in this version",
			m.Pool,
			m.Address,
			m.State,
		)
	}
	p := l.pool(m.Pool)
	if m.Excluded {
		p.addExclusion(a, exclusion{owner: m.ExcludedBy, reason: m.ExcludedReason})
	}
	if m.NoLease {
		return nil, nil
	}
	fp := &p.fam[FamilyOf(a)]
	prefix := netip.PrefixFrom(a, int(m.BlockBits)).Masked()
	b := fp.blockOfLength(a, int(m.BlockBits))
	if b == nil { // its block was not recorded: keep it as one that allocates nothing
		b = p.newBlock(prefix)
		b.state = Draining
		fp.add(b)
		l.dirty[blockKey(p.Name, prefix)] = struct{}{}
	}
	x := &lease{
		addr:     a,
		block:    b,
		state:    State(m.State),
		purpose:  Purpose(m.Purpose),
		gen:      m.Generation,
		since:    m.Since,
		reason:   m.Reason,
		netns:    m.Netns,
		netnsID:  m.Namespace.ID(),
		wired:    m.Wired,
		mac:      m.Mac,
		accepted: l.resumeAccepted(m),
		key:      Key{m.Network, m.ContainerId, m.IfName},
		pod:      Pod{m.PodNamespace, m.PodName, m.PodUid},
	}
	switch {
	case x.state == Pending && m.ExpiryToken == ReclaimToken:
		x.state, x.reason = Held, ""
		l.dirty[leaseKey(p.Name, a)] = struct{}{}
	case x.state == Pending && m.ExpiryToken != "":
		x.timer = l.resumeTimer(x, m)
	}
	l.gen = max(l.gen, m.Generation)
	fp.occupyAll(a)
	l.link(x, l.hash(&x.key))
	return x, nil
}

// setCursors sets the cursors of each pool to the addresses of the newest leases.
func (l *Ledger) setCursors() {
	for _, p := range l.pools {
		for i := range p.fam {
			newest := map[*netip.Addr]uint64{}
			for x := range p.fam[i].leases.all() {
				cursor := p.fam[i].cursor(x.purpose)
				if x.purpose != ForInfra && x.gen >= newest[cursor] {
					newest[cursor], *cursor = x.gen, x.addr
				}
			}
		}
	}
}

// enterBoot ends the leases of sandboxes if the journal is of another boot.
func (l *Ledger) enterBoot(ctx context.Context, meta *kv.Meta) error {
	if l.opt.BootID == "" || l.opt.BootID == meta.BootId {
		return nil
	}
	v, err := proto.Marshal(&kv.Meta{BootId: l.opt.BootID})
	if err != nil {
		return err
	}
	ops := []kvdb.Op{kvdb.Put(metaKey, v)}
	if meta.BootId != "" {
		more, err := l.endSandboxes()
		if err != nil {
			return err
		}
		ops = append(ops, more...)
	}
	slices.SortFunc(ops, func(x, y kvdb.Op) int { return cmp.Compare(x.Key, y.Key) })
	ops = l.appendEntries(ops, nil)
	err = l.journal.Commit(ctx, ops)
	l.history.ended(err)
	if err != nil {
		return fmt.Errorf("enter boot %s: %w", l.opt.BootID, err)
	}
	return nil
}

func (l *Ledger) endSandboxes() ([]kvdb.Op, error) {
	var ops []kvdb.Op
	var errs []error
	now := l.opt.Uptime()
	for _, x := range l.sorted(func(x *lease) bool {
		return (x.state == Held || x.state == Pending) && x.purpose == ForPod && !x.key.OfAPI()
	}) {
		l.noteLease(Released, x, "the machine was booted")
		l.unlink(x)
		x.state, x.cooled, x.since, x.timer = Cooling, now, l.opt.Now().UnixNano(), nil
		x.block.family().insertCooling(x)
		op, err := l.leaseOp(x)
		ops, errs = append(ops, op), append(errs, err)
		l.rebooted++
	}
	return ops, errors.Join(errs...)
}

// APINetwork is the network of the keys under which the IPAM plugin's Go API claims
// for a pod without a known sandbox: Key{APINetwork, "pod:NAMESPACE/NAME", "eth0"}.
// A CNI container ID has no colon, so no sandbox has such a key.
const APINetwork = "contiv"

// OfAPI reports whether k is a key of the Go API, and not of a sandbox.
func (k Key) OfAPI() bool { return k.Network == APINetwork && strings.HasPrefix(k.ContainerID, "pod:") }

// sameLease compares two lease records. The begin of cooling and of an expiry may
// differ: a restart in another boot begins both again without a write. So may the time
// of the newest answered request, which a repeated ADD changes without a write.
func sameLease(x, y []byte) bool {
	var a, b kv.Lease
	if proto.Unmarshal(x, &a) != nil || proto.Unmarshal(y, &b) != nil {
		return false
	}
	a.CoolingSinceUptime, a.PendingSinceUptime, a.BootId, a.Since = b.CoolingSinceUptime, b.PendingSinceUptime, b.BootId, b.Since
	a.AcceptedUptime = b.AcceptedUptime
	return proto.Equal(&a, &b)
}
