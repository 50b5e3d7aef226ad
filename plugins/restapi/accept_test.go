// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// doubt is a database in doubt until it is accepted.
type doubt struct {
	accepted bool
	fail     error
}

func (d *doubt) Last() bolt.Commit { return bolt.Commit{Lineage: "here", Sequence: 7} }

func (d *doubt) Doubt() *bolt.Doubt {
	if d.accepted {
		return nil
	}
	return &bolt.Doubt{Reason: "older", Known: bolt.Commit{Lineage: "here", Sequence: 9}}
}

func (d *doubt) Accept(context.Context) error {
	d.accepted = d.fail == nil
	return d.fail
}

func TestAcceptIsADryRunUnlessItIsPosted(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	code, _ := ask(a.handler, http.MethodPost, localapi.PathAccept, "")
	g.Expect(code).To(Equal(http.StatusNotImplemented), "this agent has no database of its own")

	a.book.Suspend("database", "older")
	database := &doubt{fail: errors.New("no space left on device")}
	h := a.with(func(d *restapi.Deps) { d.Doubt = database })
	accept := func(method string) (code int, r localapi.AcceptReport) {
		code, body := ask(h, method, localapi.PathAccept, "")
		if code == http.StatusOK {
			g.Expect(json.Unmarshal([]byte(body), &r)).To(Succeed())
		} else {
			g.Expect(body).To(ContainSubstring("no space left"))
		}
		return code, r
	}
	code, report := accept(http.MethodGet)
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(report.Reason).To(Equal("older"))
	g.Expect(report.Noted.Sequence).To(Equal(uint64(9)))
	g.Expect(report.Database.Sequence).To(Equal(uint64(7)))
	g.Expect(report.Leases).To(HaveLen(4), "infra and quarantined addresses are not among them")
	g.Expect(report.Unleased).To(ConsistOf(HaveField("IP", "10.1.5.77")))
	g.Expect(report.Accepted || database.accepted).To(BeFalse(), "a dry run")

	code, _ = accept(http.MethodPost)
	g.Expect(code).To(Equal(http.StatusInternalServerError))
	g.Expect(a.book.Suspended()).NotTo(BeEmpty())

	database.fail = nil
	code, report = accept(http.MethodPost)
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(report.Accepted && database.accepted).To(BeTrue())
	g.Expect(a.book.Suspended()).To(BeEmpty())

	_, report = accept(http.MethodPost)
	g.Expect(report).To(And(HaveField("Reason", ""), HaveField("Accepted", false)), "it is not in doubt any more")
}
