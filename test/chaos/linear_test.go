// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// searchLimit limits the steps of the search for one order: fifty times what
// most histories of these tests need.
const searchLimit = 5_000_000

// TestLinearizability lets clients ask for the same few attachments at once,
// which no runtime does, and looks for an order that explains all answers.
func TestLinearizability(t *testing.T) {
	epochs := effort.Times(t, 60)
	for name, c := range map[string]struct {
		conf  string
		rally rally
	}{
		"clients that leave":        {roomyConf, rally{keys: 4, clients: 8, each: 12, leave: true}},
		"requests that overtake":    {roomyConf, rally{keys: 4, clients: 8, each: 12, leave: true, stand: true}},
		"fewer addresses than keys": {tightConf, rally{keys: 6, clients: 8, each: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			tried := attack.Begin(t, attack.Linear)
			s := effort.Seed(t)
			n := newNode(t, c.conf)
			a := n.start(t)
			r := c.rally
			r.agent = a
			r.socket, r.mu, r.counts = n.socket(), &sync.Mutex{}, map[string]int{}
			for epoch := range epochs {
				h, err := r.run(epoch, random(s, epoch))
				g.Expect(err).NotTo(HaveOccurred(), "epoch %d", epoch)
				tried.Add(r.clients * r.each)
				g.Expect(h.checkKeys(searchLimit)).To(Succeed(), "epoch %d", epoch)
				g.Expect(h.checkAddresses()).To(Succeed(), "epoch %d", epoch)
				if !r.leave {
					g.Expect(h.checkWhole(searchLimit)).To(Succeed(), "epoch %d", epoch)
				}
			}
			g.Eventually(func() (Book, error) {
				book, _, err := readBook(n.socket())
				return book, err
			}, patience, 10*time.Millisecond).Should(BeEmpty(), "all was given back")
			t.Logf("%d histories of %d clients on %d keys: %v", epochs, r.clients, r.keys, r.counts)
			g.Expect(a.stop()).To(Succeed())
		})
	}
}

// rally makes histories.
type rally struct {
	socket  string
	keys    int
	clients int
	each    int    // requests of one client
	leave   bool   // some clients go away before they have an answer
	stand   bool   // the agent stands still now and then, and finds several requests at once
	agent   *agent // nil: another server

	mu     *sync.Mutex
	counts map[string]int
}

// run makes one history, of keys that no other epoch has, and frees them.
func (r *rally) run(epoch int, rnd *rand.Rand) (*history, error) {
	h := newHistory()
	var keys []Key
	for i := range r.keys {
		keys = append(keys, Key{fmt.Sprintf("net%d", i%2), fmt.Sprintf("e%d-%d", epoch, i), "eth0"})
	}
	errs := make([]error, r.clients)
	var wg sync.WaitGroup
	for i := range r.clients {
		own := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		wg.Go(func() {
			for range r.each {
				errs[i] = errors.Join(errs[i], r.step(h, i, keys, own))
			}
		})
	}
	stop := r.interrupt()
	wg.Wait()
	if err := errors.Join(append(errs, stop())...); err != nil {
		return nil, err
	}
	h, err := r.end(h)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if _, f, err := ask(r.socket, k.request(Del), leaving{}); err != nil || f != Answered {
			return nil, fmt.Errorf("DEL %s: %s: %w", k, f, err)
		}
	}
	return h, nil
}

