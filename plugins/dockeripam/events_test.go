// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

// change opens pools.
func change(names ...string) ipamapi.PoolChange {
	var c ipamapi.PoolChange
	for i, name := range names {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16)
		c.Open = append(c.Open, ipamapi.PoolGrant{Pool: ledger.Pool{Name: name}, Blocks: []netip.Prefix{block}})
	}
	return c
}

func TestPoolsChange(t *testing.T) {
	g := NewWithT(t)
	ev := &dockeripam.PoolsChange{Change: change("docker/a", "docker/b")}
	ev.Change.Close = []ipamapi.PoolClosing{{Pool: "docker/c"}}
	g.Expect(ev.GetName()).To(Equal("Docker Pools Change"))
	g.Expect(ev.String()).To(Equal("Docker Pools Change\n* open docker/a: [10.0.0.0/16]\n* open docker/b: [10.1.0.0/16]\n* close docker/c"))
	g.Expect(ev.Method()).To(Equal(controller.Update))
	g.Expect(ev.TransactionType()).To(Equal(controller.RevertOnFailure))
	g.Expect(ev.Direction()).To(Equal(controller.Forward))
	g.Expect(ev.IsBlocking()).To(BeTrue())

	p := dockeripam.NewPlugin(dockeripam.Deps{})
	g.Expect(p.String()).To(Equal("dockeripam"))
	g.Expect(p.HandlesEvent(ev)).To(BeTrue())
	g.Expect(p.HandlesEvent(&controller.DBResync{})).To(BeFalse())
	g.Expect(errors.Join(p.Init(), p.AfterInit(), p.Close(), p.Revert(ev), p.Resync(nil, nil, 0, nil))).To(Succeed())
}

// An invalid change does not change the ledger, and does not stop the loop.
func TestInvalidPoolsChange(t *testing.T) {
	n, e := run(t)
	id := e.pool(n, "10.1.0.0/16")
	e.address(n, id, "")
	opener := make(chan ipamapi.PoolOpener, 1)
	n.Expect(n.stop()).To(BeEmpty())
	n.deps.NewDriver = func(ctx context.Context, o ipamapi.PoolOpener) (dockeripam.Driver, error) {
		opener <- o
		return n.newDriver(ctx, o)
	}
	e = n.begin()
	pools := <-opener
	bad := change("docker/fine", "docker/bad")
	bad.Open[1].Blocks = append(bad.Open[1].Blocks, bad.Open[1].Blocks...)
	n.Expect(pools.Change(t.Context(), bad)).To(MatchError(ContainSubstring("open pool")))
	n.Expect(n.pools()).To(Equal([]string{"10.1.0.0/16"}))
	n.failing.Store(true)
	n.Expect(pools.Change(t.Context(), change("docker/fine"))).To(MatchError(journal.ErrInjected))
	n.failing.Store(false)
	n.Expect(n.pools()).To(Equal([]string{"10.1.0.0/16"}))
	n.Expect(e.address(n, id, "")).To(Equal("10.1.0.2/16"))
	n.Expect(pools.Change(t.Context(), change("docker/fine"))).To(Succeed())
	n.Expect(pools.Change(t.Context(), ipamapi.PoolChange{Close: []ipamapi.PoolClosing{{Pool: "docker/fine"}}})).To(Succeed())
	done, cancel := context.WithCancel(t.Context())
	cancel()
	n.Expect(pools.Change(done, change("docker/late"))).To(MatchError(context.Canceled))
	n.Eventually(n.pools).Should(Or(Equal([]string{"10.1.0.0/16"}), ContainElement("docker/late")), "its outcome is not known")
}

// deaf is a loop that handles the first event only.
type deaf struct{ events int }

func (d *deaf) PushEvent(ev controller.Event) error {
	if d.events++; d.events == 1 {
		ev.Done(nil)
	}
	return nil
}

func (d *deaf) PushEventWait(_ context.Context, ev controller.Event) error { return d.PushEvent(ev) }

// An engine must not wait forever for the loop.
func TestLoopThatHandlesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		p := dockeripam.NewPlugin(dockeripam.Deps{EventLoop: &deaf{}, NewDriver: func(ctx context.Context, o ipamapi.PoolOpener) (dockeripam.Driver, error) {
			failed <- o.Change(context.Background(), change("docker/a"))
			return nothing{}, nil
		}})
		ended := make(chan error, 1)
		began := time.Now()
		go func() { ended <- p.Run(ctx) }()
		g.Expect(<-failed).To(MatchError(And(ContainSubstring("wait for Docker Pools Change"), ContainSubstring("the event loop has not handled it for 30s"))))
		g.Expect(time.Since(began)).To(Equal(30 * time.Second))
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
}

// The driver starts after the first resync, and stops waiting when the plugin ends.
func TestDriverStartsAfterTheFirstResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		p := dockeripam.NewPlugin(dockeripam.Deps{EventLoop: &deaf{events: 1}, NewDriver: func(context.Context, ipamapi.PoolOpener) (dockeripam.Driver, error) {
			t.Error("there was no resync")
			return nothing{}, nil
		}})
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Hour)
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
}
