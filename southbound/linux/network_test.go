// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// countedNetworks counts the changes of networks, and the comparisons.
type countedNetworks struct {
	*Networks
	mu                sync.Mutex
	changes, compared int
}

func (n *countedNetworks) count(counter *int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*counter++
}

func (n *countedNetworks) counts() (changes, compared int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changes, n.compared
}

func (n *countedNetworks) Create(ctx context.Context, key string, m proto.Message) error {
	n.count(&n.changes)
	return n.Networks.Create(ctx, key, m)
}

func (n *countedNetworks) Update(ctx context.Context, key string, before, m proto.Message) error {
	n.count(&n.changes)
	return n.Networks.Update(ctx, key, before, m)
}

func (n *countedNetworks) Delete(ctx context.Context, key string, m proto.Message) error {
	n.count(&n.changes)
	return n.Networks.Delete(ctx, key, m)
}

func (n *countedNetworks) Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error) {
	n.count(&n.compared)
	return n.Networks.Retrieve(ctx, wanted)
}

// closedRanges returns the unreachable routes of a namespace.
func closedRanges(g Gomega, ns *netlab.Namespace) string {
	v4, err := ns.Show("-4 route show type unreachable")
	g.Expect(err).NotTo(HaveOccurred())
	v6, err := ns.Show("-6 route show type unreachable")
	g.Expect(err).NotTo(HaveOccurred())
	return v4 + v6
}

// TestNetworksShareTheMainTable restarts the scheduler over networks that were made. A resync
// changes nothing, and a repair changes the one network that has lost a route.
func TestNetworksShareTheMainTable(t *testing.T) {
	network := func(name string, closed bool, subnets ...string) controller.Value {
		return controller.Value{
			Key:     kv.SinkNetworkPrefix + name,
			Message: &kv.Network{Name: name, Closed: closed, Subnets: subnets},
		}
	}
	for _, c := range []struct {
		name     string
		networks []controller.Value
	}{
		{"two closed networks", []controller.Value{
			network("default", true, "10.1.0.0/16", "fd00:1::/48"), network("blue", true, "10.5.0.0/16", "fd00:5::/48"),
		}},
		{"an open network before a closed one", []controller.Value{
			network("default", false, "10.1.0.0/16"), network("red", true, "10.5.0.0/16"),
		}},
		{"an open network behind a closed one", []controller.Value{
			network("default", false, "10.1.0.0/16"), network("blue", true, "10.5.0.0/16"),
		}},
		{"three networks and a table", []controller.Value{
			network("default", true, "10.1.0.0/16"), network("blue", true, "10.5.0.0/16"), network("red", true, "10.6.0.0/16"),
			{Key: kv.SinkNetworkPrefix + "green", Message: &kv.Network{Name: "green", Table: 1007}},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why := netlab.Why(); why != "" {
				t.Skip("NOT RUN: ", why)
			}
			g := NewWithT(t)
			ns, err := netlab.New()
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = ns.Close() })
			start := func() (*countedNetworks, *southbound.Scheduler) {
				networks, err := NewNetworks(Options{Namespace: ns.Path()})
				g.Expect(err).NotTo(HaveOccurred())
				counted := &countedNetworks{Networks: networks}
				return counted, southbound.New(southbound.Options{}, counted)
			}
			all := controller.Transaction{Method: controller.FullResync, Values: c.networks}
			_, first := start()
			g.Expect(first.Commit(t.Context(), all)).To(Succeed())
			g.Expect(first.Close()).To(Succeed())
			want := closedRanges(g, ns)

			n, second := start()
			g.Expect(second.Commit(t.Context(), all)).To(Succeed())
			changes, _ := n.counts()
			g.Expect(changes).To(BeZero(), "the restart found all as it should be")

			g.Expect(ns.IP("route del unreachable 10.5.0.0/16 proto 202")).To(Succeed()) // unnoticed: nothing watches yet
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- second.Run(ctx) }()
			g.Eventually(func() string { return closedRanges(g, ns) }).WithTimeout(time.Minute).Should(Equal(want))
			g.Expect(ns.IP("route del unreachable 10.5.0.0/16 proto 202")).To(Succeed())
			g.Eventually(func() string { return closedRanges(g, ns) }).WithTimeout(time.Minute).Should(Equal(want))
			_, before := n.counts()
			g.Expect(ns.IP("route add unreachable 10.77.0.0/16 proto 202 metric 4294967295", // a stray one
				"route del unreachable 10.77.0.0/16 proto 202 metric 4294967295")).To(Succeed())
			g.Eventually(func() int { _, compared := n.counts(); return compared }).WithTimeout(time.Minute).
				Should(BeNumerically(">", before), "a comparison after the last repair")
			changes, _ = n.counts()
			g.Expect(changes).To(Equal(2), "one for each route that was removed")
			stop()
			g.Expect(<-ended).To(Succeed())
			g.Expect(second.Close()).To(Succeed())
		})
	}
}
