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

const poolsText = "pools:\n- name: blue\n"

func poolsFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pools.yaml")
	if err := os.WriteFile(path, []byte(poolsText), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNodeList(t *testing.T) {
	agent := newAgent(t)
	expectText(t, call(t, agent.socket, "", "node", "list").out, `
ID  NAME    STATE     ADDRESSES                     PODS         SEEN
5   node-5  self      192.168.16.5/24,fd00:3::5/64  10.1.5.0/24  3s
6   node-6  held      -                             -            never
7   node-7  released  -                             -            -
`)
	expectText(t, call(t, agent.socket, "", "node", "list", "-o", "wide").out, `
ID  NAME    STATE     ADDRESSES                     PODS         SEEN   GENERATION  INSTANCE  POOLS
5   node-5  self      192.168.16.5/24,fd00:3::5/64  10.1.5.0/24  3s     3           c0ffee    default@2: 12 leases; old@1: closed, 1 lease
6   node-6  held      -                             -            never  1           decaf     -
7   node-7  released  -                             -            -      9           f00d      -
`)
	g := NewWithT(t)
	agent = bareAgent(t)
	agent.text(localapi.PathNodes, 200, "[]")
	g.Expect(call(t, agent.socket, "", "node", "list")).To(Equal(outcome{0, "no nodes\n", ""}))
	g.Expect(call(t, agent.socket, "", "node", "list", "-o", "json")).To(Equal(outcome{0, "[]\n", ""}))
}

// A node whose record cannot be read is shown by its ID, and the reason in JSON.
func TestNodeListWithARecordThatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	agent.text(localapi.PathNodes, 200, `[{"id": 6, "problem": "the value of cluster/node-id/6 cannot be read"}]`)
	expectText(t, call(t, agent.socket, "", "node", "list").out, `
ID  NAME  STATE       ADDRESSES  PODS  SEEN
6   -     unreadable  -          -     never
`)
	g.Expect(call(t, agent.socket, "", "node", "list", "-o", "json").out).To(ContainSubstring("cluster/node-id/6 cannot be read"))
}

func TestNodeRelease(t *testing.T) {
	for _, force := range []bool{false, true} {
		g := NewWithT(t)
		agent := bareAgent(t)
		var asked localapi.NodeReleaseRequest
		agent.mux.HandleFunc("POST "+localapi.PathNodeRelease, func(w http.ResponseWriter, r *http.Request) {
			g.Expect(json.NewDecoder(r.Body).Decode(&asked)).To(Succeed())
			_, _ = w.Write([]byte(`{"id":7}`))
		})
		args := []string{"node", "release", "node-7"}
		if force {
			args = append(args, "--force")
		}
		g.Expect(call(t, agent.socket, "", args...)).To(Equal(outcome{0, "released node ID 7 of node-7\n", ""}))
		g.Expect(asked).To(Equal(localapi.NodeReleaseRequest{Name: "node-7", Force: force}))
		g.Expect(call(t, agent.socket, "", append(args, "-o", "json")...).out).To(MatchJSON(`{"name":"node-7","id":7}`))
	}
	agent := newAgent(t)
	NewWithT(t).Expect(call(t, agent.socket, "", "node", "release", "node-7", "--dry-run")).To(Equal(outcome{0, "would release node ID 7 of node-7\n", ""}))
	for status, why := range map[int]string{404: "no node has the name node-7", 409: "node-7 was there 3s ago"} {
		agent := bareAgent(t)
		agent.text(localapi.PathNodeRelease, status, `{"error":"`+why+`"}`)
		code := map[int]int{404: exitFailed, 409: exitFindings}[status]
		NewWithT(t).Expect(call(t, agent.socket, "", "node", "release", "node-7")).To(Equal(outcome{code, "", "cadastre: node release: " + why + "\n"}))
	}
}

