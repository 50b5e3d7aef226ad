// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// TestPoolsOfOneSpaceAgreeWithANaiveSearch takes random steps with several pools of
// one address space whose blocks overlap. The steps are claims of every kind, stages
// that stay open during other calls, exclusions, quarantines, expiries, commits that
// fail, restarts and reboots. After each step it compares what the ledger returns
// with what its clients were told, and with a search of all addresses.
func TestPoolsOfOneSpaceAgreeWithANaiveSearch(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			newCrowd(NewWithT(t), seed).run(250)
		})
	}
}

// site is an address of a pool.
type site struct {
	pool string
	addr netip.Addr
}

// crowd takes random steps on pools.
type crowd struct {
	*bench
	rnd    *rand.Rand
	fault  journal.Fault
	names  []string
	pools  map[string]ledger.Pool
	blocks map[string][]netip.Prefix // the committed grants
	told   map[ledger.Key][]site     // leases that a client was told and has not released
	unsure map[ledger.Key]bool       // keys of calls that failed since the last good commit
	rested map[site]time.Duration    // uptime from which the address may be claimed again
	stage  *ledger.Stage             // open, nil: none
	failed bool                      // a commit failed since the last good one
	last   int
	what   string
}

func newCrowd(g Gomega, seed uint64) *crowd {
	c := &crowd{
		rnd: rand.New(rand.NewPCG(seed, 23)), names: []string{"a", "b", "c"}, pools: map[string]ledger.Pool{},
		blocks: map[string][]netip.Prefix{}, told: map[ledger.Key][]site{}, unsure: map[ledger.Key]bool{}, rested: map[site]time.Duration{},
	}
	c.bench = open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return c.fault }})
	for i, name := range c.names {
		c.pools[name] = ledger.Pool{
			Name: name, Order: ledger.Order(c.rnd.IntN(2)), ReserveEdges: c.rnd.IntN(2) == 0,
			CoolDown: time.Duration(c.rnd.IntN(2)) * time.Minute, Space: []string{"s", "s", ""}[i],
		}
		c.blocks[name] = randomBlocks(c.rnd)
	}
	c.grantAll()
	return c
}

func (c *crowd) grantAll() {
	st := c.Begin()
	for _, name := range c.names {
		c.g.Expect(st.SetPool(c.pools[name])).To(Succeed())
		c.g.Expect(st.SetBlocks(name, c.blocks[name])).To(Succeed())
	}
	c.g.Expect(st.Commit(context.Background())).To(Succeed())
}

func (c *crowd) run(steps int) {
	for range steps {
		c.fault = journal.None
		if c.rnd.IntN(6) == 0 {
			c.fault = []journal.Fault{journal.Fail, journal.Tear}[c.rnd.IntN(2)]
		}
		before := c.dump()
		err := c.step()
		c.what += fmt.Sprint(" fault=", c.fault, " -> ", err)
		injected := errors.Is(err, journal.ErrInjected)
		c.failed = c.failed || injected
		if injected && c.stage == nil {
			c.g.Expect(c.dump()).To(Equal(before), "a failed call changes nothing: %s", c.what)
		}
		c.fault = journal.None
		c.compare()
	}
}

func (c *crowd) step() error {
	name := c.names[c.rnd.IntN(len(c.names))]
	switch op := c.rnd.IntN(32); {
	case op < 11:
		return c.claimAny(name)
	case op < 17:
		return c.releaseAny()
	case op < 19:
		return c.changeBlocks(name)
	case op < 21:
		return c.exclude(name)
	case op < 23:
		c.uptime += time.Duration(c.rnd.IntN(40)) * time.Second
		c.what = "time"
	case op < 24:
		return c.quarantine(name)
	case op < 25:
		return c.expiry()
	case op < 26:
		return c.changePolicy(name)
	case op < 29:
		return c.openStage(name)
	case op < 30:
		return c.move()
	case op < 31:
		c.restart()
	default:
		c.fault = journal.None
		c.what = "flush"
		err := c.Begin().Commit(context.Background())
		if err == nil && c.stage == nil {
			c.failed = false
			clear(c.unsure)
		}
		return err
	}
	return nil
}

func (c *crowd) addr() netip.Addr {
	a := ip("10.0.0.0")
	for range c.rnd.IntN(128) {
		a = a.Next()
	}
	return a
}

