// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/interfaces"
	"github.com/cadastre/cadastre/plugins/ipam"
)

const instance = "machine-1"

// rig is a machine with its plugin, in simulated time. Its process can crash at any step:
// only the journal, the records and the cloud are left then.
type rig struct {
	t        *testing.T
	g        Gomega
	conf     contivconf.Interfaces
	families []ledger.Family
	cloud    *memcloud.Cloud
	away     atomic.Bool                                 // the cloud does not answer
	refuse   func(netip.Prefix) bool                     // blocks that pods cannot have; nil: none
	bare     bool                                        // a new interface has no addresses for pods
	cordoned func() (bool, error)                        // nil: never
	onChange atomic.Pointer[func(*ipam.InterfaceChange)] // nil, or called before the ledger changes
	machine  string                                      // that the agent is on
	hidden   atomic.Value                                // string: an interface that the next reading lacks
	// refuseFamily reports whether a request for addresses of an interface is wrong; nil: none is.
	refuseFamily func(i *cloud.Interface, ipv6 bool) bool
	begun        time.Time

	journal *journal.Memory
	records *records

	process *process
	steps   atomic.Int64 // of all processes
	crashAt int          // number of the step after which the process is dead; 0: never
}

// process is one process of the agent.
type process struct {
	r      *rig
	ledger *ledger.Ledger
	plugin *interfaces.Interfaces
	stop   context.CancelFunc
	ended  chan struct{}

	mu      sync.Mutex
	dead    bool
	granted []ipam.Uplink // of the last change
}

// uplinks returns those of the last change of the interfaces.
func (p *process) uplinks() []ipam.Uplink {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.granted
}

var errDead = errors.New("the process is dead")

// step is a point at which the process may die.
func (p *process) step() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		p.dead = p.r.steps.Add(1) == int64(p.r.crashAt)
	}
	if p.dead {
		return errDead
	}
	return nil
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func defaults() contivconf.Interfaces {
	return contivconf.Interfaces{WarmInterfaces: 1, WarmPrefixes: 1, CoolDown: 30 * time.Second, Reconcile: time.Minute}
}

func newRig(t *testing.T, conf contivconf.Interfaces, c memcloud.Config) *rig {
	r := &rig{
		t: t, g: NewWithT(t), conf: conf, families: []ledger.Family{ledger.IPv4}, begun: time.Now().Add(-time.Hour),
		machine: instance,
		journal: journal.NewMemory(), records: &records{all: map[string][]byte{}},
	}
	if c.Subnets == nil {
		c.Subnets = map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("10.0.0.0/22")}
	}
	r.cloud = memcloud.New(c)
	r.cloud.AddInstance(instance, "subnet-1")
	return r
}

// newDualRig is newRig for pods with addresses of both families.
func newDualRig(t *testing.T, conf contivconf.Interfaces, c memcloud.Config) *rig {
	r := newRig(t, conf, c)
	r.families = []ledger.Family{ledger.IPv4, ledger.IPv6}
	return r
}

func (r *rig) uptime() time.Duration { return time.Since(r.begun) }

// start starts a process.
func (r *rig) start() {
	p := &process{r: r, ended: make(chan struct{})}
	defer func() {
		if p.plugin == nil { // it died before it ran
			r.start()
		}
	}()
	var err error
	p.ledger, err = ledger.Open(context.Background(), r.journal, ledger.Options{Uptime: r.uptime, BootID: "boot"})
	r.g.Expect(err).NotTo(HaveOccurred())
	pool := ledger.Pool{Name: ipam.PodPool, Order: ledger.Lowest, CoolDown: r.conf.CoolDown}
	loop := &loop{p, pool}
	p.plugin, err = interfaces.New(context.Background(), interfaces.Deps{
		Log: slog.New(slog.DiscardHandler), Config: r.conf, Families: r.families, Ledger: p.ledger, EventLoop: loop, Records: &deadly{p, r.records},
		Open: func(context.Context) (cloud.Cloud, error) {
			if r.away.Load() {
				return nil, errors.New("the cloud is away")
			}
			return &hooked{r.cloud, p}, nil
		},
		Instance: func(context.Context) (string, error) { return r.machine, nil },
		Unschedulable: func(context.Context) (bool, error) {
			if r.cordoned == nil {
				return false, nil
			}
			return r.cordoned()
		},
		Now: time.Now, Uptime: r.uptime, After: time.After,
	})
	if errors.Is(err, errDead) {
		return
	}
	r.g.Expect(err).NotTo(HaveOccurred())
	known := p.plugin.Known() // the first resync
	r.checkKnown(p.ledger, known)
	st := p.ledger.Begin()
	r.g.Expect(st.SetPool(pool)).To(Succeed())
	r.g.Expect(st.SetBlocks(ipam.PodPool, ipam.UsablePrefixes(known.Blocks))).To(Succeed())
	r.g.Expect(st.Commit(context.Background())).To(Succeed())
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.ended)
		_ = p.plugin.Run(ctx)
	}()
	r.process = p
	synctest.Wait()
}

