// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// with is the API of an agent whose dependencies are changed.
func (a *agent) with(change func(*restapi.Deps)) http.Handler {
	deps := a.deps
	change(&deps)
	return restapi.NewPlugin(deps).Handler()
}

// A request for a dependency that is nil is answered with 501.
func TestWhatIsNotOffered(t *testing.T) {
	g := NewWithT(t)
	h := newAgent(t).with(func(d *restapi.Deps) { d.Loop, d.State, d.Southbound, d.Database, d.Pods = nil, nil, nil, nil, nil })
	for _, c := range []struct{ method, path string }{
		{"GET", localapi.PathEventHistory}, {"GET", localapi.PathEvents},
		{"POST", localapi.PathDispatch}, {"POST", localapi.PathResync},
		{"GET", localapi.PathSink}, {"GET", localapi.PathBackup},
		{"GET", localapi.PathAccept}, {"POST", localapi.PathAccept},
		{"GET", localapi.PathIPAM}, {"GET", localapi.PathNodes}, {"POST", localapi.PathNodeRelease},
		{"GET", localapi.PathPools}, {"POST", localapi.PathApply},
	} {
		code, body := ask(h, c.method, c.path, "{}")
		g.Expect(code).To(Equal(http.StatusNotImplemented), c.path)
		g.Expect(reason(g, body)).To(Equal(c.method + " " + c.path + ": this agent does not offer it"))
	}
	code, _ := ask(h, "POST", localapi.PathCNI, string(cniclient.Body(cni.Request{Command: "DEL", Network: "pods", ContainerID: "c9", IfName: "eth0"})))
	g.Expect(code).To(Equal(http.StatusServiceUnavailable), "the CNI plugin does as without an agent")
}

func TestDispatch(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		code   int
		answer string
	}{
		"asked for":       {nil, 200, `"Resync request was successfully dispatched."`},
		"stopped":         {fmt.Errorf("ask for a resync: %w", controller.ErrClosedController), 503, `{"error": "ask for a resync: controller was closed"}`},
		"asked for twice": {fmt.Errorf("resync: %w", errInjected), 409, `{"error": "resync: injected"}`},
		"no status":       {&localapi.StatusError{Status: 200, Err: errInjected}, 409, `{"error": "injected"}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := newAgent(t).with(func(d *restapi.Deps) { d.State = state{dispatch: func(context.Context) error { return c.err }} })
			code, body := ask(h, "POST", localapi.PathDispatch, "")
			g.Expect(code).To(Equal(c.code))
			g.Expect(body).To(MatchJSON(c.answer))
			code, _ = ask(h, "GET", localapi.PathDispatch, "")
			g.Expect(code).To(Equal(http.StatusMethodNotAllowed))
		})
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// ipamOf is the plan of node 5.
func ipamOf() localapi.ContivIPAM {
	return localapi.ContivIPAM{
		NodeID: 5, NodeName: "node-a", NodeIP: addr("192.168.16.5"), PodSubnetThisNode: prefix("10.1.5.0/24"), VPPHostNetwork: prefix("172.30.5.0/24"),
		Config: localapi.ContivIPAMConfig{
			ServiceCIDR: "10.96.0.0/12", NodeInterconnectCIDR: "192.168.16.0/24", PodSubnetCIDR: "10.1.0.0/16", PodSubnetOneNodePrefixLen: 24,
			VPPHostSubnetCIDR: "172.30.0.0/16", VPPHostSubnetOneNodePrefixLen: 24, VxlanCIDR: "192.168.30.0/24",
		},
	}
}

func TestContivIPAM(t *testing.T) {
	const config = `"useExternalIPAM": false, "contivCIDR": "", "serviceCIDR": "10.96.0.0/12", "nodeInterconnectDHCP": false, "nodeInterconnectCIDR": "192.168.16.0/24",
		"podSubnetCIDR": "10.1.0.0/16", "podSubnetOneNodePrefixLen": 24, "vppHostSubnetCIDR": "172.30.0.0/16", "vppHostSubnetOneNodePrefixLen": 24,
		"vxlanCIDR": "192.168.30.0/24", "defaultGateway": ""`
	for name, c := range map[string]struct {
		change func(*localapi.ContivIPAM)
		want   string
	}{
		"one family": {func(*localapi.ContivIPAM) {}, `{"nodeId": 5, "nodeName": "node-a", "nodeIP": "192.168.16.5", "podSubnetThisNode": "10.1.5.0/24",
			"vppHostNetwork": "172.30.5.0/24", "config": {` + config + `}}`},
		"two families": {func(i *localapi.ContivIPAM) {
			i.NodeIPs = []netip.Addr{i.NodeIP, addr("fd00:3::5")}
			i.PodSubnetsThisNode = []netip.Prefix{i.PodSubnetThisNode, prefix("fd00:1:0:5::/64")}
			i.VPPHostNetworks = []netip.Prefix{i.VPPHostNetwork, prefix("fd00:2:0:5::/64")}
			i.Config.PodSubnetOneNodePrefixLenIPv6, i.Config.VPPHostSubnetOneNodePrefixLenIPv6 = 64, 64
		}, `{"nodeId": 5, "nodeName": "node-a", "nodeIP": "192.168.16.5", "podSubnetThisNode": "10.1.5.0/24", "vppHostNetwork": "172.30.5.0/24",
			"nodeIPs": ["192.168.16.5", "fd00:3::5"], "podSubnetsThisNode": ["10.1.5.0/24", "fd00:1:0:5::/64"], "vppHostNetworks": ["172.30.5.0/24", "fd00:2:0:5::/64"],
			"config": {` + config + `, "podSubnetOneNodePrefixLenIPv6": 64, "vppHostSubnetOneNodePrefixLenIPv6": 64}}`},
		"nothing is known": {func(i *localapi.ContivIPAM) { *i = localapi.ContivIPAM{} }, `{"nodeId": 0, "nodeName": "", "nodeIP": "", "podSubnetThisNode": "", "vppHostNetwork": "",
			"config": {"useExternalIPAM": false, "contivCIDR": "", "serviceCIDR": "", "nodeInterconnectDHCP": false, "nodeInterconnectCIDR": "", "podSubnetCIDR": "",
			"podSubnetOneNodePrefixLen": 0, "vppHostSubnetCIDR": "", "vppHostSubnetOneNodePrefixLen": 0, "vxlanCIDR": "", "defaultGateway": ""}}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			data := ipamOf()
			c.change(&data)
			h := newAgent(t).with(func(d *restapi.Deps) {
				d.Cluster = cluster{ipam: func() (localapi.ContivIPAM, error) { return data, nil }}
			})
			code, body := ask(h, "GET", localapi.PathIPAM, "")
			g.Expect(code).To(Equal(200))
			g.Expect(body).To(MatchJSON(c.want))
			g.Expect(body).NotTo(Or(ContainSubstring("nil"), ContainSubstring("invalid")))
		})
	}
}

