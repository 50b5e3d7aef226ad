// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// world is some agents over one etcd, and all that a test knows of them. One
// goroutine drives it; clients have goroutines of their own for one step each.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	seed    uint64
	server  *etcdtest.Server
	up      bool // etcd runs
	store   registry
	members []*resident
	history *history
	past    []etcdtest.Snapshot // at most one
	lost    atomic.Bool         // etcd was wiped or restored at least once
	pools   int                 // how often they were changed
	counts  map[string]int
	lines   []string
	record  map[uint32]uint64 // generations of node records, as of the last look
}

// resident is a member of a world.
type resident struct {
	*member
	clients  []*customer
	instance string
	id       uint32 // 0: none yet
	way      string // how its network is
	delay    time.Duration
	started  bool // it was ready once: it can start alone
	exposed  bool // the store may have lost its record
	rivals   map[*resident]bool
	gone     bool // for good
	book     Book
	pid      int // of the process that the ID was seen with

	mu     sync.Mutex
	oracle *Oracle
	trace  map[Key][]string
	errs   []error
}

// customer is a client of one agent, with attachments of its own.
type customer struct {
	rnd  *rand.Rand
	keys []Key
}

// newWorld is an etcd and n agents that are about to join.
func newWorld(t *testing.T, seed uint64, n int) *world {
	t.Helper()
	w := &world{
		t: t, rnd: random(seed, 0), seed: seed, server: etcdtest.Start(t), up: true, history: newHistory(), counts: map[string]int{}, record: map[uint32]uint64{},
	}
	w.store = newRegistry(t, w.server.Endpoint())
	for range n {
		w.populate()
	}
	return w
}

// populate adds a member and starts it.
func (w *world) populate() {
	n := len(w.members)
	d := &resident{member: newMember(w.t, fmt.Sprint("w", n), w.server), way: "pass", rivals: map[*resident]bool{}, oracle: NewOracle(), trace: map[Key][]string{}}
	for i := range 3 {
		c := &customer{rnd: random(w.seed, 1000+10*n+i)}
		for j := range 7 {
			c.keys = append(c.keys, Key{d.name, fmt.Sprintf("c%d-%d", i, j), "eth0"})
		}
		d.clients = append(d.clients, c)
	}
	w.members = append(w.members, d)
	d.run(w.t)
}

