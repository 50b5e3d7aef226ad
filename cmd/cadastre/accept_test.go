// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// acceptable answers what a database in doubt may not know. It refuses what is in use.
func (a *fakeAgent) acceptable(r localapi.AcceptReport) {
	a.mux.HandleFunc(localapi.PathAccept, func(w http.ResponseWriter, req *http.Request) {
		var body localapi.AcceptRequest
		_ = json.NewDecoder(req.Body).Decode(&body)
		answer := r
		switch {
		case req.Method == http.MethodGet || r.Reason == "":
		case r.Refused != "" && !body.Force:
			w.WriteHeader(http.StatusConflict)
		default:
			answer.Accepted, answer.Refused, answer.Quarantined = true, "", len(r.Uses)
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
}

const shownByAccept = `
why       the database came back older than it was
noted     commit 140 of 2026-03-04 12:00:00
database  commit 151 of 2026-03-04 11:00:00
-         31 leases in it
forgotten: what 20 commits after commit 120 changed
`

// acceptReport returns the report of a database that lacks 20 commits. The agent has made 31
// commits since it opened the database.
func acceptReport() localapi.AcceptReport {
	return localapi.AcceptReport{
		Reason:   "the database came back older than it was",
		Noted:    localapi.Commit{Lineage: "aa", Sequence: 140, At: noon()},
		Opened:   localapi.Commit{Lineage: "aa", Sequence: 120, At: noon().Add(-2 * time.Hour)},
		Database: localapi.Commit{Lineage: "aa", Sequence: 151, At: noon().Add(-time.Hour)},
		Leases:   make([]localapi.Lease, 31),
		InUse:    localapi.InUse{Uses: []localapi.Use{}, Incomplete: []string{}},
	}
}

func TestAccept(t *testing.T) {
	g := NewWithT(t)
	a := bareAgent(t)
	a.acceptable(acceptReport())
	accept := func(args ...string) outcome {
		return callWith(t.Context(), a.socket, "", nil, append([]string{"accept"}, args...)...)
	}
	got := accept()
	g.Expect(got.code).To(Equal(exitFailed))
	expectText(t, got.out, shownByAccept+"nothing was changed: to accept this database, repeat with --yes\n")
	got = accept("--yes")
	g.Expect(got.code).To(BeZero())
	expectText(t, got.out, shownByAccept+"accepted: new addresses are allocated again\n")
	g.Expect(accept("--yes", "-o", "wide").out).To(ContainSubstring("commit 140 of 2026-03-04 12:00:00, lineage aa"))
	g.Expect(accept("-o", "json").code).To(Equal(exitFailed))
	g.Expect(accept("--force").code).To(Equal(exitUsage))
}

func TestAcceptWithAddressesInUse(t *testing.T) {
	g := NewWithT(t)
	a := bareAgent(t)
	r := acceptReport()
	r.Opened = localapi.Commit{} // the file was removed
	r.Refused = "refused"
	r.Uses = []localapi.Use{{IP: netip.MustParseAddr("10.1.5.7"), Pod: "shop/web-0", Text: "10.1.5.7 is on eth0 of pod shop/web-0 (/run/netns/web-0)"}}
	r.Incomplete = []string{"runtime: it does not answer"}
	a.acceptable(r)
	shown := strings.ReplaceAll(shownByAccept, "forgotten: what 20 commits after commit 120 changed\n",
		"forgotten: all that 140 commits changed, unless this database has it too\n") + `in use now:
  10.1.5.7 is on eth0 of pod shop/web-0 (/run/netns/web-0)
cannot be told, because a witness was not read completely:
  runtime: it does not answer
`
	hints := "nothing was changed. The cures, in this order:\n" + cures +
		"To accept with these addresses in use, which are quarantined then: cadastre accept --yes --force\n"
	for _, c := range []struct {
		args []string
		code int
		out  string
		err  string
	}{
		{nil, exitFailed, hints, ""},
		{[]string{"--yes"}, exitFindings, hints, "cadastre: refused: nothing was changed\n"},
		{[]string{"--yes", "--force"}, 0, "accepted: new addresses are allocated again; quarantined: 1 address\n", ""},
	} {
		got := callWith(t.Context(), a.socket, "", nil, append([]string{"accept"}, c.args...)...)
		g.Expect(got.code).To(Equal(c.code))
		g.Expect(got.err).To(Equal(c.err))
		expectText(t, got.out, shown+c.out)
	}
}

func TestAcceptOfADatabaseThatIsNotInDoubt(t *testing.T) {
	a := bareAgent(t)
	a.acceptable(localapi.AcceptReport{Database: localapi.Commit{Sequence: 7}})
	for _, args := range [][]string{{"accept"}, {"accept", "--yes"}} {
		got := callWith(t.Context(), a.socket, "", nil, args...)
		NewWithT(t).Expect(got.code).To(BeZero())
		expectText(t, got.out, "\nnothing to accept: the database is the one that this agent wrote, at commit 7\n")
	}
}
