// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// countedNetworks counts the changes of networks, and the comparisons.
type countedNetworks struct {
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

// open opens the kind of networks of a namespace.
func (n *countedNetworks) open(namespace string) (*southbound.Descriptor, error) {
	networks, err := newNetworks(Options{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	k := networks.kind()
	create, update, remove, retrieve := k.Create, k.Update, k.Delete, k.Retrieve
	k.Create = func(ctx context.Context, key string, want network) error {
		n.count(&n.changes)
		return create(ctx, key, want)
	}
	k.Update = func(ctx context.Context, key string, was southbound.Made[network], want network) error {
		n.count(&n.changes)
		return update(ctx, key, was, want)
	}
	k.Delete = func(ctx context.Context, key string, was southbound.Made[network]) error {
		n.count(&n.changes)
		return remove(ctx, key, was)
	}
	k.Retrieve = func(ctx context.Context, wanted []southbound.Wanted[network]) ([]controller.Value, error) {
		n.count(&n.compared)
		return retrieve(ctx, wanted)
	}
	return k.Descriptor(), nil
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
				counted := &countedNetworks{}
				networks, err := counted.open(ns.Path())
				g.Expect(err).NotTo(HaveOccurred())
				return counted, southbound.New(southbound.Options{}, networks)
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