// interrupt lets the agent stand still for some milliseconds, again and again, until stop
// is called.
func (r *rally) interrupt() (stop func() error) {
	if !r.stand {
		return func() error { return nil }
	}
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			err := r.agent.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(5 * time.Millisecond)
			err = errors.Join(err, r.agent.cmd.Process.Signal(syscall.SIGCONT))
			select {
			case <-end:
				ended <- err
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() error {
		close(end)
		return <-ended
	}
}

// step is one request of a client.
func (r *rally) step(h *history, client int, keys []Key, rnd *rand.Rand) error {
	k := keys[rnd.IntN(len(keys))]
	var leave leaving
	if r.leave && rnd.IntN(4) == 0 {
		leave = leaving{after: time.Duration(1 + rnd.IntN(2_000_000)), half: !r.stand}
	}
	op := Op{Client: client, Key: k}
	var ops []Op
	var err error
	switch n := rnd.IntN(100); {
	case n < 45:
		op.Verb = Add
		op, err = r.ask(h, op, k.request(Add), leave)
	case n < 75:
		op.Verb = Del
		op, err = r.ask(h, op, k.request(Del), leave)
	case n < 92:
		op.Verb = Check
		req := k.request(Check)
		if op.Addr = r.lastTold(h, k); op.Addr != "" && rnd.IntN(3) > 0 {
			req.Previous = []string{op.Addr + "/24"}
		} else {
			op.Addr = ""
		}
		op, err = r.ask(h, op, req, leaving{})
	default:
		ops, err = r.gc(h, op, keys, rnd)
	}
	if ops == nil {
		ops = []Op{op}
	}
	for _, op := range ops {
		h.record(op)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(ops) > 0 {
		r.counts[string(ops[0].Verb)+" "+string(ops[0].Fate)]++
	}
	return err
}

// lastTold is an address that the key may have.
func (r *rally) lastTold(h *history, k Key) (addr string) {
	for _, op := range h.Ops() {
		if op.Verb == Add && op.Key == k && op.Fate == Answered {
			addr = op.Addr
		}
	}
	return addr
}

// ask sends the request of an op and fills in its answer.
func (r *rally) ask(h *history, op Op, req cni.Request, leave leaving) (Op, error) {
	op.Call = h.Now()
	if r.agent != nil { // it orders requests by their connections
		leave.connected = func() { op.Connected = h.Now() }
	}
	answer, f, err := ask(r.socket, req, leave)
	op.Back, op.Fate = h.Now(), f
	if err != nil {
		return op, err
	}
	switch {
	case f == Answered && op.Verb == Add:
		addrs, err := addresses(answer.IPs)
		if err != nil || len(addrs) != 1 {
			return op, fmt.Errorf("%s: told %v: %w", op, answer.IPs, err)
		}
		op.Addr = addrs[0].String()
	case f == Answered:
	case f == Abandoned && r.stand:
		op.Back = forever
	case f != Refused:
		return op, fmt.Errorf("%s: the agent is away", op)
	case leave.half && strings.Contains(answer.Error.Msg, "context canceled"):
		op.Fate, op.Back = Abandoned, forever
	case op.Verb == Add && answer.Error.Code == cni.CodeTryAgain && strings.Contains(answer.Error.Msg, "cancelled by a DEL"):
	case op.Verb == Add && !r.leave && answer.Error.Code == cni.CodeFull:
	case op.Verb == Check && answer.Error.Code == cni.CodeUnknown:
	case op.Verb == Check && answer.Error.Code == cni.CodeDiffers:
		op.Differs = true
	default:
		return op, fmt.Errorf("%s: code %d: %s", op, answer.Error.Code, answer.Error.Msg)
	}
	return op, nil
}

// gc lists some attachments of one network. The remaining ones stay until witnesses agree.
func (r *rally) gc(h *history, op Op, keys []Key, rnd *rand.Rand) ([]Op, error) {
	op.Verb = GC
	listed := []cni.Attachment{}
	var freed []Key
	for _, k := range keys {
		switch {
		case k.Network != op.Key.Network:
		case rnd.IntN(2) == 0:
			listed = append(listed, cni.Attachment{ContainerID: k.ContainerID, IfName: k.IfName})
		default:
			freed = append(freed, k)
		}
	}
	op, err := r.ask(h, op, cni.Request{Command: string(GC), Network: op.Key.Network, Attachments: listed}, leaving{})
	ops := []Op{}
	for _, k := range freed {
		op.Key = k
		ops = append(ops, op)
	}
	return ops, err
}

// end returns the history with the leases in the end. An ADD may repeat the lease of another
// client and be abandoned. A DEL that came between then leaves the lease to the agent, which
// takes it back a little later. So the leases are read again until an order explains them.
func (r *rally) end(h *history) (*history, error) {
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		held, err := r.quiet(h)
		if err != nil {
			return nil, err
		}
		ended := h.ended(held)
		if r.agent == nil || time.Now().After(limit) || !errors.Is(ended.checkKeys(searchLimit), errNoOrder) {
			return ended, nil
		}
	}
}

// quiet waits until the agent has done all requests and taken back the leases whose
// client was not told, and returns the leases.
func (r *rally) quiet(h *history) (map[Key]string, error) {
	// The loop is first come, first served: with this DEL, all before it is done.
	if _, f, err := ask(r.socket, Key{"fence", "fence", "eth0"}.request(Del), leaving{}); err != nil || f != Answered {
		return nil, fmt.Errorf("fence: %s: %w", f, err)
	}
	ops := h.Ops()
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		book, _, err := readBook(r.socket)
		if err != nil {
			return nil, err
		}
		held := map[Key]string{}
		unheard := ""
		for _, x := range book {
			if !slices.ContainsFunc(ops, func(op Op) bool { return op.Key == x.Key }) {
				continue // of another epoch
			}
			held[x.Key] = x.Addr.String()
			if !slices.ContainsFunc(ops, func(op Op) bool { return op.Key == x.Key && op.Verb == Add && op.Addr == x.Addr.String() }) {
				unheard += fmt.Sprintf(" %s by %s", x.Addr, x.Key)
			}
		}
		if unheard == "" {
			return held, nil
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("still held, and its client was not told:%s", unheard)
		}
	}
}

