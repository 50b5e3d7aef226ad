// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package library

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// threeMethods is a nodesync with the published methods, and no others.
type threeMethods struct{ nodes nodesync.Nodes }

func (s *threeMethods) GetNodeID() uint32                   { return 5 }
func (s *threeMethods) GetAllNodes() nodesync.Nodes         { return s.nodes }
func (s *threeMethods) PublishNodeIPs([]netip.Prefix) error { return nil }

type agentLabel string

func (l agentLabel) GetAgentLabel() string { return string(l) }

// transaction remembers the events that follow.
type transaction struct{ followUps []controller.Event }

func (t *transaction) Put(string, proto.Message) {}
func (t *transaction) Get(string) proto.Message  { return nil }
func (t *transaction) Delete(string)             {}
func (t *transaction) FollowUp(ev controller.Event) error {
	t.followUps = append(t.followUps, ev)
	return nil
}

// contiv is an importer of the IPAM plugin: it does what Contiv's event loop does.
type contiv struct {
	*ipam.IPAM
	g      Gomega
	nodes  *threeMethods
	resync int
}

func newContiv(t *testing.T, conf string, held ipam.Claims) *contiv {
	g := NewWithT(t)
	cfg, _, err := contivconf.Parse([]byte(conf))
	g.Expect(err).NotTo(HaveOccurred())
	c := &contiv{g: g, nodes: &threeMethods{nodesync.Nodes{"node-a": {ID: 5, Name: "node-a"}}}}
	c.IPAM = ipam.NewPlugin(func(p *ipam.IPAM) {
		p.NodeSync, p.ContivConf, p.ServiceLabel, p.Claims = c.nodes, contivconf.NewPlugin(cfg), agentLabel("node-a"), held
	})
	g.Expect(c.Init()).To(Succeed())
	c.process(&controller.DBResync{})
	return c
}

// process hands an event and what follows from it to the plugin. It returns the PodCIDRChanges.
func (c *contiv) process(ev controller.Event) (changes []string) {
	txn := &transaction{}
	if ev.Method() == controller.Update {
		c.g.Expect(c.HandlesEvent(ev)).To(BeTrue())
		_, err := c.Update(ev, txn)
		c.g.Expect(err).NotTo(HaveOccurred())
	} else {
		c.resync++
		c.g.Expect(c.Resync(ev, controller.KubeStateData{}, c.resync, txn)).To(Succeed())
	}
	c.g.Expect(c.Stage.Commit(context.Background())).To(Succeed())
	c.g.Expect(c.Commit(context.Background())).To(Succeed())
	for _, next := range txn.followUps {
		if change, ok := next.(*ipam.PodCIDRChange); ok {
			changes = append(changes, strings.TrimPrefix(change.String(), "Pod CIDR Change\n* LocalPodCIDR: "))
		}
		if c.HandlesEvent(next) {
			changes = append(changes, c.process(next)...)
		}
	}
	return changes
}

// podCIDRs is an update of this node's Node object.
func (c *contiv) podCIDRs(cidrs ...string) (changes []string) {
	node := &nodesync.Node{ID: 5, Name: "node-a"}
	for _, text := range cidrs {
		node.PodCIDRs = append(node.PodCIDRs, netip.MustParsePrefix(text))
	}
	was := c.nodes.nodes["node-a"]
	c.nodes.nodes["node-a"] = node
	return c.process(&nodesync.NodeUpdate{NodeName: "node-a", PrevState: was, NewState: node})
}

func (c *contiv) state() string {
	pods := "none"
	if p := c.PodSubnetThisNode(); p != nil {
		pods = p.String()
	}
	return pods + " " + c.Pending()
}

// claimsOf is the set of blocks whose claims this node holds.
type claimsOf map[string]bool

func (c claimsOf) Hold(t claims.Target) claims.Standing { return c.Standing(t) }
func (c claimsOf) Want(string, []claims.Target)         {}
func (c claimsOf) Standing(t claims.Target) claims.Standing {
	return claims.Standing{Held: c[t.Prefix.String()]}
}

const external = "ipamConfig: {useExternalIPAM: true}"

// Contiv's plugin announces a new podCIDR while it handles the NodeUpdate.
func TestAPodCIDRIsAnnouncedInsideTheNodeUpdate(t *testing.T) {
	g, c := NewWithT(t), newContiv(t, external, nil)
	for _, step := range []struct {
		cidrs []string
		want  []string
	}{
		{[]string{"10.1.77.0/24"}, []string{"10.1.77.0/24"}},
		{[]string{"10.1.77.9/24"}, nil},
		{[]string{"10.1.78.0/24"}, []string{"10.1.78.0/24"}},
		{nil, []string{"<none>"}},
	} {
		g.Expect(c.podCIDRs(step.cidrs...)).To(Equal(step.want), "%v", step.cidrs)
		state := c.state()
		c.process(&controller.DBResync{})
		g.Expect(c.state()).To(Equal(state), "a resync finds the same")
	}
}

