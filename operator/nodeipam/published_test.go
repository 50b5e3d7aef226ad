// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// published is a program of another project: it knows the published names, and
// calls them in the order of Kubernetes' controller manager.
type published struct {
	client kubernetes.Interface
	cloud  *memcloud.Cloud
	nodes  coreinformers.NodeInformer
	range4 *net.IPNet
}

// publishedStarts lists every published way to make an allocator. Each returns
// what runs it until stop is closed.
func publishedStarts() map[string]func(p published) (run func(stop <-chan struct{}), err error) {
	running := func(a nodeipam.CIDRAllocator, err error) (func(<-chan struct{}), error) {
		if err != nil {
			return nil, err
		}
		return a.Run, nil
	}
	controller := func(mode nodeipam.NodeSyncMode) func(p published) (func(<-chan struct{}), error) {
		return func(p published) (func(<-chan struct{}), error) {
			c, err := nodeipam.NewController(&nodeipam.Config{Mode: mode}, p.client, p.cloud, p.range4, nil, 24)
			if err != nil {
				return nil, err
			}
			if err := c.Start(p.nodes); err != nil {
				return nil, err
			}
			return func(stop <-chan struct{}) {
				<-stop
				_ = c.Close()
			}, nil
		}
	}
	return map[string]func(p published) (func(<-chan struct{}), error){
		"New": func(p published) (func(<-chan struct{}), error) {
			return running(nodeipam.New(p.client, nil, p.nodes, nodeipam.RangeAllocatorType, p.range4, nil, 24))
		},
		"New from cluster": func(p published) (func(<-chan struct{}), error) {
			return running(nodeipam.New(p.client, p.cloud, p.nodes, nodeipam.IPAMFromClusterAllocatorType, p.range4, nil, 24))
		},
		"NewCIDRRangeAllocator": func(p published) (func(<-chan struct{}), error) {
			return running(nodeipam.NewCIDRRangeAllocator(p.client, p.nodes, p.range4, nil, 24, &v1.NodeList{}))
		},
		"NewCloudCIDRAllocator": func(p published) (func(<-chan struct{}), error) {
			return running(nodeipam.NewCloudCIDRAllocator(p.client, p.cloud, p.nodes))
		},
		"NewController from cluster": controller(nodeipam.SyncFromCluster),
		"NewController from cloud":   controller(nodeipam.SyncFromCloud),
	}
}

// Upstream's constructors and Start register the informer of nodes. Callers
// depend on it: they start the factory once, and what was not registered by then
// never starts.
func TestThePublishedOrderOfCalls(t *testing.T) {
	for name, start := range publishedStarts() {
		for _, runFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, Run before the factory: %t", name, runFirst), func(t *testing.T) {
				for range effort.Times(t, 50) {
					synctest.Test(t, func(t *testing.T) { runPublished(t, start, runFirst) })
				}
			})
		}
	}
}

// runPublished starts a program, and expects podCIDRs for a node from before its
// start and for one that joins later.
func runPublished(t *testing.T, start func(published) (func(<-chan struct{}), error), runFirst bool) {
	g := NewWithT(t)
	client, cloud := fake.NewClientset(), memcloud.New(memcloud.Config{})
	join := func(i int) {
		name := fmt.Sprint("node-", i)
		cloud.AddMachine(name, "mem://"+name)
		cloud.SetAliases(name, pfx(fmt.Sprintf("10.1.%d.0/24", i)))
		_, err := client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec: v1.NodeSpec{ProviderID: "mem://" + name}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	join(1)

	stop, ended := make(chan struct{}), make(chan struct{})
	factory := informers.NewSharedInformerFactory(client, 0)
	run, err := start(published{client, cloud, factory.Core().V1().Nodes(), ipNet(t, "10.1.0.0/16")})
	g.Expect(err).NotTo(HaveOccurred())
	begin := func() {
		go func() {
			defer close(ended)
			run(stop)
		}()
	}
	if runFirst {
		begin()
		synctest.Wait()
		factory.Start(stop)
	} else {
		factory.Start(stop)
		synctest.Wait()
		begin()
	}
	time.Sleep(time.Minute)
	join(2)
	time.Sleep(time.Minute)
	synctest.Wait()
	all, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	close(stop)
	<-ended
	factory.Shutdown()
	g.Expect(all.Items).To(HaveLen(2))
	for _, node := range all.Items {
		g.Expect(node.Spec.PodCIDRs).To(HaveLen(1), node.Name)
		g.Expect(node.Spec.PodCIDRs).To(HaveExactElements(node.Spec.PodCIDR))
	}
}
