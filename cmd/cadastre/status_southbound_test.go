// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestValuesOfTheNetworkThatAreNotMade(t *testing.T) {
	g, now := NewWithT(t), time.Unix(1000, 0)
	g.Expect(southboundTexts(nil, now, true)).To(BeEmpty())
	g.Expect(southboundTexts(&localapi.Southbound{Made: 1}, now, false)).To(Equal([]string{"1 value made"}))
	due := now.Add(5 * time.Second)
	s := &localapi.Southbound{Made: 12, Pending: 1, Failed: 2, Foreign: 1, Values: []localapi.SouthboundValue{
		{Key: "node", Error: "operation not permitted", Retry: &due},
		{Key: "route/10.1.7.0/24", Error: "an object of another program is in the way: 10.1.7.0/24 via 192.168.16.1 proto static", Foreign: true},
		{Key: "route/10.1.8.0/24", WaitsFor: []string{"node", "tunnel/8"}},
	}}
	g.Expect(southboundTexts(s, now, false)).To(Equal([]string{
		"12 values made, 1 pending, 2 failed (1 because of objects of other programs)",
		"node failed: operation not permitted; it is tried again in 5s",
		"route/10.1.7.0/24 failed: an object of another program is in the way: 10.1.7.0/24 via 192.168.16.1 proto static",
		"route/10.1.8.0/24 waits for node, tunnel/8",
	}))
	for i := range 20 {
		s.Values = append(s.Values, localapi.SouthboundValue{Key: fmt.Sprint("route/", i), WaitsFor: []string{"node"}})
	}
	s.Pending = 300
	g.Expect(southboundTexts(s, now, false)).To(HaveLen(1 + fewValues + 1))
	g.Expect(southboundTexts(s, now, false)).To(ContainElement("297 further values are not made: see status -o wide"))
	g.Expect(southboundTexts(s, now, true)).To(HaveLen(1 + 23 + 1))
	g.Expect(southboundTexts(s, now, true)).To(ContainElement("279 further values are not made"))
}
