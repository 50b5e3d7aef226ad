// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/journaltest"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// TestSIGKILL kills agents at random moments while clients ask for more
// attachments than there are addresses, and proves after every restart that
// what clients were told is what is held.
func TestSIGKILL(t *testing.T) {
	kills := effort.Times(t, 320)
	for name, conf := range map[string]string{"one family, 60 s cool-down": smallConf, "two families, no cool-down": dualConf} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tried := attack.Begin(t, attack.Kill)
			c := newCrash(t, conf)
			began := time.Now()
			for c.kills < (kills+1)/2 && c.failed() == nil {
				c.round(t)
			}
			tried.Add(c.kills)
			c.finish(t)
			t.Logf("%d SIGKILLs in %s, %d of them before the agent served, %d restarts after SIGTERM, %d books read offline; requests: %v",
				c.kills, time.Since(began).Round(time.Millisecond), c.early, c.stops, c.offline, c.fates)
			if err := c.failed(); err != nil {
				t.Fatalf("%v\nlog of the agent: %s", err, c.node.logPath())
			}
		})
	}
}

// crash is a run of one node through many deaths.
type crash struct {
	node    *node
	agent   *agent
	rnd     *rand.Rand
	workers []*worker
	awayWG  sync.WaitGroup // DELs by cadastre-cni that were started while the agent was dead

	mu       sync.Mutex
	oracle   *Oracle
	trace    map[Key][]string
	fates    map[string]int
	err      error
	families int
	infra    int

	kills, early, stops, offline int
}

// worker is a client with attachments of its own, in a network of its own: GC
// frees whole networks.
type worker struct {
	rnd  *rand.Rand
	keys []Key
}

func newCrash(t *testing.T, conf string) *crash {
	t.Helper()
	s := effort.Seed(t)
	c := &crash{node: newNode(t, conf), rnd: random(s, 0), oracle: NewOracle(), trace: map[Key][]string{}, fates: map[string]int{}, families: 1}
	if strings.Contains(conf, "fd01::") {
		c.families = 2
	}
	for i := range 8 {
		w := &worker{rnd: random(s, i+1)}
		for n := range 7 {
			w.keys = append(w.keys, Key{fmt.Sprintf("net%d", i), fmt.Sprintf("c%d-%d", i, n), "eth0"})
		}
		c.workers = append(c.workers, w)
	}
	return c
}

func (c *crash) fail(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = fmt.Errorf("after %d SIGKILLs: %w", c.kills, err)
		for k, lines := range c.trace {
			if strings.Contains(err.Error(), k.String()) {
				c.err = fmt.Errorf("%w\n%s:\n\t%s", c.err, k, strings.Join(lines, "\n\t"))
			}
		}
	}
}

