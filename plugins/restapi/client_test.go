// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// The types below are those that Contiv-VPP has published for its REST paths, under
// their names there. A client of Contiv-VPP decodes our answers with them.

// ipamData is the answer of /contiv/v1/ipam.
type ipamData struct {
	NodeID            uint32             `json:"nodeId"`
	NodeName          string             `json:"nodeName"`
	NodeIP            string             `json:"nodeIP"`
	PodSubnetThisNode string             `json:"podSubnetThisNode"`
	VppHostNetwork    string             `json:"vppHostNetwork"`
	Config            *IPAMConfigForJSON `json:"config"`
}

// IPAMConfigForJSON is the ipamConfig of contiv.conf.
type IPAMConfigForJSON struct {
	UseExternalIPAM               bool   `json:"useExternalIPAM,omitempty"`
	ContivCIDR                    string `json:"contivCIDR,omitempty"`
	ServiceCIDR                   string `json:"serviceCIDR,omitempty"`
	NodeInterconnectDHCP          bool   `json:"nodeInterconnectDHCP,omitempty"`
	PodSubnetCIDR                 string `json:"podSubnetCIDR,omitempty"`
	PodSubnetOneNodePrefixLen     uint8  `json:"podSubnetOneNodePrefixLen,omitempty"`
	VPPHostSubnetCIDR             string `json:"vppHostSubnetCIDR,omitempty"`
	VPPHostSubnetOneNodePrefixLen uint8  `json:"vppHostSubnetOneNodePrefixLen,omitempty"`
	NodeInterconnectCIDR          string `json:"nodeInterconnectCIDR,omitempty"`
	VxlanCIDR                     string `json:"vxlanCIDR,omitempty"`
	DefaultGateway                string `json:"defaultGateway,omitempty"`
}

// podIPAllocations is the answer of /contiv/v1/ipam/allocations.
type podIPAllocations struct {
	Pods []struct {
		PodID       struct{ Name, Namespace string }
		MainIP      string
		CustomIfIPs map[string]string
	}
}

// EventMethodType is a number in JSON.
type EventMethodType int

// EventRecord is one event of /controller/event-history.
type EventRecord struct {
	SeqNum          uint64
	ProcessingStart time.Time
	ProcessingEnd   time.Time
	IsFollowUp      bool
	FollowUpTo      uint64
	Name            string
	Description     string
	Method          EventMethodType
	Handlers        []*EventHandlingRecord
	TxnError        error
	Txn             *struct{ SeqNum uint64 }
}

// EventHandlingRecord is the result of one handler.
type EventHandlingRecord struct {
	Handler  string
	Revert   bool
	Change   string
	Error    error
	ErrorStr string
}

func TestContivClientReadsIPAM(t *testing.T) {
	g := NewWithT(t)
	h := newAgent(t).with(func(d *restapi.Deps) {
		d.Cluster = cluster{ipam: func() (localapi.ContivIPAM, error) { return ipamOf(), nil }}
	})
	code, body := ask(h, "GET", "/contiv/v1/ipam", "")
	g.Expect(code).To(Equal(http.StatusOK))
	var p ipamData
	g.Expect(json.Unmarshal([]byte(body), &p)).To(Succeed())
	g.Expect(*p.Config).To(Equal(IPAMConfigForJSON{
		ServiceCIDR:                   "10.96.0.0/12",
		PodSubnetCIDR:                 "10.1.0.0/16",
		PodSubnetOneNodePrefixLen:     24,
		VPPHostSubnetCIDR:             "172.30.0.0/16",
		VPPHostSubnetOneNodePrefixLen: 24,
		NodeInterconnectCIDR:          "192.168.16.0/24",
		VxlanCIDR:                     "192.168.30.0/24",
	}))
	p.Config = nil
	g.Expect(p).To(Equal(ipamData{
		NodeID:            5,
		NodeName:          "node-a",
		NodeIP:            "192.168.16.5",
		PodSubnetThisNode: "10.1.5.0/24",
		VppHostNetwork:    "172.30.5.0/24",
	}))
}

