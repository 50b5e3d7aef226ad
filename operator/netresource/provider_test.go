// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
)

// recorder is a provider that writes down its calls, and does something else for those that
// are in its way.
type recorder struct {
	*cloudpool.Provider

	mu    sync.Mutex
	calls []string
	way   map[string]func(context.Context) error
}

// record writes down a call. The error is that of what is in its way.
func (p *recorder) record(ctx context.Context, what string) error {
	p.mu.Lock()
	f := p.way[what]
	p.calls = append(p.calls, what)
	p.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx)
}

// put has f run before each such call; nil ends that.
func (p *recorder) put(what string, f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.way[what] = f
}

// made returns the calls so far whose names begin so.
func (p *recorder) made(prefixes ...string) (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(c, prefix) }) {
			all = append(all, c)
		}
	}
	return all
}

func (p *recorder) State(ctx context.Context, set *v1alpha1.NetResourceSet) (s netresource.State, err error) {
	if err := errors.Join(p.record(ctx, "State "+string(set.UID)), p.record(ctx, "look at "+set.Name)); err != nil {
		return s, err
	}
	return p.Provider.State(ctx, set)
}

func (p *recorder) Read(ctx context.Context) (time.Time, error) {
	began, err := p.Provider.Read(ctx)
	return began, errors.Join(err, p.record(ctx, "Read"))
}

func (p *recorder) Allocate(ctx context.Context, set *v1alpha1.NetResourceSet, wanted int) (netresource.Allocation, error) {
	got, err := p.Provider.Allocate(ctx, set, wanted)
	return got, errors.Join(err, p.record(ctx, "Allocate "+set.Name))
}

func (p *recorder) Forget(ctx context.Context, node string) error {
	if err := p.record(ctx, "Forget "+node); err != nil {
		return err
	}
	return p.Provider.Forget(ctx, node)
}

// recorded runs a test with a provider that writes down its calls.
func recorded(t *testing.T, test func(g *WithT, r *rig, p *recorder)) {
	cloud, config := defaults()
	config.ReleaseExcess = true
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		g.Expect(r.manager.Close()).To(Succeed())
		p := &recorder{Provider: providerOf(r.cloud), way: map[string]func(context.Context) error{}}
		config.Provider = p
		r.start(config)
		test(g, r, p)
	})
}

// The cloud has done what the call asked for, and its answer is lost.
func TestACallThatEndsWithItsDeadlineIsReadBack(t *testing.T) {
	recorded(t, func(g *WithT, r *rig, p *recorder) {
		p.put("Allocate a", func(ctx context.Context) error {
			<-ctx.Done()
			return errors.Join(ctx.Err(), p.record(context.Background(), "answered"))
		})
		a := r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(25 * time.Second)
		g.Expect(r.level("a")).To(Equal([2]int{0, 0}), "nothing is decided before the deadline")
		p.put("Allocate a", nil)
		a.use(4)
		rest(time.Minute)
		g.Expect(r.level("a")).To(Equal([2]int{12, 4}))
		r.consistent("a")
		calls := p.made("Allocate", "answered", "Read")
		calls = calls[slices.Index(calls, "answered"):]
		g.Expect(calls[:2]).To(Equal([]string{"answered", "Read"}), "a reading comes before the next call")
	})
}

// A provider that panics is one node's trouble.
func TestAProviderThatPanics(t *testing.T) {
	recorded(t, func(g *WithT, r *rig, p *recorder) {
		p.put("look at a", func(context.Context) error { panic("a defect") })
		r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		r.add("z", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		g.Expect(r.level("z")).To(Equal([2]int{8, 0}))
		nrs, err := r.api.Get("a")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nrs.Status.IPAM.OperatorStatus.Error).To(ContainSubstring("the provider has panicked: a defect"))
		p.put("look at a", nil)
		rest(time.Minute)
		g.Expect(r.level("a")).To(Equal([2]int{8, 0}), "it goes on when the provider does")
	})
}