func TestContivIPAMIsNotKnownYet(t *testing.T) {
	g := NewWithT(t)
	h := newAgent(t).with(func(d *restapi.Deps) {
		d.Cluster = cluster{ipam: func() (localapi.ContivIPAM, error) {
			return localapi.ContivIPAM{}, fmt.Errorf("no resync yet: %w", errInjected)
		}}
	})
	code, body := ask(h, "GET", localapi.PathIPAM, "")
	g.Expect(code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(reason(g, body)).To(Equal("no resync yet: injected"))
}

// allocate gives a pod addresses of a pool.
func (a *agent) allocate(pool, pod string, k ledger.Key, families ...ledger.Family) {
	_, _, err := a.book.Claim(ctx(), ledger.Request{Pool: pool, Key: k, Pod: ledger.Pod{Namespace: "ns", Name: pod}, Families: families})
	a.g.Expect(err).NotTo(HaveOccurred())
}

// allocated are the allocations, by pod.
func allocated(g Gomega, h http.Handler) map[string]string {
	code, body := ask(h, "GET", localapi.PathAllocations, "")
	g.Expect(code).To(Equal(200))
	var all struct{ Pods []json.RawMessage }
	g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
	found, last := map[string]string{}, ""
	for _, raw := range all.Pods {
		var pod struct {
			PodID struct{ Namespace, Name string }
		}
		g.Expect(json.Unmarshal(raw, &pod)).To(Succeed())
		name := pod.PodID.Namespace + "/" + pod.PodID.Name
		g.Expect(name > last).To(BeTrue(), "by name, each once")
		last = name
		_, rest, _ := strings.Cut(string(raw), `},`)
		found[name] = "{" + rest
	}
	return found
}

// blue adds a pool beside the default one.
func (a *agent) blue() {
	st := a.book.Begin()
	a.g.Expect(st.SetPool(ledger.Pool{Name: "blue"})).To(Succeed())
	a.g.Expect(st.SetBlocks("blue", []netip.Prefix{prefix("10.5.0.0/26"), prefix("fd00:b::/64")})).To(Succeed())
	a.g.Expect(st.Commit(ctx())).To(Succeed())
}

func TestAllocations(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.blue()
	a.allocate("default", "both", key("c5")) // of both families
	a.allocate("blue", "both", ledger.Key{Network: "blue", ContainerID: "c5", IfName: "net1"})
	a.allocate("blue", "custom", ledger.Key{Network: "blue", ContainerID: "c6", IfName: "net1"}, ledger.IPv4)
	a.allocate("default", "custom", ledger.Key{Network: "pods", ContainerID: "c6", IfName: "net2"}, ledger.IPv4)
	a.allocate("default", "api", ledger.Key{Network: "", ContainerID: "pod:ns/api", IfName: "eth0"}, ledger.IPv4)
	a.allocate("blue", "api", ledger.Key{Network: "", ContainerID: "pod:ns/api", IfName: "net1"}, ledger.IPv4)
	for _, r := range []ledger.Request{
		{Purpose: ledger.ForDocker, Key: key("d1"), Pod: ledger.Pod{Namespace: "ns", Name: "docker"}, Families: []ledger.Family{ledger.IPv4}},
		{Key: key("c8"), Pod: ledger.Pod{Namespace: "ns", Name: "again"}, Wanted: []netip.Addr{addr("10.1.5.20")}},
		{Key: key("c9"), Pod: ledger.Pod{Namespace: "ns", Name: "again"}, Wanted: []netip.Addr{addr("10.1.5.10")}},
	} {
		r.Pool = "default"
		_, _, err := a.book.Claim(ctx(), r)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(allocated(g, a.handler)).To(Equal(map[string]string{
		"ns/web-0": `{"MainIP":"10.1.5.3","CustomIfIPs":{}}`,  // of its newer sandbox
		"ns/again": `{"MainIP":"10.1.5.10","CustomIfIPs":{}}`, // its address is the lower one
		"ns/web-1": `{"MainIP":"10.1.5.4","CustomIfIPs":{}}`,
		"ns/both": `{"MainIP":"10.1.5.6","MainIPs":["10.1.5.6","fd00:1:0:5::1"],"CustomIfIPs":{"net1/blue":"10.5.0.0"},` +
			`"CustomIfAllIPs":{"net1/blue":["10.5.0.0","fd00:b::"]}}`,
		"ns/custom": `{"MainIP":"","CustomIfIPs":{"net1/blue":"10.5.0.1","net2/pods":"10.1.5.7"}}`,
		"ns/api":    `{"MainIP":"10.1.5.8","CustomIfIPs":{"net1":"10.5.0.2"}}`,
	}))
	first6 := a.with(func(d *restapi.Deps) {
		d.Cluster = cluster{ipam: func() (localapi.ContivIPAM, error) {
			return localapi.ContivIPAM{PodSubnetThisNode: prefix("fd00:1:0:5::/64")}, nil
		}}
	})
	g.Expect(allocated(g, first6)["ns/both"]).To(Equal(`{"MainIP":"fd00:1:0:5::1","MainIPs":["fd00:1:0:5::1","10.1.5.6"],"CustomIfIPs":{"net1/blue":"fd00:b::"},` +
		`"CustomIfAllIPs":{"net1/blue":["fd00:b::","10.5.0.0"]}}`))
	failing := a.with(func(d *restapi.Deps) {
		d.Cluster = cluster{ipam: func() (localapi.ContivIPAM, error) { return localapi.ContivIPAM{}, errInjected }}
	})
	g.Expect(allocated(g, failing)["ns/both"]).To(HavePrefix(`{"MainIP":"10.1.5.6"`))
}

// Without an address in use the list is empty, not null.
func TestNoAllocations(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	for _, c := range []string{"c1", "c2", "c3"} {
		_, err := a.book.Release(ctx(), ledger.Selector{Key: key(c)})
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, body := ask(a.handler, "GET", localapi.PathAllocations, "")
	g.Expect(body).To(MatchJSON(`{"Pods": []}`), "addresses that cool down or are in quarantine have no pod")
}