func TestPoolList(t *testing.T) {
	agent := newAgent(t)
	expectText(t, call(t, agent.socket, "", "pool", "list").out, `
NAME     NETWORK  RANGES                            STATE     HELD  FREE
default  default  10.1.0.0/16 /24, fd00:1::/48 /64  open      15    18446744073709551615
blue     blue     10.5.0.0/16 /26                   draining  0     0
blue: 10.5.0.0/16 overlaps serviceCIDR
`)
	expectText(t, call(t, agent.socket, "", "pool", "list", "-o", "wide").out, `
NAME     NETWORK  RANGES                            STATE     HELD  FREE                  GENERATION  ORIGIN       BLOCKS
default  default  10.1.0.0/16 /24, fd00:1::/48 /64  open      15    18446744073709551615  2           contiv.conf  10.1.5.0/24 active, fd00:1:0:5::/64 active
blue     blue     10.5.0.0/16 /26                   draining  0     0                     1           apply        -
blue: 10.5.0.0/16 overlaps serviceCIDR
`)
	agent = bareAgent(t)
	agent.text(localapi.PathPools, 200, "[]")
	NewWithT(t).Expect(call(t, agent.socket, "", "pool", "list")).To(Equal(outcome{0, "no pools\n", ""}))
}

// applier is an agent that answers apply with status and v, and remembers what it was asked.
func applier(t *testing.T, status int, v any) (*fakeAgent, *[]localapi.ApplyRequest) {
	t.Helper()
	agent, asked := bareAgent(t), &[]localapi.ApplyRequest{}
	agent.mux.HandleFunc("POST "+localapi.PathApply, func(w http.ResponseWriter, r *http.Request) {
		var req localapi.ApplyRequest
		_ = json.NewDecoder(r.Body).Decode(&req)
		*asked = append(*asked, req)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	})
	return agent, asked
}

// planOrApply are both ways to ask for a dry run.
func planOrApply(socket, file string) [][]string {
	return [][]string{{"apply", "-f", file, "--dry-run"}, {"plan", "--against", socket, "-f", file}}
}

func TestApply(t *testing.T) {
	g := NewWithT(t)
	agent, asked := applier(t, 200, someResult())
	const done = "pool blue: draining\n1 change\n"
	g.Expect(call(t, agent.socket, "", "apply", "-f", poolsFile(t))).To(Equal(outcome{0, done, ""}))
	g.Expect(call(t, agent.socket, poolsText, "apply", "-f", "-")).To(Equal(outcome{0, done, ""}))
	g.Expect(*asked).To(Equal([]localapi.ApplyRequest{{File: poolsText}, {File: poolsText}}))
	*asked = nil
	for _, file := range []string{poolsFile(t), "-"} {
		for _, args := range planOrApply(agent.socket, file) {
			g.Expect(call(t, agent.socket, poolsText, args...)).To(Equal(outcome{0, done, ""}), strings.Join(args, " "))
			var result localapi.ApplyResult
			g.Expect(json.Unmarshal([]byte(call(t, agent.socket, poolsText, append(args, "-o", "json")...).out), &result)).To(Succeed())
			g.Expect(result).To(Equal(someResult()))
		}
	}
	g.Expect(*asked).To(HaveLen(8))
	for _, req := range *asked {
		g.Expect(req).To(Equal(localapi.ApplyRequest{File: poolsText, DryRun: true}), "a plan changes nothing")
	}
}

// --against is the agent that is asked, whatever --socket says.
func TestPlanAgainst(t *testing.T) {
	g := NewWithT(t)
	agent, asked := applier(t, 200, someResult())
	g.Expect(call(t, noListener(t), poolsText, "plan", "--against", agent.socket, "-f", "-").code).To(Equal(0))
	g.Expect(*asked).To(HaveLen(1))
	got := call(t, agent.socket, poolsText, "plan", "--against", noListener(t), "-f", "-")
	g.Expect(got.code).To(Equal(exitNoAgent))
	g.Expect(got.err).To(HavePrefix("cadastre: plan: no agent answers at "))
}

// refused is a result that stands in the way of itself.
func refusedResult() localapi.ApplyResult {
	r := someResult()
	r.Text, r.Changes, r.Refused = "pool default: node-5 has 12 leases of it\n", 0, true
	r.Blocks = []localapi.Blocker{{Pool: "default", Node: "node-5", Leases: 12, Reason: "pool default: node-5 has 12 leases of it"}}
	return r
}

