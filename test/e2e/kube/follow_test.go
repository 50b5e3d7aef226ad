// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// sources are the ways in which an agent learns of the cluster: a cluster, and
// the configuration of its agents.
func sources() map[string]func(t *testing.T) (c *cluster, conf string) {
	return map[string]func(t *testing.T) (*cluster, string){
		"through etcd": func(t *testing.T) (*cluster, string) {
			c, server := newCluster(t), etcdtest.Start(t)
			reflect(t, c, server)
			return c, viaEtcd(server)
		},
		"from the API server": func(t *testing.T) (*cluster, string) {
			c := openCluster(t, newPlane(t).kubeconfig) // of its own, as kinds of objects are left behind
			_, err := c.apply(filepath.Join("..", "..", "..", "k8s", "crd"))
			c.g.Expect(err).NotTo(HaveOccurred())
			_, err = c.kubectl("wait", "--for=condition=Established", "--all", "crd")
			c.g.Expect(err).NotTo(HaveOccurred())
			return c, viaAPIServer(c.kubeconfig)
		},
	}
}

// eachSource runs a test with every source.
func eachSource(t *testing.T, test func(t *testing.T, c *cluster, conf string)) {
	mayRun(t)
	for name, open := range sources() {
		t.Run(name, func(t *testing.T) {
			c, conf := open(t)
			test(t, c, conf)
		})
	}
}

// reflect runs our operator with nothing but the reflector.
func reflect(t *testing.T, c *cluster, server *etcdtest.Server) {
	t.Helper()
	newOperator(t, c.kubeconfig, "--controllers=ksr", "--leader-elect=false", "--kvdb-endpoints="+server.Endpoint(), "--kvdb-prefix="+kvdbPrefix)
}

// openStore is the cluster store in an etcd.
func openStore(t *testing.T, server *etcdtest.Server) kvdb.Store {
	t.Helper()
	store, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: kvdbPrefix})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// TestAForeignControllerDecides: Kubernetes' own nodeipam writes podCIDRs, and
// our agents follow them.
func TestAForeignControllerDecides(t *testing.T) {
	eachSource(t, func(t *testing.T, c *cluster, conf string) {
		g := c.g
		one := newAgent(t, "n1", conf)
		_, err := one.pod("ADD", "early")
		g.Expect(err).To(MatchError(ContainSubstring("podCIDR")), "a node that is not ready does not compute one")
		c.create("n1")
		startUpstream(t, c, nodeipam.Options{Allocate: true, Cluster: "10.77.0.0/16"})
		c.awaitNumbered("n1")
		one.awaitBlocks("10.77.0.0/24 active")
		g.Expect(one.add("p1")).To(Equal("10.77.0.2/24"))

		c.create("n2")
		c.awaitNumbered("n2")
		two := newAgent(t, "n2", conf)
		two.awaitBlocks("10.77.1.0/24 active")
		g.Expect(two.add("p1")).To(Equal("10.77.1.2/24"))
		g.Eventually(func() (string, error) {
			var sink string
			err := one.sink(&sink)
			return sink, err
		}, patience, pace).Should(ContainSubstring("10.77.1.0/24"), "the way to the other node is what its Node object says")
	})
}

// TestTheNodeObjectIsMadeAgain: podCIDRs are set once for a Node object, so that
// a node gets other ones with another object only.
func TestTheNodeObjectIsMadeAgain(t *testing.T) {
	eachSource(t, func(t *testing.T, c *cluster, conf string) {
		g := c.g
		c.create("n1")
		c.setPodCIDRs("n1", "10.78.1.0/24")
		a := newAgent(t, "n1", conf)
		a.awaitBlocks("10.78.1.0/24 active")
		old := map[string]string{}
		for i := range 5 {
			a.add(fmt.Sprint("old", i))
		}
		for k, v := range a.held() {
			old[k] = v
		}
		g.Expect(old).To(HaveLen(5))

		c.remove("n1")
		a.awaitBlocks("10.78.1.0/24 draining")
		_, err := a.pod("ADD", "between")
		g.Expect(err).To(HaveOccurred(), "there is no podCIDR")
		_, err = a.pod("CHECK", "old0")
		g.Expect(err).NotTo(HaveOccurred())

		c.create("n1")
		c.setPodCIDRs("n1", "10.78.2.0/24")
		a.awaitBlocks("10.78.1.0/24 draining", "10.78.2.0/24 active")
		g.Eventually(a.changes, patience, pace).Should(HaveKey("10.78.2.0/24"))
		g.Expect(a.add("new")).To(Equal("10.78.2.2/24"))
		for k, v := range old {
			g.Expect(a.held()).To(HaveKeyWithValue(k, v), "no pod loses its address")
		}

		a.process.kill()
		a.run()
		a.awaitBlocks("10.78.1.0/24 draining", "10.78.2.0/24 active")
		for i := range 5 {
			g.Expect(a.held()).To(HaveKeyWithValue(fmt.Sprint("c-old", i), old[fmt.Sprint("c-old", i)]), "after a restart, too")
			_, err := a.pod("DEL", fmt.Sprint("old", i))
			g.Expect(err).NotTo(HaveOccurred())
		}
		a.awaitBlocks("10.78.2.0/24 active")
	})
}

// TestFromPatchToPodCIDRChange measures how long an agent takes to follow.
func TestFromPatchToPodCIDRChange(t *testing.T) {
	eachSource(t, func(t *testing.T, c *cluster, conf string) {
		g := c.g
		a := newAgent(t, "n1", conf)
		var took []time.Duration
		for i := range 55 {
			c.create("n1")
			cidr := fmt.Sprintf("10.79.%d.0/24", i)
			began := time.Now()
			c.setPodCIDRs("n1", cidr)
			a.awaitBlocks(cidr + " active") // no pod has an address of the one before
			if i >= 5 {                     // the first one is read at the start
				var at map[string]time.Time
				g.Eventually(func() (_ map[string]time.Time, err error) {
					at, err = a.changes()
					return at, err
				}, patience, pace).Should(HaveKey(cidr))
				took = append(took, at[cidr].Sub(began))
			}
			c.remove("n1")
		}
		slices.Sort(took)
		t.Logf("from the patch of a Node to its PodCIDRChange handled: median %s, p99 %s, of %d",
			took[len(took)/2].Round(time.Microsecond), took[len(took)*99/100].Round(time.Microsecond), len(took))
		g.Expect(took[len(took)/2]).To(BeNumerically("<", 2*time.Second))
	})
}
