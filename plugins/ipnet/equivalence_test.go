// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// chaos is a random sequence of requests against an agent.
type chaos struct {
	*agent
	kernel *kernel
	rnd    *rand.Rand
	faults bool
	log    []string
}

// step is one request; its outcome does not matter.
func (c *chaos) step() {
	n := c.rnd.IntN(9)
	container, pod := fmt.Sprint([]string{"c", "w"}[n%2], n), fmt.Sprint("web-", n/2) // two sandboxes a pod
	c.wirer.mac = []string{"", "02:00:00:00:00:09"}[c.rnd.IntN(2)]
	c.surroundings()
	r := request("ADD", container, pod)
	if n%3 == 2 {
		r.Pool = "blue"
	}
	switch c.rnd.IntN(8) {
	case 0, 1, 2:
	case 3:
		first := c.ipam.Nodes()[0].FirstPod
		for range c.rnd.IntN(12) {
			first = first.Next()
		}
		r.Wanted, r.Pool = []string{first.String()}, ""
	case 4, 5, 6:
		r = request("DEL", container, "")
	case 7:
		r = cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}}
		for i := range 9 {
			if c.rnd.IntN(3) > 0 {
				r.Attachments = append(r.Attachments, cni.Attachment{ContainerID: fmt.Sprint([]string{"c", "w"}[i%2], i), IfName: "eth0"})
			}
		}
	}
	c.disturb()
	_, err := c.serve(r)
	c.log = append(c.log, fmt.Sprintf("%s %s %v: %v", r.Command, r.ContainerID, r.Wanted, err))
}

// surroundings changes the networks or the links of the node, or nothing.
func (c *chaos) surroundings() {
	synctest.Wait()
	c.journal.Plan, c.sink.Fault = nil, nil
	switch c.rnd.IntN(8) {
	case 0:
		c.kernel.shows(uint32(1400+c.rnd.IntN(3)), "172.18.0.5")
		c.g.Expect(c.loop.PushEvent(&ipnet.UnderlayChange{})).To(Succeed())
		synctest.Wait()
	case 1:
		i := c.rnd.IntN(3)
		name := fmt.Sprint("blue-", i)
		have, _ := c.kube[kv.PoolResource][kv.PoolKey(name)].(*kv.Pool)
		ranges := []*kv.PoolRange{{Cidr: fmt.Sprintf("10.%d.0.0/16", 5+i), OneNodePrefixLen: 24}}
		m := &kv.Pool{Name: name, Network: "blue", Generation: have.GetGeneration() + 1, Ranges: ranges, Draining: have != nil && !have.Draining}
		c.changed(kv.PoolResource, kv.PoolKey(name), m)
		c.log = append(c.log, fmt.Sprint(m))
	}
}

// disturb lets the next commit to the journal, or that of an ADD to the sink, fail.
func (c *chaos) disturb() {
	c.journal.Plan, c.sink.Fault = nil, nil
	if !c.faults {
		return
	}
	switch c.rnd.IntN(8) {
	case 0:
		c.journal.Plan = journal.At(c.journal.Commits()+1, journal.Fail)
	case 1:
		c.journal.Plan = journal.At(c.journal.Commits()+1, journal.Tear)
	case 2:
		c.sink.Fault = func(txn controller.Transaction) error {
			if txn.RevertOnFailure {
				return fmt.Errorf("injected")
			}
			return nil
		}
	}
}

// For any order of requests the southbound ends in the state of one resync of the
// final state, and the ledger is sound.
func TestUpdatesEndWhereAResyncEnds(t *testing.T) {
	for _, conf := range []string{single, v6, dual, dualFrom6} {
		for _, faults := range []bool{false, true} {
			for seed := range uint64(12) {
				t.Run(fmt.Sprint("faults ", faults, " seed ", seed), func(t *testing.T) {
					running(t, conf, func(g Gomega, a *agent) {
						links := newKernel()
						a.plane.Underlay = links.read
						a.resync()
						c := &chaos{agent: a, kernel: links, rnd: rand.New(rand.NewPCG(seed, 1)), faults: faults}
						for range 40 {
							c.step()
						}
						a.journal.Plan, a.sink.Fault = nil, nil
						a.add("last", "web-9")
						byUpdates := a.wanted()
						a.resync()
						g.Expect(a.wanted()).To(Equal(byUpdates), "%v", c.log)
						findings, err := a.ledger.Check(t.Context())
						g.Expect(err).NotTo(HaveOccurred())
						g.Expect(findings).To(BeEmpty(), "%v", c.log)
					})
				})
			}
		}
	}
}