func TestContivClientReadsAllocations(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.blue()
	a.allocate("blue", "web-0", ledger.Key{Network: "blue", ContainerID: "c2", IfName: "net1"}, ledger.IPv4)
	code, body := ask(a.handler, "GET", "/contiv/v1/ipam/allocations", "")
	g.Expect(code).To(Equal(http.StatusOK))
	var p podIPAllocations
	g.Expect(json.Unmarshal([]byte(body), &p)).To(Succeed())
	g.Expect(p.Pods).To(HaveLen(2))
	g.Expect(p.Pods[0].PodID.Namespace + "/" + p.Pods[0].PodID.Name).To(Equal("ns/web-0"))
	g.Expect(p.Pods[0].MainIP).To(Equal("10.1.5.3"))
	g.Expect(p.Pods[0].CustomIfIPs).To(Equal(map[string]string{"net1/blue": "10.5.0.0"}))
	g.Expect(p.Pods[1].PodID.Name + " " + p.Pods[1].MainIP).To(Equal("web-1 10.1.5.4"))
}

func TestContivClientReadsEventHistory(t *testing.T) {
	g := NewWithT(t)
	h := history(t)
	code, body := ask(h, "GET", "/controller/event-history?from=0&to=3", "")
	g.Expect(code).To(Equal(http.StatusOK))
	var all []*EventRecord
	g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
	g.Expect(all).To(HaveLen(4))
	g.Expect(all[0].Name).To(Equal("Database Resync"))
	g.Expect(all[0].Method).To(Equal(EventMethodType(0)), "FullResync")
	g.Expect(all[0].ProcessingStart.Unix()).To(Equal(int64(1000)))
	g.Expect(all[3].Method).To(Equal(EventMethodType(3)), "Update")
	g.Expect(all[3].Handlers).To(HaveLen(1))
	g.Expect(all[3].Handlers[0].ErrorStr).To(ContainSubstring("it went wrong: injected"))

	code, body = ask(h, "GET", "/controller/event-history?seq-num=4", "")
	g.Expect(code).To(Equal(http.StatusOK))
	var one EventRecord
	g.Expect(json.Unmarshal([]byte(body), &one)).To(Succeed())
	g.Expect(one.SeqNum).To(Equal(uint64(4)))
	g.Expect(one.Handlers[0].Change).To(Equal("did deed 4"))
}

// Contiv's client has an error value for the southbound, which only null decodes into: the
// text has a field beside it.
func TestContivClientReadsAFailedTransaction(t *testing.T) {
	g := NewWithT(t)
	h := newAgent(t).with(func(d *restapi.Deps) {
		d.Loop = loop{query: func(controller.HistoryQuery) ([]controller.Record, error) {
			return []controller.Record{{SeqNum: 7, TxnError: "the route is refused"}}, nil
		}}
	})
	code, body := ask(h, "GET", "/controller/event-history?seq-num=7", "")
	g.Expect(code).To(Equal(http.StatusOK))
	var one EventRecord
	g.Expect(json.Unmarshal([]byte(body), &one)).To(Succeed())
	g.Expect(one.SeqNum).To(Equal(uint64(7)))
	g.Expect(one.TxnError).To(BeNil())
	g.Expect(body).To(ContainSubstring(`"TxnErrorStr":"the route is refused"`))
}

func TestContivClientAsksForAResync(t *testing.T) {
	g := NewWithT(t)
	h := newAgent(t).with(func(d *restapi.Deps) { d.State = state{dispatch: func(context.Context) error { return nil }} })
	code, body := ask(h, "POST", "/controller/resync", "")
	g.Expect(code).To(Equal(http.StatusOK))
	var text string
	g.Expect(json.Unmarshal([]byte(body), &text)).To(Succeed())
	g.Expect(text).To(Equal("Resync request was successfully dispatched."))
}
