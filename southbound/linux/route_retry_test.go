// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// running calls f while Run runs, in simulated time.
func running(t *testing.T, f func(g Gomega, r *retrying)) {
	n := newNode(t, routeOptions{})
	synctest.Test(t, func(t *testing.T) {
		d, err := newRoutes(Options{Namespace: n.ns.Path()})
		n.Expect(err).NotTo(HaveOccurred())
		r := &retrying{node: n, began: time.Now()}
		unwatched := d.tampered(r.around)
		unwatched.Watch = nil // real time would pass
		r.sink = scheduled(routeOptions{OnFailure: func(key string, err error) {
			_, _ = r.sink.Dump(context.Background()) // which it may
			r.note("given up: %s %v", key, err)
		}}, unwatched, d)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.sink.Run(ctx) }()
		f(NewWithT(t), r)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = r.sink.Close()
	})
}

type retrying struct {
	node  *node
	sink  *routeSink
	began time.Time

	mu  sync.Mutex
	bad []string
	log []string
}

func (r *retrying) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, time.Since(r.began).String()+" "+fmt.Sprintf(format, args...))
}

// lines is the log until now, and begins a new one.
func (r *retrying) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.log
	r.log = nil
	return all
}

// refuse makes the calls fail only for these destinations.
func (r *retrying) refuse(dsts ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad = dsts
}

func (r *retrying) around(operation, key string, call func() error) error {
	r.mu.Lock()
	bad := slices.Contains(r.bad, strings.TrimPrefix(key, kv.SinkRoutePrefix))
	r.mu.Unlock()
	if bad {
		r.note("%s %s fails", operation, key)
		return southbound.Unchanged(unix.EIO)
	}
	r.note("%s %s", operation, key)
	return call()
}

// commit is an update that is tried again as retry says.
func (r *retrying) commit(retry controller.Retry, txn controller.Transaction) error {
	txn.Retry = retry
	return commit(r.sink, txn)
}

// wait lets time pass.
func (r *retrying) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRetries(t *testing.T) {
	seconds := controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 3}
	doubling := seconds
	doubling.ExponentialBackoff = true
	a, b := to("10.1.7.0/24", "192.168.16.7"), to("10.1.8.0/24", "192.168.16.8")
	const gaveUp = "given up: route/10.1.7.0/24 input/output error"
	for _, x := range []struct {
		what  string
		retry controller.Retry
		want  []string
	}{
		{"every second", seconds, []string{"0s create route/10.1.7.0/24 fails", "0s create route/10.1.8.0/24", "1s create route/10.1.7.0/24 fails", "2s create route/10.1.7.0/24 fails", "3s create route/10.1.7.0/24 fails", "3s " + gaveUp}},
		{"later and later", doubling, []string{"0s create route/10.1.7.0/24 fails", "0s create route/10.1.8.0/24", "1s create route/10.1.7.0/24 fails", "3s create route/10.1.7.0/24 fails", "7s create route/10.1.7.0/24 fails", "7s " + gaveUp}},
		{"at once", controller.Retry{Enabled: true, MaxAttempts: 1}, []string{"0s create route/10.1.7.0/24 fails", "0s create route/10.1.8.0/24", "0s create route/10.1.7.0/24 fails", "0s " + gaveUp}},
		{"not at all", controller.Retry{Delay: time.Second, MaxAttempts: 3}, []string{"0s create route/10.1.7.0/24 fails", "0s create route/10.1.8.0/24"}},
		{"zero times", controller.Retry{Enabled: true}, []string{"0s create route/10.1.7.0/24 fails", "0s create route/10.1.8.0/24"}},
	} {
		running(t, func(g Gomega, r *retrying) {
			r.refuse("10.1.7.0/24")
			g.Expect(r.commit(x.retry, update(a, b))).To(MatchError(unix.EIO))
			r.wait(time.Hour)
			g.Expect(r.lines()).To(Equal(x.want), x.what)
		})
	}
}

func TestRetriesThatWork(t *testing.T) {
	running(t, func(g Gomega, r *retrying) {
		retry := controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 5}
		r.refuse("10.1.7.0/24", "10.1.6.0/24")
		g.Expect(r.commit(retry, resync(to("10.1.7.0/24", "192.168.16.7")))).To(MatchError(unix.EIO))
		r.wait(1500 * time.Millisecond)
		r.refuse()
		r.wait(time.Hour)
		g.Expect(r.lines()).To(Equal([]string{"0s create route/10.1.7.0/24 fails", "1s create route/10.1.7.0/24 fails", "2s create route/10.1.7.0/24"}))
		g.Expect(dump(r.sink)).To(Equal([]string{"10.1.7.0/24 192.168.16.7 10-1-7-0-24"}))

		r.refuse("10.1.7.0/24") // a removal, of a resync that has no value for it
		g.Expect(r.commit(retry, resync())).To(MatchError(unix.EIO))
		r.refuse()
		r.wait(time.Hour)
		g.Expect(r.node.routes()).To(BeEmpty())
	})
}

