// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cadastre/cadastre/operator/runner"
)

// trial runs one Runner with controllers that record what happens to them.
type trial struct {
	Gomega
	runner  *runner.Runner
	client  *fake.Clientset
	term    atomic.Pointer[runner.Term]
	active  atomic.Int32 // controllers that run
	refused atomic.Value // []error: why the API server refuses to write the lease
	hangs   atomic.Value // chan struct{}: the API server answers nothing about leases until it is closed
	stop    context.CancelFunc
	ended   chan error
}

// start runs a process with an election. Its controllers take a second to end.
func start(t *testing.T, first func(ctx context.Context, term *runner.Term) error) *trial {
	client := fake.NewSimpleClientset() //nolint:staticcheck // with field management it is a hundred times slower
	x := &trial{Gomega: NewWithT(t), client: client, ended: make(chan error, 1)}
	x.refused.Store([]error{nil})
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := x.refused.Load().([]error)[0]
		return err != nil, nil, err
	})
	client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if answers, ok := x.hangs.Load().(chan struct{}); ok {
			<-answers
		}
		return false, nil, nil
	})
	controller := func(name string, run func(context.Context) error) runner.Controller {
		return runner.Controller{Name: name, Run: func(ctx context.Context) error {
			x.active.Add(1)
			defer x.active.Add(-1)
			err := run(ctx)
			time.Sleep(time.Second)
			return err
		}}
	}
	x.runner = runner.New(runner.Config{
		Identity: "one",
		Election: &runner.Election{
			Leases:        x.client.CoordinationV1(),
			Namespace:     "kube-system",
			Name:          "cadastre-operator",
			LeaseDuration: 15 * time.Second,
			RenewDeadline: 10 * time.Second,
			RetryPeriod:   2 * time.Second,
		},
		Controllers: func(term *runner.Term) ([]runner.Controller, error) {
			x.term.Store(term)
			return []runner.Controller{
				controller("first", func(ctx context.Context) error { return first(ctx, term) }),
				controller("second", func(ctx context.Context) error { return runUntilStopped(ctx, term) }),
			}, nil
		},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	x.stop = cancel
	go func() {
		err := x.runner.Run(ctx)
		x.Expect(x.active.Load()).To(BeZero(), "Run waits for all controllers")
		x.ended <- err
	}()
	return x
}

func runUntilStopped(ctx context.Context, _ *runner.Term) error {
	<-ctx.Done()
	return nil
}

// hold makes a process the holder of the lease.
func (x *trial) hold(holder string) {
	leases := x.client.CoordinationV1().Leases("kube-system")
	lease, err := leases.Get(context.Background(), "cadastre-operator", metav1.GetOptions{})
	x.Expect(err).NotTo(HaveOccurred())
	lease.Spec.HolderIdentity = &holder
	*lease.Spec.LeaseTransitions++
	x.Expect(x.client.Tracker().Update(coordination.SchemeGroupVersion.WithResource("leases"), lease, "kube-system")).To(Succeed())
	x.refused.Store([]error{apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, lease.Name, errors.New("it was modified"))})
}

func (x *trial) holder() string {
	lease, err := x.client.CoordinationV1().Leases("kube-system").Get(context.Background(), "cadastre-operator", metav1.GetOptions{})
	x.Expect(err).NotTo(HaveOccurred())
	return *lease.Spec.HolderIdentity
}

func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRunnerReleasesTheLeaseAfterTheLastController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, runUntilStopped)
		advance(time.Minute)
		x.Expect(x.runner.Leading()).To(BeTrue())
		x.Expect(x.runner.Running()).To(HaveLen(2))
		x.Expect(x.runner.Running()[0].Waiting()).To(Succeed())
		x.Expect(x.term.Load().Term()).To(Equal("one/0"))
		x.Expect(x.term.Load().Since()).NotTo(BeZero())
		x.stop()
		advance(500 * time.Millisecond)
		x.Expect(x.active.Load()).To(Equal(int32(2)))
		x.Expect(x.holder()).To(Equal("one"))
		x.Expect(<-x.ended).To(Succeed())
		x.Expect(x.holder()).To(BeEmpty())
		x.Expect(x.runner.Leading()).To(BeFalse())
	})
}

func TestRunnerStopsAllControllersWithOne(t *testing.T) {
	for name, result := range map[string]error{"returned before it was stopped": nil, "broken": errors.New("broken")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := start(t, func(ctx context.Context, _ *runner.Term) error {
					_ = runner.Wait(ctx, time.Minute)
					return result
				})
				x.Expect(<-x.ended).To(MatchError(And(ContainSubstring("controller first: "), ContainSubstring(name))))
				x.Expect(x.holder()).To(BeEmpty())
			})
		})
	}
}

func TestTermStopsAllControllersWhenItFindsAnotherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, runUntilStopped)
		advance(time.Second) // the election looks again after two
		x.Expect(x.term.Load().Check(t.Context())).To(Succeed())
		x.hold("two")
		x.Expect(x.term.Load().Check(t.Context())).To(MatchError(runner.ErrDeposed))
		x.Expect(<-x.ended).To(MatchError(runner.ErrDeposed))
		x.Expect(x.holder()).To(Equal("two"), "the lease of another process stays")
	})
}

func TestRunnerStopsControllersWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, runUntilStopped)
		advance(time.Second)
		x.hold("two")
		x.Expect(<-x.ended).To(MatchError(runner.ErrLeaseLost))
		x.Expect(x.holder()).To(Equal("two"))
	})
}

func TestAliveFailsWhenTheElectionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := start(t, runUntilStopped)
		x.Expect(x.runner.Alive()).To(Succeed())
		advance(time.Hour)
		x.Expect(x.runner.Alive()).To(Succeed())
		answers := make(chan struct{})
		x.hangs.Store(answers)
		advance(20 * time.Second)
		x.Expect(x.runner.Alive()).To(Succeed())
		advance(10 * time.Second)
		x.Expect(x.runner.Alive()).To(MatchError(ContainSubstring("the election used the lease last")))
		close(answers)
		x.stop()
		<-x.ended
	})
}

func TestRunnerWithoutElectionHasOneTerm(t *testing.T) {
	g := NewWithT(t)
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "x"})
	registry := prometheus.NewRegistry()
	r := runner.New(runner.Config{
		Identity: "one",
		Registry: registry,
		Controllers: func(term *runner.Term) ([]runner.Controller, error) {
			g.Expect(term.Term()).To(Equal("one"))
			g.Expect(term.Since()).To(BeZero())
			return []runner.Controller{{
				Name:    "only",
				Run:     func(ctx context.Context) error { return errors.Join(term.Check(ctx), errors.New("done")) },
				Ready:   func() error { return errors.New("never") },
				Metrics: []prometheus.Collector{counter},
			}}, nil
		},
		Log: slog.New(slog.DiscardHandler),
	})
	g.Expect(r.Run(t.Context())).To(MatchError("controller only: done"))
	g.Expect(registry.Register(counter)).NotTo(Succeed(), "it is registered")
	g.Expect(r.Alive()).To(Succeed())
}
