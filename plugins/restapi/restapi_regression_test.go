// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// An attachment with an address of each family is released as a whole: who
// looks first must see both addresses go, whichever one was named.
func TestAReleaseSaysAllThatItFrees(t *testing.T) {
	for _, dryRun := range []bool{true, false} {
		g := NewWithT(t)
		a := newAgent(t)
		both, _, err := a.book.Claim(ctx(), ledger.Request{Pool: "default", Key: key("c9"), Pod: ledger.Pod{Namespace: "ns", Name: "web-9"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(both).To(HaveLen(2))
		ask4, err := json.Marshal(localapi.ReleaseRequest{IP: both[0].Addr.String(), DryRun: dryRun})
		g.Expect(err).NotTo(HaveOccurred())
		before := a.held()
		said, _ := a.release(string(ask4))
		_, _ = a.release(`{"ip": "` + both[0].Addr.String() + `"}`)
		var gone []string
		for _, ip := range before {
			if !slices.Contains(a.held(), ip) {
				gone = append(gone, ip)
			}
		}
		g.Expect(said).To(Equal(gone), "dry run: %v", dryRun)
	}
}

// A path that is known for another method is 405, with the methods that it has.
func TestAWrongMethodIsSaidToBeOne(t *testing.T) {
	g := NewWithT(t)
	w := httptest.NewRecorder()
	newAgent(t).handler.ServeHTTP(w, httptest.NewRequest("POST", localapi.PathLeases, nil))
	g.Expect(w.Code).To(Equal(http.StatusMethodNotAllowed))
	g.Expect(w.Header().Get("Allow")).To(ContainSubstring("GET"))
}

// What stands behind the value is rubbish also where it is a bracket.
func TestRubbishBehindTheBody(t *testing.T) {
	for _, body := range []string{`{"containerID": "c1"}]`, `{"containerID": "c1"}}`} {
		g := NewWithT(t)
		a := newAgent(t)
		before := a.held()
		code, _ := ask(a.handler, "POST", localapi.PathRelease, body)
		g.Expect(code).To(Equal(http.StatusBadRequest), body)
		g.Expect(a.held()).To(Equal(before))
	}
}