func TestEachKeyHasItsTime(t *testing.T) {
	running(t, func(g Gomega, r *retrying) {
		r.refuse("10.1.7.0/24", "10.1.8.0/24")
		g.Expect(r.commit(controller.Retry{Enabled: true, Delay: 5 * time.Second, MaxAttempts: 1}, update(to("10.1.7.0/24", "192.168.16.7")))).To(MatchError(unix.EIO))
		g.Expect(r.commit(controller.Retry{Enabled: true, Delay: 2 * time.Second, MaxAttempts: 2}, update(to("10.1.8.0/24", "192.168.16.8")))).To(MatchError(unix.EIO))
		r.refuse()
		_ = r.lines()
		r.wait(2 * time.Second)
		r.refuse("10.1.8.0/24")
		g.Expect(r.commit(controller.Retry{}, update(no("10.1.9.0/24")))).To(Succeed())
		r.wait(time.Hour)
		g.Expect(r.lines()).To(Equal([]string{"2s create route/10.1.8.0/24", "5s create route/10.1.7.0/24"}))
	})
}

func TestNewerTransactionsEndRetries(t *testing.T) {
	retry := controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 3}
	for _, x := range []struct {
		what  string
		newer controller.Transaction
		want  []string // of the kernel
		tried bool
	}{
		{"another value", update(to("10.1.7.0/24", "192.168.16.17")), []string{"10.1.7.0/24 via 192.168.16.17 proto 202"}, false},
		{"no value", update(no("10.1.7.0/24")), []string{}, false},
		{"a resync", resync(), []string{}, false},
		{"an invalid value", update(to("10.1.7.0/24", "nonsense")), []string{}, false},
		{"another key", update(no("10.1.8.0/24")), []string{"10.1.7.0/24 via 192.168.16.7 proto 202"}, true},
		{"one that was reverted", reverting(to("10.1.7.0/24", "192.168.16.17"), to("10.1.8.0/24", "nonsense")), []string{"10.1.7.0/24 via 192.168.16.7 proto 202"}, true},
	} {
		running(t, func(g Gomega, r *retrying) {
			r.refuse("10.1.7.0/24")
			g.Expect(r.commit(retry, update(to("10.1.7.0/24", "192.168.16.7")))).To(MatchError(unix.EIO))
			r.refuse()
			_ = commit(r.sink, x.newer)
			_ = r.lines()
			r.wait(time.Hour)
			g.Expect(r.node.routes()).To(Equal(x.want), x.what)
			g.Expect(len(r.lines()) > 0).To(Equal(x.tried), x.what)
		})
	}
}

func TestWhatIsNotTriedAgain(t *testing.T) {
	running(t, func(g Gomega, r *retrying) {
		retry := controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 3}
		g.Expect(r.commit(retry, update(to("10.1.7.0/24", "nonsense")))).To(HaveOccurred())
		r.refuse("10.1.8.0/24")
		g.Expect(r.commit(retry, reverting(to("10.1.8.0/24", "192.168.16.8")))).To(MatchError(unix.EIO))
		for _, f := range r.sink.Status().Failed {
			g.Expect(f.Retry).To(BeZero())
		}
		_ = r.lines()
		r.wait(time.Hour)
		g.Expect(r.lines()).To(BeEmpty(), "an invalid value, a transaction that was reverted")
	})
}

func TestRetriesEndWithTheSink(t *testing.T) {
	running(t, func(g Gomega, r *retrying) {
		r.refuse("10.1.8.0/24")
		g.Expect(r.commit(controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 3}, update(to("10.1.8.0/24", "192.168.16.8")))).To(MatchError(unix.EIO))
		_ = r.lines()
		g.Expect(r.sink.Close()).To(Succeed())
		r.wait(time.Hour)
		g.Expect(r.lines()).To(BeEmpty())
	})
}

// TestRetriesInTheKernel waits until a gateway can be reached.
func TestRetriesInTheKernel(t *testing.T) {
	n := newNode(t, routeOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.sink.Run(ctx) }()
	defer func() {
		cancel()
		n.Expect(<-ended).To(Succeed())
	}()
	txn := update(to("10.1.7.0/24", "172.16.0.7"))
	txn.Retry = controller.Retry{Enabled: true, Delay: time.Millisecond, MaxAttempts: 10000}
	n.Expect(n.commit(txn)).To(MatchError(unix.ENETUNREACH))
	n.inside(func() error { return address("eth0", "172.16.0.5/24") })
	n.Eventually(func() []string { return dump(n.sink) }, 10*time.Second).Should(Equal([]string{"10.1.7.0/24 172.16.0.7 10-1-7-0-24"}))
}