// checkKnown expects that a new process knows the interface of each block that the ledger
// has, since it may run for hours before the cloud answers.
func (r *rig) checkKnown(l *ledger.Ledger, known ipam.InterfaceState) {
	for _, b := range l.Stats() {
		i := slices.IndexFunc(known.Blocks, func(k ipam.InterfaceBlock) bool { return k.Prefix == b.Block })
		switch {
		case b.Pool != ipam.PodPool || b.State != ledger.Active:
		case i < 0:
			r.t.Fatalf("step %d: the process does not know the interface of block %s", r.steps.Load(), b.Block)
		case !slices.ContainsFunc(known.Uplinks, func(u ipam.Uplink) bool { return u.Interface == known.Blocks[i].Interface }):
			r.t.Fatalf("step %d: the process has no description of interface %s", r.steps.Load(), known.Blocks[i].Interface)
		}
	}
}

// end ends the process.
func (r *rig) end() {
	r.process.stop()
	<-r.process.ended
}

// pass lets time pass. A process that has died meanwhile is started again.
func (r *rig) pass(d time.Duration) {
	for ; d > 0; d -= time.Second {
		time.Sleep(time.Second)
		synctest.Wait()
		r.check()
		if r.process.isDead() {
			r.end()
			r.start()
			r.check()
		}
	}
}

// check compares the leases with the cloud: a pod's address is always one of this machine.
func (r *rig) check() {
	has := map[netip.Prefix]bool{}
	units := r.cloud.Units(instance)
	for _, u := range units {
		has[u] = true
	}
	for _, l := range r.process.ledger.Leases() {
		ours := false
		for _, u := range units {
			ours = ours || u.Contains(l.Addr)
		}
		if l.State == ledger.Held && !ours {
			r.t.Fatalf("step %d: %s of %s is not an address of the machine any more", r.steps.Load(), l.Addr, l.Key)
		}
	}
}

// add adds pods; it reports how many got an address.
func (r *rig) add(from, to int) (added int) {
	for n := from; n < to; n++ {
		_, _, err := r.process.ledger.Claim(context.Background(), ledger.Request{
			Pool: ipam.PodPool, Key: podKey(n), Rested: true, Listed: true, Families: r.families,
		})
		if err == nil {
			added++
		}
		r.process.plugin.Wake()
	}
	return added
}

// addAll adds pods, which try again as a runtime does.
func (r *rig) addAll(from, to int) {
	for range 60 {
		if r.add(from, to) == to-from {
			return
		}
		r.pass(time.Second)
	}
	r.t.Fatalf("pods %d to %d have no addresses: %s", from, to, r.process.plugin.Shortage())
}

func (r *rig) remove(from, to int) {
	for n := from; n < to; n++ {
		_, err := r.process.ledger.Release(context.Background(), ledger.Selector{Key: podKey(n)})
		r.g.Expect(err).NotTo(HaveOccurred())
	}
	r.process.plugin.Wake()
}

func podKey(n int) ledger.Key {
	return ledger.Key{Network: "cadastre", ContainerID: fmt.Sprintf("c%d", n), IfName: "eth0"}
}

// agree expects that the cloud, the plugin and the ledger have the same blocks.
func (r *rig) agree() {
	for _, b := range r.process.plugin.Status().Placed {
		r.g.ExpectWithOffset(1, b.On).To(Equal(b.Interface), "the interface of %s", b.Prefix)
	}
	blocks := []netip.Prefix{}
	for _, b := range r.process.ledger.Stats() {
		if b.Pool == ipam.PodPool && b.State == ledger.Active {
			blocks = append(blocks, b.Block)
		} else {
			r.t.Errorf("block %s of pool %s is %s", b.Block, b.Pool, b.State)
		}
	}
	units := map[netip.Prefix]bool{}
	for _, u := range r.cloud.Units(instance) {
		units[u] = true
	}
	inLedger := map[netip.Prefix]bool{}
	for _, b := range blocks {
		inLedger[b] = true
	}
	r.g.ExpectWithOffset(1, maps.Equal(units, inLedger)).To(BeTrue(), "cloud %v, ledger %v", units, inLedger)
	r.g.ExpectWithOffset(1, r.cloud.Orphans()).To(BeZero())
}

// blocks returns the active blocks of the ledger with their interfaces.
func (p *process) blocks() map[netip.Prefix]string {
	all := map[netip.Prefix]string{}
	for _, b := range p.plugin.Status().Placed {
		all[b.Prefix] = b.Interface
	}
	return all
}

// total returns the number of addresses, or prefixes, of the machine.
func (r *rig) total() int { return len(r.cloud.Units(instance)) }

