// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// leaseTime is the lease duration of the operators of these tests.
const leaseTime = 3 * time.Second

// electing are the flags of operators that are several.
func (c *cluster) electing(o nodeipam.Options) []string {
	return append(append(flags(o), beside(o)...), "--controllers=nodeipam", "--leader-elect=true", "--leader-elect-resource-name="+c.lease,
		"--leader-elect-lease-duration="+leaseTime.String(), "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=300ms")
}

// holder returns the holder of the lease that the operators compete for.
func (c *cluster) holder() (string, error) {
	l, err := c.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(c.t.Context(), c.lease, getOptions())
	if err != nil || l.Spec.HolderIdentity == nil {
		return "", err
	}
	return *l.Spec.HolderIdentity, nil
}

// TestLeadersFight: of two operators the leader is killed, or frozen for longer
// than its lease and thawed while the other one leads, and all the time nodes
// are created. The judge sees to it that no CIDR is given twice.
func TestLeadersFight(t *testing.T) {
	c := newCluster(t)
	g := c.g
	flags := c.electing(nodeipam.Options{Allocate: true, Cluster: "10.96.0.0/11"})
	leader := newOperator(t, c.kubeconfig, flags...)
	c.create("first")
	c.awaitNumbered("first")
	standby := newOperator(t, c.kubeconfig, flags...)
	for round := range 4 {
		before, err := c.holder()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(before).NotTo(BeEmpty())
		some := c.createSteadily(fmt.Sprint("round-", round))
		some.await(20)
		freeze := round%2 == 1
		if freeze {
			leader.signal(g, syscall.SIGSTOP)
		} else {
			leader.kill()
		}
		g.Eventually(c.holder, patience, pace).ShouldNot(Equal(before), "no operator has taken over")
		c.awaitNumbered(some.await(10)...)
		if freeze {
			leader.signal(g, syscall.SIGCONT) // it believes to lead, for a moment
		}
		some.await(40)
		c.awaitNumbered(some.end()...)
		g.Eventually(leader.ended, patience).Should(BeClosed(), "who leads no more ends")
		leader, standby = standby, newOperator(t, c.kubeconfig, flags...)
	}
	g.Expect(leader.hasEnded()).To(Succeed())
	leader.stop(g)
	c.create("last")
	c.awaitNumbered("last")
	t.Logf("%d nodes were numbered by 5 leaders", len(c.names()))
}

// steady creates nodes one after the other, until it is ended.
type steady struct {
	g     *WithT
	stop  chan struct{}
	ended chan struct{}

	mu    sync.Mutex
	names []string
	err   error
}

// createSteadily begins to create nodes.
func (c *cluster) createSteadily(prefix string) *steady {
	s := &steady{g: c.g, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		for i := 0; ; i++ {
			select {
			case <-s.stop:
				return
			case <-again.C:
			}
			name := fmt.Sprintf("%s-%05d", prefix, i)
			_, err := c.client.CoreV1().Nodes().Create(c.t.Context(), newNode(name), createOptions())
			s.mu.Lock()
			s.names, s.err = append(s.names, name), err
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	c.t.Cleanup(func() { <-s.ended }) // its requests end with the test's context
	return s
}

// created are the nodes so far.
func (s *steady) created() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[:len(s.names):len(s.names)], s.err
}

// await waits until there are n more nodes, and answers these.
func (s *steady) await(n int) (more []string) {
	all, _ := s.created()
	s.g.Eventually(func() (int, error) {
		now, err := s.created()
		more = now[len(all):]
		return len(more), err
	}, patience, pace).Should(BeNumerically(">=", n))
	return more
}

// end creates no more, and answers all nodes.
func (s *steady) end() []string {
	close(s.stop)
	<-s.ended
	all, err := s.created()
	s.g.Expect(err).NotTo(HaveOccurred())
	return all
}
