// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// TestTheArgumentsOfTheHistory: one answer has at most a page, and what cannot be meant is
// refused.
func TestTheArgumentsOfTheHistory(t *testing.T) {
	h := newAgent(t).with(func(*restapi.Deps) {})
	for args, want := range map[string]int{
		"": 501, "limit=10000&before=7&pool=default&address=10.1.5.7&pod=default/web&since=2026-01-02T15:04:05Z": 501, // without a history
		"limit=10001": 400, "limit=99999999999999999999": 400, "limit=0": 400, "limit=-1": 400, "before=-1": 400,
		"address=10.1.5": 400, "pod=web": 400, "pod=/web": 400, "since=14:05": 400, "until=yesterday": 400,
	} {
		code, body := ask(h, "GET", localapi.PathHistory+"?"+args, "")
		NewWithT(t).Expect(code).To(Equal(want), args+": "+body)
	}
}
