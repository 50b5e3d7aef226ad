// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience limits the time of an event that should happen soon, pace is the time between
// two looks.
const (
	patience = 60 * time.Second
	pace     = 50 * time.Millisecond
)

// cluster is a control plane as a test uses it: empty at first, and judged.
type cluster struct {
	t          *testing.T
	g          *WithT
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	judge      *judge
	lease      string // that the operators of this test fight for
}

// newCluster is a cluster of the shared control plane.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	mayRun(t)
	return openCluster(t, os.Getenv(sharedEnv))
}

// openCluster is the cluster of a kubeconfig.
func openCluster(t *testing.T, kubeconfig string) *cluster {
	t.Helper()
	g := NewWithT(t)
	c := &cluster{t: t, g: g, kubeconfig: kubeconfig, lease: "e2e-" + strings.ToLower(rand.Text()[:8])}
	var err error
	c.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	c.config.QPS = -1 // a test does not slow itself down
	c.config.ContentType = "application/vnd.kubernetes.protobuf"
	c.config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	c.client, err = kubernetes.NewForConfig(c.config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.names()).To(BeEmpty(), "an earlier test has left nodes behind")
	t.Cleanup(c.clear)
	c.judge = newJudge(c)
	return c
}

// clear removes all nodes and pods, finalized or not.
func (c *cluster) clear() {
	ctx := context.Background() // that of the test has ended
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	c.g.Expect(c.client.CoreV1().Pods("default").DeleteCollection(ctx, now, metav1.ListOptions{})).To(Succeed())
	c.g.Eventually(func() error {
		if err := c.client.CoreV1().Nodes().DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			return err
		}
		all, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) == 0 {
			return err
		}
		for _, n := range all.Items {
			if len(n.Finalizers) > 0 {
				if err := c.finalize(ctx, n.Name, nil); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
		}
		return fmt.Errorf("%d nodes are left", len(all.Items))
	}, patience, pace).Should(Succeed())
}

// finalize sets the finalizers of a node.
func (c *cluster) finalize(ctx context.Context, name string, finalizers []string) error {
	text := "null"
	if len(finalizers) > 0 {
		text = `["` + strings.Join(finalizers, `","`) + `"]`
	}
	_, err := c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":`+text+`}}`), metav1.PatchOptions{})
	return err
}

// newNode is a node that was not created yet.
func newNode(name string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range change {
		f(n)
	}
	return n
}

// create creates a node.
func (c *cluster) create(name string, change ...func(*v1.Node)) *v1.Node {
	c.t.Helper()
	n, err := c.client.CoreV1().Nodes().Create(c.t.Context(), newNode(name, change...), metav1.CreateOptions{})
	c.g.Expect(err).NotTo(HaveOccurred())
	return n
}

// createAll creates many nodes, as fast as the API server takes them.
func (c *cluster) createAll(names []string) {
	c.t.Helper()
	c.g.Expect(crowd(16, names, func(name string) error {
		_, err := c.client.CoreV1().Nodes().Create(c.t.Context(), newNode(name), metav1.CreateOptions{})
		return err
	})).To(Succeed())
}

// crowd calls do with everything, by a number of workers; all errors are told.
func crowd[T any](workers int, all []T, do func(T) error) error {
	work := make(chan T)
	errs := make([]error, workers)
	var busy sync.WaitGroup
	for i := range workers {
		busy.Go(func() {
			for x := range work {
				if err := do(x); err != nil && errs[i] == nil {
					errs[i] = err
				}
			}
		})
	}
	for _, x := range all {
		work <- x
	}
	close(work)
	busy.Wait()
	return errors.Join(errs...)
}

// series are n names that begin with prefix.
func series(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return all
}

// remove deletes a node.
func (c *cluster) remove(name string) {
	c.t.Helper()
	c.g.Expect(c.client.CoreV1().Nodes().Delete(c.t.Context(), name, metav1.DeleteOptions{})).To(Succeed())
}

// node reads a node.
func (c *cluster) node(name string) *v1.Node {
	c.t.Helper()
	n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
	c.g.Expect(err).NotTo(HaveOccurred())
	return n
}

// names are those of all nodes.
func (c *cluster) names() (all []string) {
	c.t.Helper()
	list, err := c.client.CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{})
	c.g.Expect(err).NotTo(HaveOccurred())
	for _, n := range list.Items {
		all = append(all, n.Name)
	}
	return all
}

// setPodCIDRs does what a foreign controller does.
func (c *cluster) setPodCIDRs(name string, cidrs ...string) {
	c.t.Helper()
	body := fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":["%s"]}}`, cidrs[0], strings.Join(cidrs, `","`))
	_, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), name, types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{})
	c.g.Expect(err).NotTo(HaveOccurred())
}

// awaitNumbered waits until the nodes have podCIDRs, and answers them.
func (c *cluster) awaitNumbered(names ...string) (cidrs [][]string) {
	c.t.Helper()
	for _, name := range names {
		var have []string
		c.g.Eventually(func() ([]string, error) {
			n, err := c.client.CoreV1().Nodes().Get(c.t.Context(), name, metav1.GetOptions{})
			if err == nil {
				have = n.Spec.PodCIDRs
			}
			return have, err
		}, patience, pace).ShouldNot(BeEmpty(), name)
		cidrs = append(cidrs, have)
	}
	return cidrs
}

// unnumbered are the nodes that have no podCIDRs.
func (c *cluster) unnumbered() (names []string) {
	c.t.Helper()
	all, err := c.liveCIDRs()
	c.g.Expect(err).NotTo(HaveOccurred())
	for _, x := range all {
		if len(x.cidrs) == 0 {
			names = append(names, x.name)
		}
	}
	return names
}

// first is the first CIDR of each node.
func first(cidrs [][]string) (all []string) {
	for _, x := range cidrs {
		all = append(all, x[0])
	}
	return all
}

// await waits until the API server answers.
func (c *cluster) await() {
	c.t.Helper()
	c.g.Eventually(func() error {
		_, err := c.client.CoreV1().Nodes().List(c.t.Context(), metav1.ListOptions{Limit: 1})
		return err
	}, patience, pace).Should(Succeed())
}

func createOptions() metav1.CreateOptions { return metav1.CreateOptions{} }
func getOptions() metav1.GetOptions       { return metav1.GetOptions{} }
func deleteOptions() metav1.DeleteOptions { return metav1.DeleteOptions{} }
