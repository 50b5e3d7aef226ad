// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// restarting limits the time until an agent serves its leases, whatever it can reach.
const restarting = 8 * time.Second

// check compares agents, store and clients while no client asks. No agent has to be well
// for it.
func (w *world) check() error {
	var errs []error
	for _, d := range w.staying() {
		if err := d.check(w); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.name, err))
		}
	}
	if w.up {
		errs = append(errs, w.look())
	}
	return errors.Join(append(errs, w.addresses())...)
}

// check looks at one agent, if it runs.
func (d *resident) check(w *world) error {
	d.mu.Lock()
	err := errors.Join(d.errs...)
	d.errs = nil
	d.mu.Unlock()
	if !d.running() {
		if code := d.agent.cmd.ProcessState.ExitCode(); code > 0 && !strings.Contains(d.agent.log(), "terminated signal received") {
			err = errors.Join(err, fmt.Errorf("it has ended by itself, with %d:\n%s", code, d.agent.log()))
		}
		return err
	}
	if !d.started {
		d.started = d.follows() == nil
	}
	if err != nil || !d.started {
		return err
	}
	if err := d.awaitService(); err != nil {
		return err
	}
	s, err := d.status()
	if err != nil {
		return err
	}
	return errors.Join(d.checkID(w, s), d.checkBook(), d.checkDoubt(w, s))
}

// awaitService waits until the agent serves its leases.
func (d *resident) awaitService() error {
	for limit := time.Now().Add(restarting); ; pause(time.Millisecond) {
		s, err := d.status()
		switch {
		case d.agent.hasEnded():
			return fmt.Errorf("it has ended instead of serving:\n%s", d.agent.log())
		case err == nil && s.Serving && s.Loop.Resynced && s.Waiting == 0:
			return nil
		case time.Now().After(limit):
			return fmt.Errorf("it does not serve %s after its start: %w, %s", restarting, err, s.ReadyError)
		}
	}
}

// checkID compares the ID with the one that the agent had.
func (d *resident) checkID(w *world, s localapi.Status) error {
	pid := d.agent.cmd.Process.Pid
	d.mu.Lock()
	held := d.oracle.Certain(d.book) // leases of the last check that were not released since
	d.mu.Unlock()
	switch {
	case d.instance != "" && d.instance != s.Instance:
		return fmt.Errorf("its instance is %s, it was %s", s.Instance, d.instance)
	case d.id != 0 && d.id != s.NodeID && d.pid == pid:
		return fmt.Errorf("its ID was %d and is %d, while it runs", d.id, s.NodeID)
	case d.id != 0 && d.id != s.NodeID && (!d.exposed && len(d.rivals) == 0 || len(held) > 0):
		return fmt.Errorf("its ID was %d and is %d, its leases are %v", d.id, s.NodeID, held)
	}
	d.id, d.instance, d.pid = s.NodeID, s.Instance, pid
	return nil
}

// checkBook compares what is held with what clients were told.
func (d *resident) checkBook() error {
	book, _, err := readBook(d.socket())
	if err != nil {
		return err
	}
	var report localapi.CheckReport
	if err := get(d.socket(), localapi.PathCheckLedger, &report); err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		err = fmt.Errorf("check: %+v", report.Findings)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.book = book
	return errors.Join(err, d.oracle.Check(book, nil))
}

// checkDoubt: an agent whose ID is in doubt allocates nothing new. It is in doubt
// only where the store has lost something.
func (d *resident) checkDoubt(w *world, s localapi.Status) error {
	if s.NodeIDProblem == "" {
		return nil
	}
	if !w.lost.Load() {
		return fmt.Errorf("its ID is in doubt, although the store has lost nothing: %s", s.NodeIDProblem)
	}
	k := Key{d.name, "probe", "eth0"}
	f := d.ask(w, k, Add, false)
	if f == Refused {
		return nil
	}
	now, err := d.status()
	if err == nil && now.NodeIDProblem == "" {
		d.ask(w, k, Del, false)
		return nil // it was cleared meanwhile
	}
	return errors.Join(err, fmt.Errorf("its ID is in doubt (%s), and a new ADD was %s", s.NodeIDProblem, f))
}

