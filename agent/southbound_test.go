// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/southbound"
)

func TestTheStatusNamesValuesThatAreNotMade(t *testing.T) {
	g, due := NewWithT(t), time.Unix(1000, 0)
	g.Expect(*southboundOf(southbound.Status{
		Made:    3,
		Pending: []southbound.Pending{{Key: "route/10.1.8.0/24", WaitsFor: []string{"tunnel/8"}}},
		Failed: []southbound.Failed{
			{Key: "node", Error: "operation not permitted", Retry: due},
			{Key: "route/10.1.7.0/24", Error: "in the way", Foreign: true},
		},
	})).To(Equal(localapi.Southbound{Made: 3, Pending: 1, Failed: 2, Foreign: 1, Values: []localapi.SouthboundValue{
		{Key: "node", Error: "operation not permitted", Retry: &due},
		{Key: "route/10.1.7.0/24", Error: "in the way", Foreign: true},
		{Key: "route/10.1.8.0/24", WaitsFor: []string{"tunnel/8"}},
	}}))
	var many southbound.Status
	for i := range 1000 {
		many.Pending = append(many.Pending, southbound.Pending{Key: fmt.Sprint("route/", i)})
	}
	g.Expect(southboundOf(many).Pending).To(Equal(1000))
	g.Expect(southboundOf(many).Values).To(HaveLen(localapi.MaxSouthboundValues))

	_, ok := (&assembly{sink: &controller.MemorySink{}}).southbound()
	g.Expect(ok).To(BeFalse(), "an agent that changes nothing of the network")
	status, ok := (&assembly{sink: southbound.New(southbound.Options{})}).southbound()
	g.Expect(ok).To(BeTrue())
	g.Expect(status).To(Equal(southbound.Status{}))
}