// TestClientsThatHangUp lets clients close their connections in the middle of
// an ADD: a lease whose client was not told must not stay.
func TestClientsThatHangUp(t *testing.T) {
	g := NewWithT(t)
	s := effort.Seed(t)
	n := newNode(t, roomyConf)
	a := n.start(t)
	rnd := random(s, 0)
	count := effort.Times(t, 800)
	attack.Begin(t, attack.HangUp).Add(count)
	var mu sync.Mutex
	told := map[Key]bool{}
	abandoned := 0
	var wg sync.WaitGroup
	for i := range 8 {
		own := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		wg.Go(func() {
			wait := 2 * time.Millisecond // about as long as an answer takes: then it matters most
			for x := range count / 8 {
				k := Key{"net", fmt.Sprintf("h%d-%d", i, x), "eth0"}
				_, f, err := ask(n.socket(), k.request(Add), leaving{after: wait*3/4 + time.Duration(own.Int64N(int64(wait/2)))})
				if f == Answered {
					wait -= wait / 16
				} else {
					wait += wait / 16
				}
				mu.Lock()
				if err != nil || f != Answered && f != Abandoned {
					t.Errorf("ADD %s: %s: %v", k, f, err)
				}
				told[k] = f == Answered
				if f == Abandoned {
					abandoned++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	g.Expect(abandoned).To(BeNumerically(">", 0))
	unheard := func() (left []Key) {
		book, _, err := readBook(n.socket())
		g.Expect(err).NotTo(HaveOccurred())
		for _, x := range book {
			if !told[x.Key] {
				left = append(left, x.Key)
			}
		}
		return left
	}
	g.Eventually(unheard, patience+time.Duration(count)*10*time.Millisecond, 20*time.Millisecond).Should(BeEmpty(), "of %d ADDs whose client went away", abandoned)
	for k, ok := range told {
		if _, f, err := ask(n.socket(), k.request(Check), leaving{}); err != nil || ok && f != Answered {
			t.Errorf("CHECK %s, whose ADD was answered: %s, %v", k, f, err)
		}
	}
	t.Logf("%d ADDs, %d were abandoned", count, abandoned)
	g.Expect(a.stop()).To(Succeed())
}