// look reads the node records: each ID is of one instance, each instance has
// one, and what is its own stays so unless the store had lost it.
func (w *world) look() error {
	held, err := w.store.holders()
	if err != nil {
		return err
	}
	ids := map[string]uint32{}
	var errs []error
	for id, x := range held {
		if other, twice := ids[x.Instance]; twice && (!w.lost.Load() || looksForFound()) { // see moved
			errs = append(errs, fmt.Errorf("%s has node IDs %d and %d", x.Name, other, id))
		}
		ids[x.Instance] = id
		if x.Generation < w.record[id] {
			errs = append(errs, fmt.Errorf("the generation of node ID %d was %d and is %d", id, w.record[id], x.Generation))
		}
		w.record[id] = x.Generation
		errs = append(errs, w.lookAt(x))
	}
	return errors.Join(errs...)
}

func (w *world) lookAt(x nodesync.Registered) error {
	var d *resident
	for _, other := range w.members {
		if other.name == x.Name {
			d = other
		}
	}
	switch {
	case d == nil:
		return fmt.Errorf("node ID %d is of %s, which is unknown", x.Id, x.Name)
	case d.instance != "" && d.instance != x.Instance, x.SupersededBy != 0:
		return fmt.Errorf("node ID %d is of %s, but of instance %s, not %s; superseded by %d", x.Id, x.Name, x.Instance, d.instance, x.SupersededBy)
	case d.id != 0 && d.id != x.Id && !d.exposed && len(d.rivals) == 0:
		return fmt.Errorf("node ID %d is of %s, which has %d", x.Id, x.Name, d.id)
	}
	if d.instance = x.Instance; d.id == 0 {
		d.id = x.Id
	}
	if d.id == x.Id {
		d.exposed = false
	}
	for _, other := range w.staying() {
		if other == d || other.id != x.Id || d.rivals[other] {
			continue
		}
		if !other.exposed {
			return fmt.Errorf("node ID %d is of %s, although it is that of %s, which the store had not lost", x.Id, d.name, other.name)
		}
		w.say("%s has node ID %d of %s, which was slower", d.name, x.Id, other.name)
		w.counts["(an ID went to a faster node)"]++
		d.rivals[other], other.rivals[d] = true, true
	}
	return nil
}

// certainly returns the attachments that hold an address for certain.
func (o *Oracle) certainly() Book {
	var book Book
	for k, b := range o.beliefs {
		if b.certain() {
			for _, a := range b.told {
				book = append(book, holding{k, a})
			}
		}
	}
	return book
}

// addresses are held by one owner each, except that a node which lost its ID
// to a faster one keeps its leases.
func (w *world) addresses() error {
	type owner struct {
		*resident
		Key
	}
	seen := map[netip.Addr][]owner{}
	var errs []error
	for _, d := range w.staying() {
		d.mu.Lock()
		book := d.oracle.certainly()
		d.mu.Unlock()
		for _, h := range book {
			for _, o := range seen[h.Addr] {
				if !d.rivals[o.resident] {
					errs = append(errs, fmt.Errorf("%s is held by %s of %s and by %s of %s", h.Addr, h.Key, d.name, o.Key, o.name))
				}
			}
			seen[h.Addr] = append(seen[h.Addr], owner{d, h.Key})
		}
	}
	return errors.Join(errs...)
}

// calm heals everything, waits until all agents know that, and looks closer.
func (w *world) calm() error {
	if !w.up {
		if _, err := w.startEtcd(); err != nil {
			return err
		}
	}
	for _, d := range w.staying() {
		d.pass()
		if d.way = "pass"; !d.running() {
			d.run(w.t)
		}
	}
	began := time.Now()
	if err := w.awaitQuiet(); err != nil {
		return err
	}
	w.say("all was well after %s", time.Since(began).Round(time.Millisecond))
	if err := w.check(); err != nil {
		return err
	}
	for _, d := range w.staying() {
		if len(d.rivals) > 0 && d.doubts() == nil && w.rnd.IntN(2) == 0 {
			if err := w.drain(d); err != nil {
				return err
			}
		}
		if _, err := d.cadastre("check", "--ledger"); err != nil {
			return err
		}
	}
	return w.check()
}

// drain takes all leases from an agent that has lost its ID, and restarts it:
// it gets another one.
func (w *world) drain(d *resident) error {
	w.say("%s is drained", d.name)
	w.counts["(drained)"]++
	for _, c := range d.clients {
		for _, k := range c.keys {
			d.ask(w, k, Del, false)
		}
	}
	if err := d.check(w); err != nil {
		return err
	}
	var err error
	for range 3 { // it keeps its ID for as long as it runs, if it starts from its mirror
		d.kill()
		d.run(w.t)
		if err = w.awaitQuiet(); err != nil {
			return err
		}
		if err = d.follows(); err == nil {
			break
		}
	}
	return err
}

