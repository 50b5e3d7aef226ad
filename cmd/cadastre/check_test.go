// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// someReport is a clean report of a node with pods and without Docker.
func someReport(found ...localapi.Finding) localapi.CheckReport {
	return localapi.CheckReport{
		Node:     "node-5",
		Leases:   12,
		Findings: append([]localapi.Finding{}, found...),
		Witnesses: []localapi.Witness{
			{Name: "kernel", State: "present", Source: "netlink", Objects: 14},
			{Name: "runtime", State: "present", Source: "containerd 2.1", Objects: 12},
			{Name: "engine", State: "not applicable", Reason: "no Docker"},
			{Name: "cluster", State: "present", Source: "state of revision 7", Objects: 1},
		},
	}
}

const comparedLine = "12 leases, kernel (14 namespaces), runtime (containerd 2.1, 12 sandboxes), cluster (state of revision 7, 1 pod); not applicable: engine\n"

// leaked is a finding with a repair, byHand one without.
func leaked() localapi.Finding {
	return localapi.Finding{
		Number: "C201", Name: "leaked-lease", Text: "10.1.5.9 is leased to pod default/web, which is gone", Repair: "reclaim",
		Subject:  localapi.Subject{Addr: netip.MustParseAddr("10.1.5.9")},
		Evidence: []localapi.Evidence{{Witness: "kernel", Text: "none of 14 network namespaces has 10.1.5.9"}},
		Fix:      "cadastre release --ip 10.1.5.9", Facts: []string{}, Signature: "aaaa",
	}
}

func byHand() localapi.Finding {
	return localapi.Finding{Number: "C301", Name: "missing-default-route", Text: "pod default/web has no default route of ipv4", Fix: "start the pod again", Signature: "bbbb", Evidence: []localapi.Evidence{}, Facts: []string{}}
}

func missing() localapi.Finding {
	return localapi.Finding{Number: "C210", Name: localapi.FindingWitnessMissing, Text: "the runtime cannot be asked", Fix: "see its reason in cadastre status", Signature: "cccc"}
}

func TestCheck(t *testing.T) {
	const leakedText = "C201 leaked-lease: 10.1.5.9 is leased to pod default/web, which is gone\n" +
		"     kernel: none of 14 network namespaces has 10.1.5.9\n     repair: reclaim\n     fix: cadastre release --ip 10.1.5.9\n"
	const missingText = "C210 witness-missing: the runtime cannot be asked\n     fix: see its reason in cadastre status\n"
	young := someReport()
	young.Young, young.Pending = 2, 1
	away := someReport(missing())
	away.Witnesses[1] = localapi.Witness{Name: "runtime", State: "missing", Reason: "no socket"}
	for _, c := range []struct {
		name   string
		report localapi.CheckReport
		want   outcome
	}{
		{"clean", someReport(), outcome{0, "clean: " + comparedLine, ""}},
		{"clean, but for young leases", young, outcome{0, "clean: " + strings.Replace(comparedLine, "12 leases", "12 leases (2 too young to compare, 1 pending)", 1), ""}},
		{"a finding", someReport(leaked()), outcome{exitFindings, leakedText + "1 finding: " + comparedLine, ""}},
		{"a missing witness", away, outcome{exitCannotTell, missingText + "cannot tell: 12 leases, kernel (14 namespaces), cluster (state of revision 7, 1 pod); missing: runtime (no socket); not applicable: engine\n", ""}},
		{"both", someReport(leaked(), missing()), outcome{exitFindings, leakedText + missingText + "1 finding, and there may be more: " + comparedLine, ""}},
		{"an agent that names no witness", localapi.CheckReport{Leases: 3}, outcome{exitCannotTell, "cannot tell: 3 leases\n", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			agent := bareAgent(t)
			agent.json(localapi.PathCheck, c.report)
			g.Expect(call(t, agent.socket, "", "check")).To(Equal(c.want))
			asJSON := call(t, agent.socket, "", "check", "-o", "json")
			g.Expect(asJSON.code).To(Equal(c.want.code))
			var got localapi.CheckReport
			g.Expect(json.Unmarshal([]byte(asJSON.out), &got)).To(Succeed())
			g.Expect(got.Findings).To(HaveLen(len(c.report.Findings)))
			g.Expect(got.Findings).NotTo(BeNil())
		})
	}
}

func TestCheckOfTheLedgerAlone(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	agent.json(localapi.PathCheckLedger, localapi.CheckReport{Leases: 4, LedgerOnly: true})
	g.Expect(call(t, agent.socket, "", "check", "--ledger")).To(Equal(outcome{0, "clean: 4 leases in the ledger and its file; no witness was asked\n", ""}))
	agent = bareAgent(t)
	agent.json(localapi.PathCheckLedger, localapi.CheckReport{Leases: 4, LedgerOnly: true, Findings: []localapi.Finding{{Number: "C101", Name: "ledger-contradiction", Text: "x", Fix: "y"}}})
	g.Expect(call(t, agent.socket, "", "check", "--ledger").code).To(Equal(exitFindings))
}