func (w *world) say(format string, args ...any) {
	w.lines = append(w.lines, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// blame is err with what has happened before.
func (w *world) blame(err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("seed %d: %w\n%s", w.seed, err, strings.Join(w.lines, "\n"))
	for _, d := range w.members {
		for k, lines := range d.trace {
			if strings.Contains(err.Error(), k.String()+" ") {
				err = fmt.Errorf("%w\n%s:\n\t%s", err, k, strings.Join(lines, "\n\t"))
			}
		}
	}
	return err
}

// staying are those that are not gone for good.
func (w *world) staying() (all []*resident) {
	for _, d := range w.members {
		if !d.gone {
			all = append(all, d)
		}
	}
	return all
}

// pick is one of those for which ok is true, nil for none.
func (w *world) pick(ok func(*resident) bool) *resident {
	var all []*resident
	for _, d := range w.staying() {
		if ok(d) {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.rnd.IntN(len(all))]
}

func running(d *resident) bool { return d.running() }

func dead(d *resident) bool { return !d.running() }

// step lets something happen while clients ask, and checks everything then.
func (w *world) step() error {
	if w.rnd.IntN(40) == 0 {
		w.say("calm")
		w.counts["calm"]++
		return w.calm()
	}
	var clients sync.WaitGroup
	for _, d := range w.staying() {
		for _, c := range d.clients {
			if n := 2 + c.rnd.IntN(4); d.started {
				clients.Go(func() {
					for range n {
						d.request(w, c)
					}
				})
			}
		}
	}
	pause(time.Duration(w.rnd.IntN(10)) * time.Millisecond)
	began := time.Now()
	err := w.happen()
	happened := time.Since(began)
	clients.Wait()
	answered := time.Since(began)
	if err == nil {
		err = w.check()
	}
	if all := time.Since(began); all > time.Second { // a member waits without need
		w.say("  which took %s, with all answers %s, checked %s", happened.Round(time.Millisecond), answered.Round(time.Millisecond), all.Round(time.Millisecond))
	}
	return err
}

// request is one request of a client.
func (d *resident) request(w *world, c *customer) {
	k, v := c.keys[c.rnd.IntN(len(c.keys))], Check
	switch n := c.rnd.IntN(100); {
	case n < 50:
		v = Add
	case n < 80:
		v = Del
	}
	viaPlugin := c.rnd.IntN(12) == 0
	d.ask(w, k, v, viaPlugin)
}

// ask sends a request and tells the oracle and the history.
func (d *resident) ask(w *world, k Key, v Verb, viaPlugin bool) Fate {
	d.mu.Lock()
	d.oracle.Begin(k, v)
	d.mu.Unlock()
	op := Op{Key: k, Verb: v, Call: w.history.Now()}
	var r reply
	var err error
	if viaPlugin {
		r, op.Fate, err = run(d.socket(), k, v, nil)
	} else {
		r, op.Fate, err = ask(d.socket(), k.request(v), leaving{})
	}
	out := Outcome{Fate: op.Fate}
	if err == nil && v == Add && op.Fate == Answered {
		var addrs []netip.Addr
		if addrs, err = addresses(r.IPs); len(addrs) == 1 {
			out, op.Addr = Told(addrs...), addrs[0].String()
		} else {
			err = errors.Join(err, fmt.Errorf("ADD %s was told %v", k, r.IPs))
		}
	}
	op.Back = w.history.Now()
	w.history.record(op)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trace[k] = append(d.trace[k][max(0, len(d.trace[k])-24):], fmt.Sprint(time.Now().Format("05.000 "), v, " ", op.Fate, " ", op.Addr, r.Error))
	d.errs = append(d.errs, err, w.plausible(k, v, r, op.Fate), d.oracle.End(k, v, out))
	return op.Fate
}

// plausible looks at a refusal by itself: nothing but a lost ID is a reason to
// refuse an ADD, however the store and the network are.
func (w *world) plausible(k Key, v Verb, r reply, f Fate) error {
	switch {
	case f != Refused:
		return nil
	case v == Add && w.lost.Load() && strings.Contains(r.Error.Msg, "allocates no new address: node ID"):
		return nil
	case v == Check && r.Error.Code == cni.CodeUnknown:
		return nil
	}
	return fmt.Errorf("%s %s was refused: code %d: %s", v, k, r.Error.Code, r.Error.Msg)
}

// happen is one random calamity, or the end of one.
func (w *world) happen() error {
	for {
		n := w.rnd.IntN(100)
		for _, c := range w.calamities() {
			if n -= c.weight; n >= 0 {
				continue
			}
			what, err := c.do()
			if what == "" && err == nil {
				break // it cannot happen now
			}
			w.say("%s: %s", c.name, what)
			w.counts[c.name]++
			if err != nil {
				err = fmt.Errorf("%s: %w", c.name, err)
			}
			return err
		}
	}
}

// calamity represents an event of the world. do answers "" if it cannot happen now.
type calamity struct {
	weight int // of 100
	name   string
	do     func() (what string, err error)
}

func (w *world) calamities() []calamity {
	return []calamity{
		{22, "network", w.changeNetwork},
		{11, "kill", w.killOne},
		{5, "stop", w.stopOne},
		{18, "start", w.startOne},
		{6, "etcd ends", w.killEtcd},
		{11, "etcd starts", w.startEtcd},
		{4, "wipe", w.wipe},
		{4, "snapshot", w.snapshot},
		{4, "restore", w.restore},
		{3, "compact", w.compact},
		{3, "newcomer", w.newcomer},
		{2, "farewell", w.farewell},
		{2, "usurper", w.usurper},
		{3, "twin", w.twin},
		{2, "pools", w.changePools},
	}
}

func (w *world) changeNetwork() (string, error) {
	d := w.pick(func(*resident) bool { return true })
	ways := []string{"pass", "pass", "pass", "cut", "blackhole", "mute", "delay"}
	d.way = ways[w.rnd.IntN(len(ways))]
	d.delay = time.Duration(10+w.rnd.IntN(150)) * time.Millisecond
	d.network(d.spoil)
	return d.name + " " + d.way, nil
}

// spoil makes the network as it is.
func (d *resident) spoil(p *etcdtest.Proxy) {
	switch d.way {
	case "pass":
		p.Pass()
	case "cut":
		p.Cut()
	case "blackhole":
		p.Blackhole()
	case "mute":
		p.Mute()
	case "delay":
		p.Pass()
		p.Delay(d.delay)
	}
}

// etcd does something for which the server ends. Its connections are broken
// before: it would wait for seconds for those that say nothing.
func (w *world) etcd(do func() error) error {
	for _, d := range w.members {
		d.cut()
	}
	err := untilFree(do)
	for _, d := range w.members {
		d.pass()
		d.network(d.spoil)
	}
	return err
}

func (w *world) killOne() (string, error) {
	d := w.pick(running)
	if d == nil {
		return "", nil
	}
	d.kill()
	if w.rnd.IntN(3) == 0 { // it is back before the check
		d.run(w.t)
		return d.name + ", and starts again", nil
	}
	return d.name, nil
}

func (w *world) stopOne() (string, error) {
	d := w.pick(running)
	if d == nil {
		return "", nil
	}
	err := d.agent.stop()
	if err != nil && strings.Contains(err.Error(), "terminated signal received") {
		err = nil // in the middle of its start
	}
	return d.name, err
}

func (w *world) startOne() (string, error) {
	d := w.pick(dead)
	if d == nil {
		return "", nil
	}
	d.run(w.t)
	return d.name, nil
}

func (w *world) killEtcd() (string, error) {
	if !w.up {
		return "", nil
	}
	if w.rnd.IntN(2) == 0 {
		return "and starts again", w.etcd(w.server.Restart)
	}
	w.up = false
	return "for longer", w.etcd(w.server.Stop)
}

func (w *world) startEtcd() (string, error) {
	if w.up {
		return "", nil
	}
	w.up = true
	return "with what it had", w.etcd(w.server.Restart)
}

// loses is before etcd may lose what it has.
func (w *world) loses() {
	w.lost.Store(true)
	w.up = true
	w.record = map[uint32]uint64{}
	for _, d := range w.members {
		d.exposed = true
	}
}

func (w *world) wipe() (string, error) {
	w.loses()
	if w.rnd.IntN(3) == 0 {
		return "and it is another one", w.etcd(w.server.Replace)
	}
	return "all of it", w.etcd(w.server.Wipe)
}

func (w *world) snapshot() (string, error) {
	w.up = true
	return "taken", w.etcd(func() error {
		kept, err := w.server.Snapshot()
		w.past = []etcdtest.Snapshot{kept}
		return err
	})
}

func (w *world) restore() (string, error) {
	if len(w.past) == 0 {
		return "", nil
	}
	w.loses()
	return "of an older snapshot", w.etcd(func() error { return w.server.Restore(w.past[0]) })
}

func (w *world) compact() (string, error) {
	if !w.up {
		return "", nil
	}
	rev, err := w.server.Revision()
	if err != nil {
		return "", err
	}
	err = w.server.Compact(w.t.Context(), rev)
	if err != nil && strings.Contains(err.Error(), "compacted") { // nothing was written since the last time
		err = nil
	}
	return fmt.Sprint("before ", rev), err
}

func (w *world) newcomer() (string, error) {
	if len(w.staying()) >= 6 {
		return "", nil
	}
	w.populate()
	return w.members[len(w.members)-1].name, nil
}

// usurper starts a newcomer that finds an empty etcd and no node that knows better.
func (w *world) usurper() (string, error) {
	if len(w.staying()) >= 6 {
		return "", nil
	}
	for _, d := range w.staying() {
		d.kill()
	}
	w.loses()
	if err := w.etcd(w.server.Wipe); err != nil {
		return "", err
	}
	w.populate()
	d := w.members[len(w.members)-1]
	for limit := time.Now().Add(healing); d.follows() != nil; pause(5 * time.Millisecond) {
		if time.Now().After(limit) {
			return d.name, d.follows()
		}
	}
	return d.name, nil
}

// farewell stops a node that never comes back; an operator releases it.
func (w *world) farewell() (string, error) {
	d := w.pick(func(d *resident) bool { return dead(d) && d.started })
	via := w.pick(func(d *resident) bool { return running(d) && d.started && d.way == "pass" })
	if d == nil || via == nil || !w.up || len(w.staying()) < 4 {
		return "", nil
	}
	var r localapi.NodeReleaseReply
	for limit := time.Now().Add(2 * fresh); ; pause(refresh) {
		status, err := post(via.socket(), localapi.PathNodeRelease, localapi.NodeReleaseRequest{Name: d.name}, &r)
		if err != nil && status == 409 && time.Now().Before(limit) {
			continue // it was there a moment ago
		}
		d.gone = true
		return fmt.Sprintf("%s, which is released by %s: %d %v", d.name, via.name, r.ID, err), nil
	}
}

// twin starts a second machine under the name of one that is there: it must end.
func (w *world) twin() (string, error) {
	d := w.pick(func(d *resident) bool { return running(d) && d.started && d.way == "pass" && d.follows() == nil })
	if d == nil || !w.up || !w.beats(d) {
		return "", nil
	}
	other := newMember(w.t, d.name, w.server)
	other.run(w.t)
	defer other.kill()
	select {
	case <-other.agent.ended:
	case <-time.After(patience):
		return d.name, fmt.Errorf("a second %s goes on", d.name)
	}
	if !strings.Contains(other.agent.log(), "another instance has this node's name") {
		return d.name, fmt.Errorf("a second %s says: %s", d.name, other.agent.log())
	}
	return d.name, nil
}

// beats reports whether the store has heard d a moment ago.
func (w *world) beats(d *resident) bool {
	all, err := w.store.list()
	for _, x := range all {
		if err == nil && x.Instance == d.instance && x.Beat != nil && time.Since(time.Unix(0, x.Beat.At)) < fresh/3 {
			return true
		}
	}
	return false
}

// changePools drains what there is and opens a new pool.
func (w *world) changePools() (string, error) {
	via := w.pick(func(d *resident) bool { return running(d) && d.started && d.way == "pass" })
	var pools []localapi.Pool
	if via == nil || !w.up || w.pools >= 3 || get(via.socket(), localapi.PathPools, &pools) != nil {
		return "", nil //nolint:nilerr // a later step tries again
	}
	file := "pools:\n"
	for _, p := range pools {
		file += fmt.Sprintf("- {name: %s, state: draining}\n", p.Name)
	}
	file += fmt.Sprintf("- {name: more%d, ranges: [{cidr: 10.%d.0.0/16, oneNodePrefixLen: 27}]}\n", w.pools, w.pools+2)
	r, err := via.apply(file)
	if w.pools++; err != nil {
		return fmt.Sprintf("not changed by %s: %v", via.name, err), nil
	}
	return fmt.Sprintf("changed by %s: %s", via.name, r.Text), nil
}