func (w *world) awaitQuiet() error {
	began := time.Now()
	for nudged := false; ; pause(20 * time.Millisecond) {
		err := w.quiet()
		if took := time.Since(began); err == nil || took > healing {
			return err
		} else if took > 3*time.Second && !nudged && effort.Level(w.t) < effort.Long {
			nudged = true // who failed often would wait for longer before it tries again
			for _, d := range w.staying() {
				var said string
				if _, err := post(d.socket(), localapi.PathDispatch, struct{}{}, &said); err != nil {
					w.say("%s is not nudged: %v", d.name, err)
				}
			}
		}
	}
}

// quiet is nil where all agents follow the store, have the IDs that are theirs, and
// doubt those that are not. They must also agree about the pools, and know the ways
// to each other.
func (w *world) quiet() error {
	held, err := w.store.holders()
	if err != nil {
		return err
	}
	var errs []error
	subnets := map[string]*resident{}
	pools := map[string]string{}
	for _, d := range w.staying() {
		s, err := d.status()
		switch mine := held[s.NodeID].NodeRecord != nil && held[s.NodeID].Instance == s.Instance; {
		case err != nil:
		case d.agent.hasEnded():
			err = fmt.Errorf("it has ended:\n%s", d.agent.log())
		case !s.KVDBConnected || s.StateFrom != "remote":
			err = fmt.Errorf("it is not connected: %s", s.KVDBError)
		case mine != (s.NodeIDProblem == ""):
			err = fmt.Errorf("node ID %d is its own: %t; it says %q", s.NodeID, mine, s.NodeIDProblem)
		case mine && !s.Ready:
			err = fmt.Errorf("it is not ready: %s", s.ReadyError)
		case mine:
			var subnet string
			if subnet, err = d.subnet(); subnets[subnet] != nil {
				err = errors.Join(err, fmt.Errorf("it has the subnet %s of %s", subnet, subnets[subnet].name))
			}
			subnets[subnet] = d
			errs = append(errs, d.checkPools(pools))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.name, err))
		}
	}
	for _, d := range subnets {
		errs = append(errs, d.checkRoutes(subnets, held))
	}
	return errors.Join(errs...)
}

// moved reports whether the store has other records of a node than that of its ID: the
// node does not know those yet. See
// TestNodeThatMovedBeforeARestore.
func (d *resident) moved(held map[uint32]nodesync.Registered) bool {
	n := 0
	for _, x := range held {
		if x.Name == d.name {
			n++
		}
	}
	return n > 1 && !looksForFound()
}

// checkPools compares the pools with those of the others.
func (d *resident) checkPools(others map[string]string) error {
	var pools []localapi.Pool
	if err := get(d.socket(), localapi.PathPools, &pools); err != nil {
		return err
	}
	var text []string
	for _, p := range pools {
		if p.Problem != "" {
			return fmt.Errorf("%s: pool %s: %s", d.name, p.Name, p.Problem)
		}
		text = append(text, fmt.Sprint(p.Name, " ", p.State, " generation ", p.Generation, " ", p.Ranges))
	}
	mine := strings.Join(text, ", ")
	for name, theirs := range others {
		if theirs != mine {
			return fmt.Errorf("%s has the pools %s; %s has %s", d.name, mine, name, theirs)
		}
	}
	others[d.name] = mine
	return nil
}

// checkRoutes looks for the ways to all other subnets.
func (d *resident) checkRoutes(subnets map[string]*resident, held map[uint32]nodesync.Registered) error {
	var sink map[string]json.RawMessage
	if err := get(d.socket(), localapi.PathSink, &sink); err != nil {
		return err
	}
	for subnet, other := range subnets {
		var route struct{ NodeName string }
		value := sink["route/"+subnet]
		if other == d {
			if value != nil {
				return fmt.Errorf("%s routes its own subnet %s elsewhere: %s", d.name, subnet, value)
			}
			continue
		}
		if (json.Unmarshal(value, &route) != nil || route.NodeName != other.name) && !other.moved(held) {
			return fmt.Errorf("%s knows no way to %s of %s: %s", d.name, subnet, other.name, value)
		}
	}
	return nil
}
