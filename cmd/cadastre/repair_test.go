// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// repairing is an agent that repairs what has a repair; asked holds the requests.
func repairing(t *testing.T, refused string) (a *fakeAgent, asked *[]localapi.RepairRequest) {
	a, asked = bareAgent(t), &[]localapi.RepairRequest{}
	a.mux.HandleFunc("POST "+localapi.PathRepair, func(w http.ResponseWriter, r *http.Request) {
		var req localapi.RepairRequest
		_ = json.NewDecoder(r.Body).Decode(&req)
		*asked = append(*asked, req)
		reply := localapi.RepairReply{Finding: req.Finding, Refused: refused}
		if refused == "" && req.Finding.Repair != "" {
			reply.Change, reply.Done = "reclaim 10.1.5.9", !req.DryRun
		}
		_ = json.NewEncoder(w).Encode(reply)
	})
	return a, asked
}

// reportFile writes a report as check prints it.
func reportFile(t *testing.T, found ...localapi.Finding) string {
	t.Helper()
	agent := bareAgent(t)
	agent.json(localapi.PathCheck, someReport(found...))
	name := filepath.Join(t.TempDir(), "report.json")
	NewWithT(t).Expect(os.WriteFile(name, []byte(call(t, agent.socket, "", "check", "-o", "json").out), 0o600)).To(Succeed())
	return name
}

func TestRepair(t *testing.T) {
	const done = "repaired: C201 leaked-lease: 10.1.5.9 is leased to pod default/web, which is gone\n     reclaim 10.1.5.9\n"
	const hand = "by hand: C301 missing-default-route: pod default/web has no default route of ipv4\n     start the pod again\n"
	for _, c := range []struct {
		name, stdin, refused string
		args                 []string
		code                 int
		out                  string
		changes              int // requests that are not a dry run
	}{
		{"yes", "", "", []string{"--yes"}, 0, done + hand + "1 repaired, 1 by hand\n", 1},
		{"the answer is yes", "y\n", "", nil, 0, done + hand + "1 repaired, 1 by hand\n", 1},
		{"the answer is no", "n\n", "", nil, 0, strings.Replace(done, "repaired", "skipped", 1) + hand + "1 by hand, 1 skipped\n", 0},
		{"there is no answer", "", "", nil, 0, strings.Replace(done, "repaired", "skipped", 1) + hand + "1 by hand, 1 skipped\n", 0},
		{"dry run", "", "", []string{"--dry-run"}, 0, strings.Replace(done, "repaired", "would repair", 1) + hand + "1 would repair, 1 by hand\n", 0},
		{"one finding", "", "", []string{"--yes", "--finding", "bbbb"}, 0, hand + "1 by hand\n", 0},
		{"refused", "", "it has changed: now y", []string{"--yes", "--finding", "aaaa"}, exitFindings,
			"refused: C201 leaked-lease: 10.1.5.9 is leased to pod default/web, which is gone\n     it has changed: now y\n1 refused\n", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			agent, asked := repairing(t, c.refused)
			got := call(t, agent.socket, c.stdin, append([]string{"repair", "--from-report", reportFile(t, leaked(), byHand())}, c.args...)...)
			g.Expect(got.code).To(Equal(c.code), got.err)
			g.Expect(got.out).To(Equal(c.out))
			changes := 0
			for _, r := range *asked {
				if !r.DryRun {
					changes++
					g.Expect(r.Finding.Signature).To(Equal("aaaa"))
				}
			}
			g.Expect(changes).To(Equal(c.changes))
		})
	}
}

func TestRepairReportsFailures(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	agent.text("/", 500, `{"error":"the disk is full"}`)
	got := call(t, agent.socket, "", "repair", "--yes", "--from-report", reportFile(t, leaked()))
	g.Expect(got.code).To(Equal(exitFailed))
	g.Expect(got.out).To(Equal("failed: C201 leaked-lease: 10.1.5.9 is leased to pod default/web, which is gone\n     the disk is full\n1 failed\n"))
	g.Expect(call(t, noListener(t), "", "repair", "--from-report", reportFile(t, leaked())).code).To(Equal(exitNoAgent))
	g.Expect(call(t, noListener(t), "", "repair", "--from-report", reportFile(t))).To(Equal(outcome{0, "nothing to repair: the report has no findings\n", ""}))
}

func TestRepairRefusesWrongReports(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "report.json")
		NewWithT(t).Expect(os.WriteFile(name, []byte(text), 0o600)).To(Succeed())
		return name
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, exitUsage, "write --from-report FILE"},
		{[]string{"--from-report", "nothing-there"}, exitFailed, "read the report: open nothing-there"},
		{[]string{"--from-report", file("C201 leaked-lease")}, exitFailed, `want the output of "cadastre check -o json"`},
		{[]string{"--from-report", file("{}")}, exitFailed, "it has no field findings"},
		{[]string{"--from-report", reportFile(t, leaked()), "--finding", "dddd"}, exitUsage, `the report has no finding with signature "dddd"`},
		{[]string{"--from-report", "-"}, exitUsage, "add --yes or --dry-run"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			g := NewWithT(t)
			agent, asked := repairing(t, "")
			got := call(t, agent.socket, `{"findings":[]}`, append([]string{"repair"}, c.args...)...)
			g.Expect(got.code).To(Equal(c.code))
			g.Expect(got.err).To(ContainSubstring(c.want))
			g.Expect(*asked).To(BeEmpty())
		})
	}
}