// A deleted node is forgotten before the next one of its name is served. A call for it may be
// under way, and the provider may be unable to forget it at first.
func TestANodeIsForgottenBeforeTheNextOneOfItsName(t *testing.T) {
	recorded(t, func(g *WithT, r *rig, p *recorder) {
		slow := make(chan struct{})
		p.put("Allocate a", func(context.Context) error { <-slow; return nil })
		r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Second)
		g.Expect(p.made("Allocate")).To(HaveLen(1))
		nrs, err := r.api.Get("a")
		g.Expect(err).NotTo(HaveOccurred())
		before := "State " + string(nrs.UID)
		forget := errors.New("it cannot yet")
		p.put("Forget a", func(context.Context) error { return forget })
		p.put("Allocate a", nil)
		r.again("a", v1alpha1.IPAMSpec{PreAllocate: 4})
		nrs, err = r.api.Get("a")
		g.Expect(err).NotTo(HaveOccurred())
		after := "State " + string(nrs.UID)
		g.Expect(after).NotTo(Equal(before))
		rest(time.Second)
		g.Expect(p.made("Forget")).To(BeEmpty(), "a call for the name is under way")
		states := p.made("State")
		close(slow)
		rest(time.Minute)
		g.Expect(p.made("State")).To(Equal(states), "the one before is not forgotten")
		g.Expect(p.made("Forget")).NotTo(BeEmpty())
		nrs, _ = r.api.Get("a")
		g.Expect(nrs.Spec.IPAM.Pool).To(BeEmpty())
		p.put("Forget a", nil)
		rest(time.Minute)
		calls := p.made("State", "Forget")
		last := len(calls) - 1 - slices.Index(slices.Collect(backward(calls)), "Forget a")
		g.Expect(calls[:last]).NotTo(ContainElement(after))
		g.Expect(calls[last:]).NotTo(ContainElement(before))
		g.Expect(calls[last:]).To(ContainElement(after))
	})
}

func backward(all []string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, x := range slices.Backward(all) {
			if !yield(x) {
				return
			}
		}
	}
}

// A deleted node is forgotten, also if the provider cannot at first.
func TestADeletedNodeIsForgottenInTheEnd(t *testing.T) {
	recorded(t, func(g *WithT, r *rig, p *recorder) {
		r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		p.put("Forget a", func(context.Context) error { return errors.New("it cannot yet") })
		g.Expect(r.manager.Delete("a")).To(Succeed())
		states := p.made("State")
		rest(time.Minute)
		failed := len(p.made("Forget"))
		g.Expect(failed).To(BeNumerically(">", 1))
		p.put("Forget a", nil)
		rest(time.Minute)
		g.Expect(p.made("Forget")).To(HaveLen(failed+1), "once more, and no further time")
		g.Expect(p.made("State")).To(Equal(states))
	})
}

// A node that is deleted while a round of it runs is forgotten when the round ends, and the
// provider gets no call for it after that.
func TestNoCallFollowsTheForget(t *testing.T) {
	for name, block := range map[string]func(r *rig, p *recorder, slow chan struct{}){
		"a call of the provider": func(_ *rig, p *recorder, slow chan struct{}) {
			p.put("Allocate a", func(context.Context) error { <-slow; return nil })
		},
		"a write": func(r *rig, _ *recorder, slow chan struct{}) {
			r.api.Fault = func(call, _ string) error {
				if call == "update" {
					<-slow
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			recorded(t, func(g *WithT, r *rig, p *recorder) {
				slow := make(chan struct{})
				block(r, p, slow)
				r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
				rest(time.Second)
				g.Expect(r.api.Delete("a")).To(Succeed())
				g.Expect(r.manager.Delete("a")).To(Succeed())
				g.Expect(p.made("Forget")).To(BeEmpty())
				before := len(p.made("State", "Allocate", "Forget"))
				close(slow)
				rest(time.Minute)
				g.Expect(p.made("State", "Allocate", "Forget")[before:]).To(Equal([]string{"Forget a"}))
			})
		})
	}
}
