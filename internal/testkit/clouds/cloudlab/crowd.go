// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Crowd has pods come and go on all nodes.
type Crowd struct {
	l    *Lab
	seed uint64
	stop chan struct{}
	all  sync.WaitGroup

	mu        sync.Mutex
	few, many int           // pods of a node
	pause     time.Duration // the longest one between two changes of a node
	serial    int
	live      []*Pod
	added     int
	deleted   int
	refused   int            // ADDs without success, which are followed by DEL and a new pod
	exchanges map[string]int // by kind: gateway or pod, and the family
	errs      []error
	refusals  map[string]int
}

// The longest pauses between two changes of a node's pods. While pods come and go calmly, about
// as many addresses cool down for two seconds as there are pods, however fast the machine is.
const (
	Lively = 200 * time.Millisecond
	Calm   = 2 * time.Second
)

// Crowd has pods come and go until Stop, from few to many on each node.
func (l *Lab) Crowd(seed uint64, few, many int) *Crowd {
	c := &Crowd{
		l:         l,
		seed:      seed,
		few:       few,
		many:      many,
		pause:     Lively,
		stop:      make(chan struct{}),
		exchanges: map[string]int{},
		refusals:  map[string]int{},
	}
	for i, n := range l.nodes {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		c.all.Go(func() { c.run(n, random) })
	}
	l.t.Cleanup(func() {
		c.Stop()
		for _, p := range c.live {
			_ = p.ns.Close() // all of it ends here
		}
	})
	return c
}

// Stop waits until what is under way has ended. Pods stay.
func (c *Crowd) Stop() {
	c.mu.Lock()
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.mu.Unlock()
	c.all.Wait()
}

func (c *Crowd) run(n *Node, random *rand.Rand) {
	for {
		mine := c.of(n)
		c.mu.Lock()
		few, many, pause := c.few, c.many, c.pause
		c.mu.Unlock()
		if len(mine) < few || len(mine) > many {
			pause = Lively
		}
		select {
		case <-c.stop:
			return
		case <-time.After(time.Duration(random.Int64N(int64(pause)))):
		}
		switch {
		case len(mine) < few || len(mine) < many && random.IntN(2) == 0:
			c.add(n, random)
		case len(mine) > 0:
			c.remove(mine[random.IntN(len(mine))])
		}
	}
}

// Between sets the least and the largest number of pods of a node, and the longest pause
// between two changes of them.
func (c *Crowd) Between(few, many int, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.few, c.many, c.pause = few, many, pause
}

// On returns the number of pods of a node.
func (c *Crowd) On(n *Node) int { return len(c.of(n)) }

// of returns the pods of a node.
func (c *Crowd) of(n *Node) (mine []*Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.live {
		if p.node == n {
			mine = append(mine, p)
		}
	}
	return mine
}

func (c *Crowd) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errs = append(c.errs, err)
}

