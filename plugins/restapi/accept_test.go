// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestAcceptIsADryRunUnlessItIsPosted(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	code, _ := ask(a.handler, http.MethodPost, localapi.PathAccept, "")
	g.Expect(code).To(Equal(http.StatusNotImplemented), "this agent has no database of its own")

	var dry []bool
	var fail error
	deps := a.deps
	deps.Accept = func(_ context.Context, dryRun bool) (localapi.AcceptReport, error) {
		dry = append(dry, dryRun)
		return localapi.AcceptReport{Reason: "older", Accepted: !dryRun}, fail
	}
	h := restapi.NewPlugin(deps).Handler()
	code, body := ask(h, http.MethodGet, localapi.PathAccept, "")
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(body).To(And(ContainSubstring(`"accepted":false`), ContainSubstring(`"leases":[]`), ContainSubstring(`"unleased":[]`)))
	code, body = ask(h, http.MethodPost, localapi.PathAccept, "")
	g.Expect(code).To(Equal(http.StatusOK))
	g.Expect(body).To(ContainSubstring(`"accepted":true`))
	g.Expect(dry).To(Equal([]bool{true, false}))

	fail = errors.New("no space left on device")
	code, body = ask(h, http.MethodPost, localapi.PathAccept, "")
	g.Expect(code).To(Equal(http.StatusInternalServerError))
	g.Expect(body).To(ContainSubstring("no space left"))
}