func TestApplyRefused(t *testing.T) {
	const text = "pool default: node-5 has 12 leases of it\n"
	for name, c := range map[string]struct {
		status int
		answer any
	}{
		"in a result": {200, refusedResult()}, "by the status": {409, localapi.ApplyRefusal{Error: "no", ApplyResult: refusedResult()}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			agent, _ := applier(t, c.status, c.answer)
			g.Expect(call(t, agent.socket, poolsText, "apply", "-f", "-")).To(Equal(outcome{exitFindings, text, "cadastre: apply: refused: nothing was changed\n"}))
			for _, args := range planOrApply(agent.socket, "-") {
				g.Expect(call(t, agent.socket, poolsText, args...)).To(Equal(outcome{exitFindings, text, "cadastre: " + args[0] + ": it would be refused\n"}))
			}
			got := call(t, agent.socket, poolsText, "apply", "-f", "-", "-o", "json")
			g.Expect(got.code).To(Equal(exitFindings))
			var result localapi.ApplyResult
			g.Expect(json.Unmarshal([]byte(got.out), &result)).To(Succeed())
			g.Expect(result).To(Equal(refusedResult()))
		})
	}
	g := NewWithT(t)
	silent := localapi.ApplyRefusal{Error: "nothing was changed: so be it", ApplyResult: localapi.ApplyResult{Refused: true}}
	agent, _ := applier(t, 409, silent)
	g.Expect(call(t, agent.socket, poolsText, "apply", "-f", "-").out).To(Equal("nothing was changed: so be it\n"))
}

// An error that is not a refusal of the file is 1: an unreadable file, a conflict of another kind.
func TestApplyFails(t *testing.T) {
	problem := localapi.Problem{Field: "pools[0].name", Value: "B", Problem: "is not a name: write b"}
	for _, c := range []struct {
		status int
		answer localapi.ApplyRefusal
		want   string
	}{
		{400, localapi.ApplyRefusal{Error: "line 3: no YAML"}, "line 3: no YAML\n"},
		{400, localapi.ApplyRefusal{Error: "it cannot be read", ApplyResult: localapi.ApplyResult{Refused: true, Problems: []localapi.Problem{problem}}},
			"it cannot be read\npools[0].name: \"B\" is not a name: write b\n"},
		{400, localapi.ApplyRefusal{Error: problem.String(), ApplyResult: localapi.ApplyResult{Problems: []localapi.Problem{problem}}}, "pools[0].name: \"B\" is not a name: write b\n"},
		{409, localapi.ApplyRefusal{Error: "another apply runs"}, "another apply runs\n"},
		{503, localapi.ApplyRefusal{Error: "the store does not answer"}, "the store does not answer\n"},
	} {
		agent, _ := applier(t, c.status, c.answer)
		NewWithT(t).Expect(call(t, agent.socket, poolsText, "apply", "-f", "-")).To(Equal(outcome{exitFailed, "", "cadastre: apply: " + c.want}))
	}
}

func TestApplyReadsItsFile(t *testing.T) {
	g := NewWithT(t)
	agent, asked := applier(t, 200, someResult())
	for stdin, want := range map[string]string{
		"": "standard input is empty", " \n\t": "standard input is empty", strings.Repeat("#", maxFile+1): "standard input has more than 1048576 bytes",
	} {
		got := call(t, agent.socket, stdin, "apply", "-f", "-")
		g.Expect(got.code).To(Equal(exitFailed))
		g.Expect(got.err).To(HavePrefix("cadastre: apply: " + want))
	}
	got := call(t, agent.socket, "", "apply", "-f", filepath.Join(t.TempDir(), "none.yaml"))
	g.Expect(got.code).To(Equal(exitFailed))
	g.Expect(got.err).To(HaveSuffix("none.yaml: no such file or directory\n"))
	g.Expect(call(t, agent.socket, "", "apply", "-f", t.TempDir()).err).To(ContainSubstring("is a directory"))
	g.Expect(*asked).To(BeEmpty())
}