// twin returns pods of which two have each name, in two namespaces.
func twin(n int) ledger.Pod {
	return ledger.Pod{Namespace: []string{"a", "b"}[n%2], Name: fmt.Sprint("web-", n/2)}
}

func (c *crowd) request(name string) ledger.Request {
	c.last++
	req := ledger.Request{Pool: name, Key: key(c.last), Pod: twin(c.last), Families: []ledger.Family{ledger.IPv4}}
	if c.rnd.IntN(5) == 0 {
		req.Purpose = ledger.ForInfra
	}
	if c.rnd.IntN(6) == 0 {
		req.Expiry = ledger.Expiry{Token: "t", After: time.Duration(1+c.rnd.IntN(60)) * time.Second}
	}
	switch c.rnd.IntN(8) {
	case 0, 1:
		req.Listed = true
	case 2:
		req.Within = randomBlocks(c.rnd)
		req.Except = []netip.Prefix{netip.PrefixFrom(c.addr(), 30).Masked()}
	case 3:
		req.Rested = true
	case 4:
		req.Wanted, req.Families = []netip.Addr{c.addr()}, nil
	}
	return req
}

func (c *crowd) claimAny(name string) error {
	req := c.request(name)
	full := c.isFull(name)
	leases, _, err := c.Claim(context.Background(), req)
	c.what = fmt.Sprintf("claim %+v = %v", req, leases)
	if err != nil {
		c.unsure[req.Key] = errors.Is(err, journal.ErrInjected)
		return err
	}
	for _, l := range leases {
		at := site{name, l.Addr}
		if until, ok := c.rested[at]; ok && c.uptime < until && req.Wanted == nil && req.Within == nil {
			c.g.Expect(full && !req.Rested).To(BeTrue(), "%s cools until %s, it is %s: %s", l.Addr, until, c.uptime, c.what)
		}
		delete(c.rested, at)
		if req.Expiry == (ledger.Expiry{}) && req.Purpose != ledger.ForInfra { // a gateway ends with its block
			c.told[req.Key] = append(c.told[req.Key], at)
		}
	}
	return nil
}

// isFull reports whether no address of a pool is free.
func (c *crowd) isFull(name string) bool {
	return !slices.ContainsFunc(c.Stats(), func(s ledger.BlockStat) bool { return s.Pool == name && s.Free > 0 })
}

// pick returns a key that has leases.
func (c *crowd) pick() (ledger.Lease, bool) {
	all := slices.DeleteFunc(c.Leases(), func(l ledger.Lease) bool { return l.State == ledger.Cooling || l.State == ledger.Quarantined })
	if len(all) == 0 {
		return ledger.Lease{}, false
	}
	return all[c.rnd.IntN(len(all))], true
}

func (c *crowd) releaseAny() error {
	l, ok := c.pick()
	if !ok {
		return nil
	}
	sel := ledger.Selector{Key: l.Key}
	switch c.rnd.IntN(3) {
	case 0:
		sel = ledger.Selector{Addr: l.Addr, Pool: l.Pool, Purpose: l.Purpose}
	case 1:
		sel = ledger.Selector{Pod: l.Pod, Purpose: l.Purpose}
	}
	gone, err := c.Release(context.Background(), sel)
	c.what = fmt.Sprintf("release %s %s = %v", l.Addr, l.Key, gone)
	if err != nil {
		c.unsure[l.Key] = true
		return err
	}
	delete(c.told, l.Key)
	for _, x := range gone {
		c.cools(x)
	}
	return nil
}

// cools notes that an address may not be claimed for a while.
func (c *crowd) cools(x ledger.Lease) {
	if x.Purpose != ledger.ForInfra && c.pools[x.Pool].CoolDown > 0 {
		c.rested[site{x.Pool, x.Addr}] = c.uptime + c.pools[x.Pool].CoolDown
	}
}

func (c *crowd) changeBlocks(name string) error {
	if c.stage != nil {
		return nil
	}
	blocks := randomBlocks(c.rnd)
	c.what = fmt.Sprint("blocks of ", name, ": ", blocks)
	st := c.Begin()
	c.g.Expect(st.SetBlocks(name, blocks)).To(Succeed())
	if c.rnd.IntN(4) == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.g.Expect(st.Commit(ctx)).To(MatchError(context.Canceled))
		return nil
	}
	err := st.Commit(context.Background())
	if err == nil {
		c.blocks[name] = blocks
	}
	return err
}

