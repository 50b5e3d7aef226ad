// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"
)

// Without a recorder Run makes one, which ends with it.
func TestEventsReachTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		s.put("a", with("10.0.0.0/28"))
		s.put("b", with("10.0.0.0/28"))
		client := s.clientset()
		var mu sync.Mutex
		var told []string
		client.AddReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
			e, ok := action.(clienttesting.CreateActionImpl).GetObject().(*v1.Event)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				told = append(told, fmt.Sprint(e.InvolvedObject.Kind, " ", e.InvolvedObject.Name, " ", e.Type, " ", e.Reason, " ", e.Source.Component))
			}
			return true, e, nil
		})
		stop := make(chan struct{})
		factory := informers.NewSharedInformerFactory(client, 0)
		nodes := factory.Core().V1().Nodes()
		nodes.Informer()
		factory.Start(stop)
		a, err := NewAllocator(Deps{Client: client, Nodes: nodes, Log: quiet()}, ranges("10.0.0.0/24 28"))
		g.Expect(err).NotTo(HaveOccurred())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.Run(stop)
		}()
		pass(time.Hour)
		mu.Lock()
		g.Expect(told).To(ConsistOf("Node a Warning CIDRConflict cidrAllocator", "Node b Warning CIDRConflict cidrAllocator"))
		mu.Unlock()
		close(stop)
		<-done
		factory.Shutdown()
	})
}

// An allocator may be stopped, and run again.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		s.put("a")
		first := start(t, s, ranges("10.0.0.0/24 28"))
		pass(time.Second)
		first.end()
		s.put("b")
		s.remove("a")
		second := start(t, s, ranges("10.0.0.0/24 28"))
		defer second.end()
		pass(time.Second)
		g.Expect(s.cidrs()["b"]).To(HaveLen(1))
		g.Expect(second.held()).To(Equal(s.cidrs()))
	})
}

// The API server restarts: watches end, and nothing is lost.
func TestWatchesThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		c := start(t, s, ranges("10.0.0.0/24 28"))
		defer c.end()
		for i := range 20 {
			s.put(fmt.Sprint("n", i))
			s.hangUp()
			if i%3 == 0 {
				s.remove(fmt.Sprint("n", i/2))
			}
			pass(time.Minute)
		}
		g.Expect(c.held()).To(Equal(s.cidrs()))
		g.Expect(s.cidrs()).To(HaveEach(HaveLen(1)))
	})
}