// With claims the podCIDR is announced when the claim is held, and not before.
func TestAPodCIDRIsAnnouncedOnceWhenItsClaimIsHeld(t *testing.T) {
	const dual = "ipamConfig: {useExternalIPAM: true, podSubnetCIDR: '10.1.0.0/16,fd00:1::/48', " +
		"vppHostSubnetCIDR: '172.30.0.0/16,fd00:2::/48', " +
		"nodeInterconnectCIDR: '192.168.16.0/24,fd00:3::/64', vxlanCIDR: '192.168.30.0/24,fd00:4::/64', serviceCIDR: '10.96.0.0/12,fd00:5::/108'}"
	for name, x := range map[string]struct {
		conf  string
		cidrs []string
	}{
		"one family":   {external, []string{"10.1.78.0/24"}},
		"two families": {dual, []string{"10.1.78.0/24", "fd00:1:0:78::/64"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, held := NewWithT(t), claimsOf{"10.1.77.0/24": true, "fd00:1:0:77::/64": true}
			c := newContiv(t, x.conf, held)
			before := []string{"10.1.77.0/24", "fd00:1:0:77::/64"}[:len(x.cidrs)]
			g.Expect(c.podCIDRs(before...)).To(Equal([]string{"10.1.77.0/24"}))
			g.Expect(c.podCIDRs(x.cidrs...)).To(BeEmpty(), "no claim is held")
			state := c.state()
			g.Expect(state).To(HavePrefix("none waiting for the claim of 10.1.78.0/24"))
			c.process(&controller.DBResync{})
			g.Expect(c.state()).To(Equal(state), "a resync finds the same")
			var announced []string
			for _, cidr := range x.cidrs {
				g.Expect(announced).To(BeEmpty(), "another claim is not held")
				held[cidr] = true
				announced = append(announced, c.process(&nodesync.ClaimChange{})...)
			}
			g.Expect(announced).To(Equal([]string{"10.1.78.0/24"}))
			g.Expect(c.process(&nodesync.ClaimChange{})).To(BeEmpty())
			g.Expect(c.state()).To(Equal("10.1.78.0/24 "))
		})
	}
}

// A podCIDR that cannot be this node's is not announced, and its reason is told.
func TestARefusedPodCIDRIsNotAnnounced(t *testing.T) {
	for cidr, why := range map[string]string{
		"192.168.16.0/24": "overlaps nodeInterconnectCIDR",
		"10.2.0.0/24":     "is outside podSubnetCIDR",
		"10.1.78.0/31":    "no room",
	} {
		g, c := NewWithT(t), newContiv(t, external, nil)
		g.Expect(c.podCIDRs("10.1.77.0/24")).To(HaveLen(1))
		g.Expect(c.podCIDRs(cidr)).To(BeEmpty(), cidr)
		state := c.state()
		g.Expect(state).To(And(HavePrefix("none "), ContainSubstring(why)))
		c.process(&controller.DBResync{})
		g.Expect(c.state()).To(Equal(state), "a resync finds the same")
		g.Expect(c.podCIDRs("10.1.77.0/24")).To(Equal([]string{"10.1.77.0/24"}), "the former one again")
	}
}

// The namespace and the name make the owner of an address: two pods cannot be one owner, and
// no name fills the disk.
func TestAPodWithoutValidNamesGetsNoAddress(t *testing.T) {
	g, c := NewWithT(t), newContiv(t, "{}", nil)
	for _, id := range []kv.PodID{
		{Namespace: "a/b", Name: "c"}, {Namespace: "a", Name: "b/c"}, {}, {Name: "c"}, {Namespace: "a"},
		{Namespace: "a", Name: strings.Repeat("x", 1<<20)}, {Namespace: strings.Repeat("x", 1<<20), Name: "c"},
		{Namespace: "a", Name: "c\n"},
	} {
		_, err := c.AllocatePodIP(id, "", "")
		g.Expect(err).To(MatchError(And(HavePrefix("allocate an address: pod name"), ContainSubstring("is invalid: it must begin with a letter"))))
		g.Expect(len(err.Error())).To(BeNumerically("<", 1000))
		err = c.ReleasePodIP(id)
		g.Expect(err).To(MatchError(ContainSubstring("is invalid")))
		g.Expect(len(err.Error())).To(BeNumerically("<", 1000))
		g.Expect(c.GetPodIP(id)).To(BeNil())
	}
	id := kv.PodID{Namespace: "a", Name: strings.Repeat("x", 253)}
	ip, err := c.AllocatePodIP(id, "", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.GetPodIP(id).IP.Equal(ip)).To(BeTrue())
	g.Expect(c.ReleasePodIP(id)).To(Succeed())
	g.Expect(c.GetPodIP(id)).To(BeNil())
}