func (c *crowd) exclude(name string) error {
	a := c.addr()
	c.what = fmt.Sprint("exclude or readmit ", a)
	if _, ok := c.Excluded(name, a); ok {
		return c.Readmit(context.Background(), name, a)
	}
	return c.Exclude(context.Background(), ledger.Exclusion{Pool: name, Addr: a, Owner: "model"})
}

func (c *crowd) quarantine(name string) error {
	a, user := c.addr(), twin(c.last)
	if cooling := slices.DeleteFunc(c.Leases(), func(l ledger.Lease) bool { return l.Pool != name || l.State != ledger.Cooling }); len(cooling) > 0 {
		l := cooling[c.rnd.IntN(len(cooling))]
		a, user = l.Addr, ledger.Pod{Namespace: []string{"a", "b"}[c.rnd.IntN(2)], Name: l.Pod.Name}
	}
	leases := slices.DeleteFunc(c.Leases(), func(l ledger.Lease) bool { return l.Pool != name || l.Addr != a })
	st := c.Begin()
	c.what = fmt.Sprint("quarantine ", a, " for ", user)
	fresh, err := st.Quarantine(name, a, user, "test")
	if err == nil { // a pod that is going may show for a while in what cools after it
		taken := len(leases) > 0 && (leases[0].State != ledger.Cooling ||
			leases[0].Pod.Namespace == user.Namespace && leases[0].Pod.Name == user.Name)
		c.g.Expect(fresh).To(Equal(!taken), "%s: %+v", c.what, leases)
	}
	if err != nil || !fresh || c.rnd.IntN(2) == 0 {
		st.Undo()
		return err
	}
	err = st.Commit(context.Background())
	if err == nil {
		delete(c.rested, site{name, a})
	}
	return err
}

func (c *crowd) expiry() error {
	l, ok := c.pick()
	if !ok {
		return nil
	}
	c.what = fmt.Sprint("expiry of ", l.Key)
	err := c.StopExpiry(context.Background(), ledger.Selector{Key: l.Key}, "t")
	if l.State == ledger.Held {
		err = c.StartExpiry(context.Background(), ledger.Selector{Key: l.Key}, ledger.Expiry{Token: "t", After: time.Second})
		delete(c.told, l.Key)
	}
	return err
}

func (c *crowd) changePolicy(name string) error {
	if c.stage != nil {
		return nil
	}
	next := c.pools[name]
	next.ReserveEdges = c.rnd.IntN(2) == 0
	next.Space = []string{"s", "t", ""}[c.rnd.IntN(3)]
	next.Exclude = []netip.Prefix{netip.PrefixFrom(c.addr(), 27+c.rnd.IntN(6))}
	st := c.Begin()
	c.g.Expect(st.SetPool(next)).To(Succeed())
	c.what = fmt.Sprintf("policy %+v", next)
	if c.rnd.IntN(3) == 0 {
		st.Undo()
		return nil
	}
	err := st.Commit(context.Background())
	if err == nil {
		c.pools[name] = next
	}
	return err
}

// openStage opens a stage that stays open during other steps, or ends it.
func (c *crowd) openStage(name string) error {
	if c.stage == nil {
		c.stage = c.Begin()
		c.what = "stage"
		if c.rnd.IntN(2) == 0 {
			c.g.Expect(c.stage.SetBlocks(name, randomBlocks(c.rnd))).To(Succeed())
		}
		for range c.rnd.IntN(3) {
			req := c.request(name)
			if c.rnd.IntN(3) == 0 { // no pool has IPv6: the claim fails after it has taken an address
				req.Families, req.Wanted = []ledger.Family{ledger.IPv4, ledger.IPv6}, nil
			}
			if _, _, err := c.stage.Claim(req); err != nil {
				c.g.Expect(c.stage.Claimed(req.Key)).To(BeEmpty(), "a failed claim leaves nothing: %s: %+v", c.what, req)
			}
		}
		if l, ok := c.pick(); ok && c.rnd.IntN(2) == 0 {
			_, _ = c.stage.Release(ledger.Selector{Key: l.Key})
		}
		_ = c.stage.Exclude(ledger.Exclusion{Pool: name, Addr: c.addr(), Owner: "stage"})
		return nil
	}
	st := c.stage
	c.stage = nil
	if c.rnd.IntN(2) == 0 {
		c.what = "undo"
		st.Undo()
		return nil
	}
	c.what = fmt.Sprint("commit ", st.Staged())
	before := maps.Clone(c.told)
	if st.Commit(context.Background()) == nil {
		c.follow(before)
	} else {
		c.failed = true
	}
	return nil // the stage was open during other changes
}

