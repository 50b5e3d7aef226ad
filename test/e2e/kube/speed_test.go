// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// amount returns long, or short with -short.
func amount(long, short int) int {
	if testing.Short() {
		return short
	}
	return long
}

// timing holds the times until the nodes have their CIDRs.
type timing struct {
	whole time.Duration // from the creation of the first to the number of the last
	after time.Duration // since the last was created
}

// numberAll lets a running controller number n nodes that are created as fast as the API
// server takes them.
func numberAll(t *testing.T, who numberer, n int) (took timing) {
	t.Run(who.name, func(t *testing.T) {
		c := newCluster(t)
		who.start(t, c, nodeipam.Options{Allocate: true, Cluster: "10.128.0.0/12"})
		c.create("first")
		c.awaitNumbered("first")
		began := time.Now()
		c.createAll(series("n", n))
		created := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		last, err := c.judge.awaitAll(ctx, n+1)
		c.g.Expect(err).NotTo(HaveOccurred())
		took = timing{last.Sub(began), last.Sub(created)}
		t.Logf("%d nodes were created in %s, and numbered %s later", n, created.Sub(began).Round(time.Millisecond), took.after.Round(time.Millisecond))
	})
	return took
}

// TestManyNodes numbers many nodes, and compares with how long Kubernetes' own
// controller takes on the same API server: without limits, and both as they are
// without flags.
func TestManyNodes(t *testing.T) {
	mayRun(t)
	n := amount(2000, 200)
	var ours, theirs timing
	for range 2 { // the better of two
		ours = better(ours, numberAll(t, numberer{"operator", startOperator}, n))
		theirs = better(theirs, numberAll(t, numberer{"kube-controller-manager", startUpstream}, n))
	}
	few := amount(500, 200)
	oursAsIs := numberAll(t, numberer{"operator as it is", func(t *testing.T, c *cluster, o nodeipam.Options) func() {
		newOperator(t, c.kubeconfig, append(flags(o), "--controllers=nodeipam", "--leader-elect-resource-name="+c.lease)...)
		return nil // it is not needed
	}}, few)
	theirsAsIs := numberAll(t, numberer{"kube-controller-manager as it is", func(t *testing.T, c *cluster, o nodeipam.Options) func() {
		return startManager(t, c, o)
	}}, few)
	report := func(what string, n int, ours, theirs timing) {
		t.Logf("%d nodes, %s: operator %s, kube-controller-manager %s, ratio %.2f", n, what, ours.whole.Round(time.Millisecond), theirs.whole.Round(time.Millisecond),
			ours.whole.Seconds()/theirs.whole.Seconds())
	}
	report("both without limits", n, ours, theirs)
	report("both as they are", few, oursAsIs, theirsAsIs)
}

func better(a, b timing) timing {
	if a.whole == 0 || b.whole < a.whole {
		return b
	}
	return a
}

// TestReflectorThroughput: how long it takes until pods are in the store, at a
// start and one by one.
func TestReflectorThroughput(t *testing.T) {
	c := newCluster(t)
	g := c.g
	server := etcdtest.Start(t)
	store := openStore(t, server)
	n := amount(10_000, 1000)
	nodes := series("n", 10)
	c.createAll(nodes)
	pods := series("p", n)
	c.g.Expect(crowd(16, pods, func(name string) error { return c.createPod(name, nodes[int(name[len(name)-1]-'0')]) })).To(Succeed())

	began := time.Now()
	reflect(t, c, server)
	awaitPods(t, store, nodes, n)
	took := time.Since(began)
	t.Logf("%d pods were reflected %s after the start: %.0f a second", n, took.Round(time.Millisecond), float64(n)/took.Seconds())

	var each []time.Duration
	for i := range 50 {
		began := time.Now()
		g.Expect(c.createPod(fmt.Sprint("late-", i), nodes[0])).To(Succeed())
		awaitKey(t, store, kv.PodKey(nodes[0], kv.PodID{Namespace: "default", Name: fmt.Sprint("late-", i)}))
		each = append(each, time.Since(began))
	}
	slices.Sort(each)
	t.Logf("from the creation of a pod to its key: median %s, p99 %s, of %d", each[25].Round(time.Microsecond), each[49].Round(time.Microsecond), len(each))
}

// createPod creates a pod on a node.
func (c *cluster) createPod(name, node string) error {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	pod.Spec = v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "example.org/none"}}}
	_, err := c.client.CoreV1().Pods("default").Create(c.t.Context(), pod, createOptions())
	return err
}

// awaitPods waits until the store has n pods of the nodes.
func awaitPods(t *testing.T, store kvdb.Store, nodes []string, n int) {
	t.Helper()
	NewWithT(t).Eventually(func() (have int, err error) {
		for _, node := range nodes {
			all, _, err := store.List(t.Context(), kv.PodPrefix(node))
			if err != nil {
				return have, err
			}
			have += len(all)
		}
		return have, nil
	}, 5*time.Minute, pace).Should(Equal(n))
}

// awaitKey waits until the store has a key.
func awaitKey(t *testing.T, store kvdb.Store, key string) {
	t.Helper()
	NewWithT(t).Eventually(func() (bool, error) {
		_, found, err := store.Get(t.Context(), key)
		return found, err
	}, patience, time.Millisecond).Should(BeTrue())
}