// loop is the event loop, as far as the plugin uses it.
type loop struct {
	p    *process
	pool ledger.Pool
}

func (l *loop) PushEvent(controller.Event) error { return errors.New("not used") }

func (l *loop) PushEventWait(ctx context.Context, event controller.Event) error {
	ev := event.(*ipam.InterfaceChange)
	if err := l.p.step(); err != nil {
		return err
	}
	if f := l.p.r.onChange.Load(); f != nil {
		(*f)(ev)
	}
	usable := slices.Clone(ev.Blocks)
	for i, b := range usable {
		if refuse := l.p.r.refuse; b.Usable && refuse != nil && refuse(b.Prefix) {
			usable[i].Usable = false
			ev.Refused = append(ev.Refused, ipam.RefusedBlock{InterfaceBlock: b, Why: "the test refuses it"})
		}
	}
	st := l.p.ledger.Begin()
	err := l.stage(st, ev, usable)
	if err != nil {
		st.Undo()
	} else {
		err = st.Commit(ctx)
	}
	l.p.mu.Lock()
	l.p.granted = ev.Uplinks
	l.p.mu.Unlock()
	if dead := l.p.step(); dead != nil {
		return dead
	}
	ev.Done(err)
	return nil
}

// stage stages the blocks of ev, as package ipam does.
func (l *loop) stage(st *ledger.Stage, ev *ipam.InterfaceChange, usable []ipam.InterfaceBlock) error {
	if err := st.SetPool(l.pool); err != nil {
		return err
	}
	reopened, err := ev.Drain(l.p.ledger, st, usable)
	if err != nil {
		return err
	}
	if err := st.SetBlocks(ipam.PodPool, append(ipam.UsablePrefixes(usable), reopened...)); err != nil {
		return err
	}
	for _, req := range ev.Claims {
		if _, _, err := st.Claim(req); err != nil {
			return err
		}
	}
	return nil
}

// records outlive a crash.
type records struct {
	mu  sync.Mutex
	all map[string][]byte
}

// deadly are the records of a process that may die.
type deadly struct {
	p *process
	*records
}

func (d *deadly) Load(_ context.Context, f func(string, []byte) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range d.all {
		if err := f(k, v); err != nil {
			return err
		}
	}
	return nil
}

func (d *deadly) Commit(_ context.Context, put map[string][]byte, del []string) error {
	if err := d.p.step(); err != nil {
		return err
	}
	d.mu.Lock()
	maps.Copy(d.all, put)
	for _, k := range del {
		delete(d.all, k)
	}
	d.mu.Unlock()
	return d.p.step()
}

// hooked is the cloud of a process that may die before or after each call.
type hooked struct {
	cloud.Cloud
	p *process
}

func around[T any](h *hooked, call func() (T, error)) (got T, err error) {
	if err := h.p.step(); err != nil {
		return got, err
	}
	if h.p.r.away.Load() {
		return got, errors.New("the cloud is away")
	}
	got, err = call()
	if dead := h.p.step(); dead != nil {
		var none T
		return none, dead
	}
	return got, err
}

func (h *hooked) ReadInstance(ctx context.Context, id string) (*cloud.Snapshot, error) {
	return around(h, func() (*cloud.Snapshot, error) {
		s, err := h.Cloud.ReadInstance(ctx, id)
		if hidden, _ := h.p.r.hidden.Swap("").(string); err == nil && hidden != "" {
			m := *s.Instances[id]
			m.Interfaces = slices.DeleteFunc(slices.Clone(m.Interfaces), func(i *cloud.Interface) bool { return i.ID == hidden })
			s.Instances[id] = &m
		}
		return s, err
	})
}

func (h *hooked) Assign(ctx context.Context, id, iface string, want cloud.Want) ([]cloud.Block, error) {
	return around(h, func() ([]cloud.Block, error) {
		for _, i := range h.p.r.cloud.Interfaces(id) {
			if refuse := h.p.r.refuseFamily; refuse != nil && i.ID == iface && refuse(i, want.IPv6) {
				return nil, errors.New("the subnet lacks the family")
			}
		}
		return h.Cloud.Assign(ctx, id, iface, want)
	})
}

func (h *hooked) Unassign(ctx context.Context, id, iface string, blocks []netip.Prefix) error {
	_, err := around(h, func() (any, error) { return nil, h.Cloud.Unassign(ctx, id, iface, blocks) })
	return err
}

func (h *hooked) CreateInterface(ctx context.Context, id string, want cloud.NewInterface) (*cloud.Interface, error) {
	if h.p.r.bare {
		want.Count = 0
	}
	return around(h, func() (*cloud.Interface, error) { return h.Cloud.CreateInterface(ctx, id, want) })
}

func (h *hooked) DeleteInterface(ctx context.Context, id, iface string) error {
	_, err := around(h, func() (any, error) { return nil, h.Cloud.DeleteInterface(ctx, id, iface) })
	return err
}