// follow takes over what a stage has changed.
func (c *crowd) follow(before map[ledger.Key][]site) {
	for k, sites := range before {
		if len(c.ByKey(k)) == 0 {
			delete(c.told, k)
			for _, at := range sites {
				c.cools(ledger.Lease{Pool: at.pool, Addr: at.addr})
			}
		}
	}
	for _, l := range c.Leases() {
		if l.State != ledger.Cooling {
			delete(c.rested, site{l.Pool, l.Addr})
		}
	}
	for _, name := range c.names {
		c.blocks[name] = nil
	}
	for _, s := range c.Stats() {
		if s.State == ledger.Active {
			c.blocks[s.Pool] = append(c.blocks[s.Pool], s.Block)
		}
	}
}

func (c *crowd) move() error {
	l, ok := c.pick()
	if !ok || c.stage != nil {
		return nil
	}
	to := c.names[c.rnd.IntN(len(c.names))]
	c.fault = journal.None
	c.what = fmt.Sprint("move ", l.Addr, " from ", l.Pool, " to ", to)
	if to == l.Pool || len(c.ByKey(l.Key)) > 1 {
		return nil
	}
	if err := c.Move(context.Background(), l.Pool, to, l.Addr); err != nil {
		return err
	}
	delete(c.rested, site{to, l.Addr})
	if c.told[l.Key] != nil {
		c.told[l.Key] = []site{{to, l.Addr}}
	}
	return nil
}

// restart opens the ledger again, at times in another boot.
func (c *crowd) restart() {
	c.fault = journal.None
	if c.stage != nil {
		c.stage.Undo()
		c.stage = nil
	}
	if c.rnd.IntN(2) == 0 {
		c.g.Expect(c.Begin().Commit(context.Background())).To(Succeed())
		c.failed = false
		clear(c.unsure)
	}
	before, reboots := c.dump(), c.rnd.IntN(4) == 0
	if reboots {
		c.boot, c.uptime = fmt.Sprint("boot-", c.last), time.Second
		clear(c.rested)
		for k := range c.told {
			if l := c.ByKey(k); len(l) > 0 && l[0].Purpose == ledger.ForPod {
				delete(c.told, k)
			}
		}
	}
	c.reopen()
	c.grantAll()
	if !c.failed && !reboots {
		c.g.Expect(c.dump()).To(Equal(before), "a restart changes nothing")
	}
	if c.failed || reboots {
		clear(c.rested)
	}
	for k := range c.unsure { // the outcome of these calls was unknown
		delete(c.told, k)
	}
	c.failed = false
	clear(c.unsure)
	c.what = "restart"
}

// dump returns leases, exclusions and blocks.
func (c *crowd) dump() string {
	var s strings.Builder
	for _, l := range c.Leases() {
		l.Generation, l.Since = 0, time.Time{}
		fmt.Fprintf(&s, "%+v\n", l)
	}
	fmt.Fprintf(&s, "%+v\n%+v", c.Exclusions(), c.Stats())
	return s.String()
}

func (c *crowd) compare() {
	findings, err := c.Check(context.Background())
	c.g.Expect(err).NotTo(HaveOccurred())
	c.g.Expect(findings).To(BeEmpty(), c.what)
	leases := map[site]ledger.Lease{}
	for _, l := range c.Leases() {
		_, twice := leases[site{l.Pool, l.Addr}]
		c.g.Expect(twice).To(BeFalse(), "%s twice: %s", l.Addr, c.what)
		leases[site{l.Pool, l.Addr}] = l
	}
	for k, sites := range c.told {
		for _, at := range sites {
			c.g.Expect(leases[at].Key).To(Equal(k), "%v: %s", at, c.what)
		}
	}
	stats := c.Stats()
	for at := range c.rested { // an address that leaves the node does not cool on
		if !slices.ContainsFunc(stats, func(s ledger.BlockStat) bool {
			return s.Pool == at.pool && s.State == ledger.Active && s.Block.Contains(at.addr)
		}) {
			delete(c.rested, at)
		}
	}
	if c.stage != nil {
		return
	}
	c.compareBlocks(stats, leases)
	c.compareSubnets(stats)
	c.compareParts(stats, leases)
}