func (c *crash) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// round is one life of an agent, from its start to its death.
func (c *crash) round(t *testing.T) {
	c.agent = c.node.launch(t)
	c.noteAll("--- agent started, pid %d", c.agent.cmd.Process.Pid)
	if c.rnd.IntN(8) == 0 { // before it serves, most of the time
		pause(time.Duration(c.rnd.IntN(12_000)) * time.Microsecond)
		c.early++
		c.die(t)
		return
	}
	if err := c.agent.awaitServing(); err != nil {
		c.fail(err)
		return
	}
	c.awayWG.Wait()
	c.compare()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, w := range c.workers {
		wg.Go(func() {
			for c.failed() == nil && c.step(w) {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	pause(time.Duration(c.rnd.IntN(90_000)) * time.Microsecond)
	if c.rnd.IntN(20) == 0 {
		c.stops++
		c.fail(c.agent.stop())
		c.noteAll("--- agent stopped")
	} else {
		c.die(t)
	}
	close(stop)
	wg.Wait()
	c.awayWG.Wait()
	c.lock(func() { c.oracle.died() })
	if c.rnd.IntN(4) == 0 {
		c.offline++
		c.fail(c.compareOffline(t))
	}
	c.startAwayDELs()
}

// pause lets a random moment come.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

func (c *crash) lock(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// die kills the agent, which must not have ended by itself.
func (c *crash) die(t *testing.T) {
	t.Helper()
	if c.agent.hasEnded() {
		c.fail(fmt.Errorf("the agent has ended by itself (%s):\n%s", c.agent.cmd.ProcessState, c.agent.log()))
		return
	}
	c.agent.kill()
	c.kills++
	c.noteAll("--- SIGKILL %d", c.kills)
}

func (c *crash) noteAll(format string, args ...any) {
	for _, w := range c.workers {
		for _, k := range w.keys {
			c.lock(func() { c.note(k, fmt.Sprintf(format, args...)) })
		}
	}
}

// note needs the lock.
func (c *crash) note(k Key, line string) {
	lines := append(c.trace[k], time.Now().Format("05.000000 ")+line)
	c.trace[k] = lines[max(0, len(lines)-24):]
}

// step is one request of a client. It is false without a listener.
func (c *crash) step(w *worker) bool {
	k := w.keys[w.rnd.IntN(len(w.keys))]
	viaPlugin := w.rnd.IntN(25) == 0
	send := func(v Verb) (reply, Fate, error) {
		if viaPlugin {
			return run(c.node.socket(), k, v, nil)
		}
		return ask(c.node.socket(), k.request(v), leaving{})
	}
	switch n := w.rnd.IntN(100); {
	case n < 45:
		return c.do(k, Add, func() (reply, Fate, error) { return send(Add) })
	case n < 55:
		leave := leaving{after: time.Duration(1 + w.rnd.IntN(3_000_000))}
		return c.do(k, Add, func() (reply, Fate, error) { return ask(c.node.socket(), k.request(Add), leave) })
	case n < 85:
		return c.do(k, Del, func() (reply, Fate, error) { return send(Del) })
	case n < 95:
		return c.do(k, Check, func() (reply, Fate, error) { return send(Check) })
	}
	return c.gc(w, viaPlugin)
}

// do sends a request about one key and tells the oracle. It is false without a
// listener.
func (c *crash) do(k Key, v Verb, send func() (reply, Fate, error)) bool {
	c.lock(func() { c.oracle.Begin(k, v); c.note(k, string(v)+" ...") })
	r, f, err := send()
	if err == nil {
		err = c.plausible(k, v, r, f)
	}
	out := Outcome{Fate: f}
	if err == nil && v == Add && f == Answered {
		var addrs []netip.Addr
		addrs, err = addresses(r.IPs)
		out = Told(addrs...)
	}
	c.lock(func() {
		c.fates[string(v)+" "+string(f)]++
		c.note(k, fmt.Sprint(v, " ", f, " ", out.Addrs, r.Error))
		err = errors.Join(err, c.oracle.End(k, v, out))
	})
	c.fail(err)
	return f != NotSent
}

// plausible looks at an answer by itself.
func (c *crash) plausible(k Key, v Verb, r reply, f Fate) error {
	switch {
	case f == Answered && v == Add && len(r.IPs) != c.families:
		return fmt.Errorf("ADD %s was told %v: %d addresses were to be expected", k, r.IPs, c.families)
	case f != Refused:
		return nil
	case v == Add && r.Error.Code == cni.CodeFull:
		return nil
	case v == Check && r.Error.Code == cni.CodeUnknown:
		return nil
	}
	return fmt.Errorf("%s %s was refused: code %d: %s", v, k, r.Error.Code, r.Error.Msg)
}

// gc lists some attachments of a client. The remaining ones stay until witnesses agree.
func (c *crash) gc(w *worker, viaPlugin bool) bool {
	listed := []cni.Attachment{}
	var freed []Key
	for _, k := range w.keys {
		if w.rnd.IntN(2) == 0 {
			listed = append(listed, cni.Attachment{ContainerID: k.ContainerID, IfName: k.IfName})
		} else {
			freed = append(freed, k)
		}
	}
	c.lock(func() {
		for _, k := range freed {
			c.oracle.Begin(k, GC)
			c.note(k, "GC ...")
		}
	})
	var r reply
	var f Fate
	var err error
	if viaPlugin {
		r, f, err = run(c.node.socket(), Key{Network: w.keys[0].Network}, GC, listed)
	} else {
		r, f, err = ask(c.node.socket(), cni.Request{Command: string(GC), Network: w.keys[0].Network, Attachments: listed}, leaving{})
	}
	if f == Refused {
		err = errors.Join(err, fmt.Errorf("GC was refused: %w", r.Error))
	}
	c.lock(func() {
		c.fates["GC "+string(f)]++
		for _, k := range freed {
			c.note(k, "GC "+string(f))
			err = errors.Join(err, c.oracle.End(k, GC, Outcome{Fate: f}))
		}
	})
	c.fail(err)
	return f != NotSent
}

// startAwayDELs lets cadastre-cni delete some attachments while the agent is
// away or about to come back.
func (c *crash) startAwayDELs() {
	for _, w := range c.workers {
		if c.rnd.IntN(3) != 0 {
			continue
		}
		delay := time.Duration(c.rnd.IntN(25_000)) * time.Microsecond
		k := w.keys[c.rnd.IntN(len(w.keys))]
		c.awayWG.Go(func() {
			pause(delay)
			c.do(k, Del, func() (reply, Fate, error) { return run(c.node.socket(), k, Del, nil) })
		})
	}
}

// compare compares the agent's leases with the answers to clients,
// once no DEL waits any more.
func (c *crash) compare() {
	if err := c.node.awaitDELs(); err != nil {
		c.fail(err)
		return
	}
	book, infra, err := readBook(c.node.socket())
	var report localapi.CheckReport
	err = errors.Join(err, get(c.node.socket(), localapi.PathCheckLedger, &report))
	if err != nil {
		c.fail(err)
		return
	}
	if len(report.Findings) > 0 {
		c.fail(fmt.Errorf("check: %+v", report.Findings))
	}
	if c.infra == 0 { // the first agent may not have come to it yet
		c.infra = infra
	}
	if infra != c.infra {
		c.fail(fmt.Errorf("%d infra leases, there were %d", infra, c.infra))
	}
	c.lock(func() { err = c.oracle.Check(book, nil) })
	c.fail(err)
}

// compareOffline does so with a copy of the database, while the agent is dead.
func (c *crash) compareOffline(t *testing.T) error {
	book, findings, err := readOffline(t.Context(), c.node)
	if err != nil {
		return fmt.Errorf("read the database offline: %w", err)
	}
	if len(findings) > 0 {
		return fmt.Errorf("check offline: %q", findings)
	}
	waiting := func(k Key) bool {
		return cni.Intent{Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}.Waiting(c.node.intentDir())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.oracle.Check(book, waiting); err != nil {
		return fmt.Errorf("offline: %w", err)
	}
	return nil
}

// readOffline opens a copy of a node's database.
func readOffline(ctx context.Context, n *node) (book Book, findings []string, err error) {
	data, err := os.ReadFile(n.db())
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp(n.dir, "copy")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "cadastre.db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, nil, err
	}
	file, err := bolt.OpenFile(path, bolt.FileOptions{})
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	l, err := ledger.Open(ctx, file.Journal(), ledger.Options{
		BootID:  strings.TrimSpace(string(boot)),
		History: ledger.HistoryOptions{Reader: file.Journal()},
	})
	if err != nil {
		return nil, nil, err
	}
	if err := journaltest.Agree(ctx, l); err != nil {
		return nil, nil, err
	}
	book = Book{}
	for _, x := range l.Leases() {
		if x.State == ledger.Held && x.Purpose == ledger.ForPod {
			book = append(book, holding{Key{x.Key.Network, x.Key.ContainerID, x.Key.IfName}, x.Addr})
		}
	}
	findings, err = l.Check(ctx)
	return book, findings, err
}

// finish deletes every attachment: then nothing is held.
func (c *crash) finish(t *testing.T) {
	c.awayWG.Wait()
	if c.failed() != nil {
		return
	}
	g := NewWithT(t)
	c.agent = c.node.start(t)
	c.compare()
	for _, w := range c.workers {
		for _, k := range w.keys {
			c.do(k, Del, func() (reply, Fate, error) { return ask(c.node.socket(), k.request(Del), leaving{}) })
		}
	}
	c.compare()
	book, _, err := readBook(c.node.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(BeEmpty())
	waiting, err := os.ReadDir(c.node.intentDir())
	g.Expect(err == nil || errors.Is(err, os.ErrNotExist)).To(BeTrue(), "%v", err)
	g.Expect(slices.DeleteFunc(waiting, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".new-") })).To(BeEmpty(), "DELs that were not applied")
	g.Expect(c.agent.stop()).To(Succeed())
}
