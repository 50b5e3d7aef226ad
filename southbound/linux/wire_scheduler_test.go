// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// scheduled returns a scheduler with all descriptors, and its running background.
func (l *wireLab) scheduled(now func() time.Time) *southbound.Scheduler {
	l.t.Helper()
	all, err := Descriptors(Options{Namespace: l.host.Path()})
	l.must(err)
	s := southbound.New(southbound.Options{Now: now}, all...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		l.Expect(<-ended).To(Succeed())
		l.Expect(s.Close()).To(Succeed())
	})
	return s
}

// TestTheSchedulerKeepsWiresComplete commits values, damages the kernel's objects, and
// waits until Run has repaired them; a downstream resync repairs what it does not see.
func TestTheSchedulerKeepsWiresComplete(t *testing.T) {
	l := newWireLab(t, Options{})
	clock := &quietClock{}
	s, ctx := l.scheduled(clock.now), context.Background()
	blue := l.podOf("blue", 1007, 50)
	p, other := l.pod(), l.pod()
	values := []controller.Value{
		{Key: kv.SinkNode, Message: &kv.NodeNetwork{Id: 5, PodSubnets: []string{"10.1.8.0/24", "fd01::/64"}}},
		{Key: "network/blue", Message: &kv.Network{Name: "blue", Table: 1007}},
		{Key: "network/default", Message: &kv.Network{Name: "default"}},
	}
	for _, x := range []*labPod{p, other, blue} {
		values = append(values, controller.Value{Key: x.key, Message: x.value})
	}
	resync := controller.Transaction{Method: controller.FullResync, Values: values}
	l.must(s.Commit(ctx, resync))
	l.complete(p, other, blue)
	for _, x := range l.damages(p) {
		clock.pass()
		l.must(x.do())
		if x.announce {
			l.Eventually(func() string { return l.retrieved(p, other, blue)[p.key] }, answerTime).Should(Equal(done), x.what)
		} else {
			l.must(s.Commit(ctx, controller.Transaction{Method: controller.DownstreamResync, Values: values}))
		}
		l.complete(p, other, blue)
	}
	// a network that goes takes its pods along, and they come back with it
	network := func(m *kv.Network) {
		v := controller.Value{Key: "network/blue"}
		if m != nil {
			v.Message = m
		}
		l.must(s.Commit(ctx, controller.Transaction{Method: controller.Update, Values: []controller.Value{v}}))
	}
	network(nil)
	l.complete(p, other)
	network(&kv.Network{Name: "blue", Table: 1007})
	l.complete(p, other, blue)
	// a deletion and an addition with the same address in one transaction
	fresh := l.podWith(l.namespace(), "pod/k8s/a-key-before-all-others/eth0", 1)
	swap := []controller.Value{{Key: fresh.key, Message: fresh.value}}
	for _, x := range []*labPod{p, other} {
		if x.ip[0] == fresh.ip[0] {
			swap = append(swap, controller.Value{Key: x.key})
		}
	}
	l.must(s.Commit(ctx, controller.Transaction{Method: controller.Update, Values: swap}))
	for _, ip := range fresh.ip {
		_, err := l.exchange(l.host, fresh.Namespace, ip, 10)
		l.Expect(err).NotTo(HaveOccurred())
	}
	l.must(s.Commit(ctx, controller.Transaction{Method: controller.FullResync}))
	l.complete()
	l.Eventually(func() int {
		all, err := listLinks(l.wires.host, vethKind)
		l.must(err)
		return len(all)
	}, answerTime).Should(BeZero(), "the detached links are swept")
}