// compareBlocks compares the counts of blocks with the leases.
func (c *crowd) compareBlocks(stats []ledger.BlockStat, leases map[site]ledger.Lease) {
	for _, s := range stats {
		want := s
		want.Held, want.Infra, want.Cooling, want.Quarantined = 0, 0, 0, 0
		for at, l := range leases {
			switch {
			case at.pool != s.Pool || l.Block != s.Block:
			case l.State == ledger.Cooling:
				want.Cooling++
			case l.Purpose == ledger.ForInfra:
				want.Infra++
			case l.State == ledger.Quarantined:
				want.Quarantined++
			default:
				want.Held++
			}
		}
		c.g.Expect(s).To(Equal(want), c.what)
		c.g.Expect(s.State == ledger.Draining && s.Held+s.Quarantined == 0).To(BeFalse(), "%v drains without a user: %s", s, c.what)
	}
}

// compareSubnets compares FreeSubnet and Overlapping with a search of all prefixes.
func (c *crowd) compareSubnets(stats []ledger.BlockStat) {
	bits, avoid := 25+c.rnd.IntN(8), []netip.Prefix{netip.PrefixFrom(c.addr(), 29)}
	overlaps := func(p netip.Prefix, s ledger.BlockStat) bool {
		return c.pools[s.Pool].Space == "s" && s.Block.Overlaps(p)
	}
	var want netip.Prefix
	for p := netip.PrefixFrom(ip("10.0.0.0"), bits); pfx("10.0.0.0/24").Contains(p.Addr()); p = following(p) {
		if !avoid[0].Overlaps(p) && !slices.ContainsFunc(stats, func(s ledger.BlockStat) bool { return overlaps(p, s) }) {
			want = p
			break
		}
	}
	got, ok := c.FreeSubnet("s", pfx("10.0.0.0/24"), bits, avoid)
	c.g.Expect(got).To(Equal(want), c.what)
	c.g.Expect(ok).To(Equal(want.IsValid()))
	p := netip.PrefixFrom(c.addr(), bits).Masked()
	var lowest netip.Prefix
	for _, s := range stats {
		if s.Pool != "a" && overlaps(p, s) && (!lowest.IsValid() || isBefore(s.Block, lowest)) {
			lowest = s.Block
		}
	}
	x, ok := c.Overlapping("s", p, "a")
	c.g.Expect(x).To(Equal(lowest), "%s: %s", p, c.what)
	c.g.Expect(ok).To(Equal(lowest.IsValid()))
}

func isBefore(p, q netip.Prefix) bool {
	return p.Addr().Less(q.Addr()) || p.Addr() == q.Addr() && p.Bits() < q.Bits()
}

// following returns the next prefix of the length of p.
func following(p netip.Prefix) netip.Prefix {
	a := p.Addr()
	for p.Contains(a) {
		a = a.Next()
	}
	return netip.PrefixFrom(a, p.Bits())
}

// compareParts compares FreePart with a search of all addresses.
func (c *crowd) compareParts(stats []ledger.BlockStat, leases map[site]ledger.Lease) {
	name, bits := c.names[c.rnd.IntN(len(c.names))], 27+c.rnd.IntN(5)
	var want netip.Prefix
	for _, s := range stats {
		for p := netip.PrefixFrom(s.Block.Addr(), bits); s.Pool == name && s.State == ledger.Active && bits >= s.Block.Bits() &&
			s.Block.Contains(p.Addr()) && !want.IsValid(); p = following(p) {
			if c.allFree(p, s, leases) {
				want = p
			}
		}
	}
	got, _ := c.FreePart(name, ledger.IPv4, bits, nil)
	c.g.Expect(got).To(Equal(want), c.what)
}

func (c *crowd) allFree(p netip.Prefix, s ledger.BlockStat, leases map[site]ledger.Lease) bool {
	pool := c.pools[s.Pool]
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		_, leased := leases[site{s.Pool, a}]
		_, excluded := c.Excluded(s.Pool, a)
		edge := pool.ReserveEdges && !s.Block.IsSingleIP() && (a == s.Block.Addr() || !s.Block.Contains(a.Next()))
		policy := slices.ContainsFunc(pool.Exclude, func(x netip.Prefix) bool { return x.Contains(a) })
		if leased || excluded || edge || policy {
			return false
		}
	}
	return true
}