func (c *Crowd) add(n *Node, random *rand.Rand) {
	c.mu.Lock()
	c.serial++
	name := fmt.Sprintf("pod-%d", c.serial)
	c.mu.Unlock()
	p, err := n.newPod(name)
	if err != nil {
		c.fail(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := p.add(ctx); err != nil {
		c.mu.Lock()
		c.refused++
		c.refusals[reason(err)]++
		c.mu.Unlock()
		if err := p.del(ctx); err != nil {
			c.fail(err)
		}
		return
	}
	c.mu.Lock()
	c.added++
	c.live = append(c.live, p)
	c.mu.Unlock()
	c.talk(ctx, p, random)
}

// reason returns the part of an ADD's error that many pods share.
func reason(err error) string {
	_, text, _ := strings.Cut(err.Error(), "failed (add): ")
	text, _, _ = strings.Cut(text, ": ")
	return text
}

func (c *Crowd) remove(p *Pod) {
	c.mu.Lock()
	for i, q := range c.live {
		if p == q {
			c.live = append(c.live[:i], c.live[i+1:]...)
			break
		}
	}
	c.deleted++
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := p.del(ctx); err != nil {
		c.fail(err)
	}
}

// talk sends packets between a new pod and the gateways, and a pod of another node.
func (c *Crowd) talk(ctx context.Context, p *Pod, random *rand.Rand) {
	partner := c.partner(p, random)
	for _, is4 := range []bool{true, false} {
		from, ok := p.end(is4)
		if !ok {
			continue
		}
		family := map[bool]string{true: "ipv4", false: "ipv6"}[is4]
		for _, gateway := range c.l.Gateways() {
			if gateway.Address.Is4() == is4 {
				c.exchange(ctx, "gateway "+family, from, gateway)
			}
		}
		if partner == nil {
			continue
		}
		if to, ok := partner.end(is4); ok {
			c.exchange(ctx, "pod "+family, from, to)
		}
	}
	if partner != nil {
		partner.use.RUnlock()
	}
}

// partner returns a pod of another node that stays until its lock is released; nil: there is none.
func (c *Crowd) partner(p *Pod, random *rand.Rand) *Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range random.Perm(len(c.live)) {
		q := c.live[i]
		if q.node == p.node || !q.use.TryRLock() {
			continue
		}
		if !q.gone {
			return q
		}
		q.use.RUnlock()
	}
	return nil
}

func (c *Crowd) exchange(ctx context.Context, kind string, from, to stage.End) {
	var failed error
	for range 2 {
		_, err := stage.Send(ctx, "udp", from, to)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.exchanges[kind]++
			return
		}
		failed = errors.Join(failed, err)
	}
	c.fail(failed)
}

// Sums are the figures of a crowd.
type Sums struct {
	Added, Deleted, Refused, Failed int
	Exchanges                       map[string]int
}

// String returns one line.
func (s Sums) String() string {
	return fmt.Sprintf("%d pods attached, %d deleted, %d refused, exchanges of packets %v, failed %d",
		s.Added, s.Deleted, s.Refused, s.Exchanges, s.Failed)
}

// Sums returns the figures so far.
func (c *Crowd) Sums() Sums {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Sums{c.added, c.deleted, c.refused, len(c.errs), maps.Clone(c.exchanges)}
}

// Verify fails the test if a packet or a DEL has failed, or if no packet was exchanged in a
// family, with a gateway or between nodes.
func (c *Crowd) Verify() {
	c.l.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.l.Expect(errors.Join(c.errs...)).NotTo(HaveOccurred())
	for _, kind := range c.l.kinds() {
		c.l.Expect(c.exchanges[kind]).NotTo(BeZero(), kind)
	}
	for text, n := range c.refusals {
		c.l.t.Logf("refused %d times: %s", n, text)
	}
}

// Verify fails the test if the judge or the hypervisor has seen what must not be, or if the
// API server has refused a program anything.
func (l *Lab) Verify() {
	l.t.Helper()
	l.VerifyAddresses()
	bad, packets := l.hypervisor.strays()
	l.Expect(bad).To(BeEmpty(), "packets with foreign sources")
	l.Expect(packets).NotTo(BeZero())
	l.must(l.hypervisor.err())
	l.Expect(l.refusals()).To(BeEmpty(), "what the programs' roles do not permit")
}

// VerifyAddresses fails the test if so far an address was held twice, was taken away under a
// pod, or was released without the agent's agreement. Unlike Verify it can be called while pods come and go.
func (l *Lab) VerifyAddresses() {
	l.t.Helper()
	v := l.Judge.Verdict()
	l.Expect(v.Twice).To(BeEmpty(), "addresses that two pods held")
	l.Expect(v.Foreign).To(BeEmpty(), "addresses that the cloud took away under a pod")
	l.Expect(v.Disagreed).To(BeEmpty(), "releases to which the agent had not agreed")
}
