// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestNodes(t *testing.T) {
	g := NewWithT(t)
	seen := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	given := []localapi.Node{
		{ID: 5, Name: "node-a", Instance: "c0ffee", Generation: 3, Addresses: []string{"192.168.16.5/24"}, PodCIDRs: []string{"10.1.5.0/24"}, Self: true, LastSeen: &seen,
			Pools: []localapi.PoolUse{{Pool: "default", Generation: 2, Open: true, Leases: 12}}},
		{ID: 6, Name: "node-b", Released: true},
	}
	h := newAgent(t).with(func(d *restapi.Deps) {
		d.Cluster = cluster{nodes: func(context.Context) ([]localapi.Node, error) { return given, nil }}
	})
	code, body := ask(h, "GET", localapi.PathNodes, "")
	g.Expect(code).To(Equal(200))
	g.Expect(body).To(MatchJSON(`[
		{"id": 5, "name": "node-a", "instance": "c0ffee", "generation": 3, "addresses": ["192.168.16.5/24"], "podCIDRs": ["10.1.5.0/24"], "released": false, "self": true,
			"lastSeen": "2026-03-04T12:00:00Z", "pools": [{"pool": "default", "generation": 2, "open": true, "leases": 12}]},
		{"id": 6, "name": "node-b", "instance": "", "generation": 0, "addresses": [], "podCIDRs": [], "released": true, "self": false, "lastSeen": null, "pools": []}]`))
	g.Expect(given[1].Pools).To(BeNil(), "what it was given is not its own")
}

func TestPools(t *testing.T) {
	g := NewWithT(t)
	given := []localapi.Pool{
		{Name: "default", Network: "default", State: "open", Generation: 2, Origin: "contiv.conf", Ranges: []localapi.PoolRange{{CIDR: "10.1.0.0/16", OneNodePrefixLen: 24}},
			Blocks: []localapi.Block{{Pool: "default", Family: "ipv4", Block: "10.1.5.0/24", State: "active", Size: 256, Free: 200, Held: 52}}},
		{Name: "blue", Problem: "it overlaps"},
	}
	h := newAgent(t).with(func(d *restapi.Deps) {
		d.Cluster = cluster{pools: func(context.Context) ([]localapi.Pool, error) { return given, nil }}
	})
	code, body := ask(h, "GET", localapi.PathPools, "")
	g.Expect(code).To(Equal(200))
	g.Expect(body).To(MatchJSON(`[
		{"name": "default", "network": "default", "ranges": [{"cidr": "10.1.0.0/16", "oneNodePrefixLen": 24}], "state": "open", "generation": 2, "origin": "contiv.conf",
			"blocks": [{"pool": "default", "family": "ipv4", "block": "10.1.5.0/24", "state": "active", "size": 256, "free": 200, "held": 52, "infra": 0, "cooling": 0,
				"quarantined": 0, "reserved": 0}]},
		{"name": "blue", "network": "", "ranges": [], "state": "", "generation": 0, "origin": "", "problem": "it overlaps", "blocks": []}]`))
}

// An empty cluster is an empty list, and an error has its own status.
func TestListsOfTheCluster(t *testing.T) {
	for _, path := range []string{localapi.PathNodes, localapi.PathPools} {
		for name, c := range map[string]struct {
			err  error
			code int
			body string
		}{
			"nothing":         {nil, 200, `[]`},
			"an error":        {errInjected, 500, `{"error": "injected"}`},
			"with its status": {fmt.Errorf("list: %w", &localapi.StatusError{Status: 503, Err: errInjected}), 503, `{"error": "list: injected"}`},
			"no such status":  {&localapi.StatusError{Status: 42, Err: errInjected}, 500, `{"error": "injected"}`},
		} {
			t.Run(path+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				h := newAgent(t).with(func(d *restapi.Deps) {
					d.Cluster = cluster{
						nodes: func(context.Context) ([]localapi.Node, error) { return nil, c.err },
						pools: func(context.Context) ([]localapi.Pool, error) { return nil, c.err },
					}
				})
				code, body := ask(h, "GET", path, "")
				g.Expect(code).To(Equal(c.code))
				g.Expect(body).To(MatchJSON(c.body))
			})
		}
	}
}

func TestReleasingANode(t *testing.T) {
	unknown := &localapi.StatusError{Status: 404, Err: fmt.Errorf("no node has the name %q", "node-x")}
	fresh := &localapi.StatusError{Status: 409, Err: fmt.Errorf("node-b was there 3s ago")}
	for _, c := range []struct {
		name, body string
		err        error
		code       int
		answer     string
		asked      string
	}{
		{"it is gone", `{"name": "node-b"}`, nil, 200, `{"id": 5}`, "node-b false"},
		{"by force", `{"name": "node-b", "force": true}`, nil, 200, `{"id": 5}`, "node-b true"},
		{"unknown", `{"name": "node-x"}`, unknown, 404, `{"error": "no node has the name \"node-x\""}`, "node-x false"},
		{"fresh", `{"name": "node-b"}`, fmt.Errorf("release: %w", fresh), 409, `{"error": "release: node-b was there 3s ago"}`, "node-b false"},
		{"the store is away", `{"name": "node-b"}`, errInjected, 500, `{"error": "injected"}`, "node-b false"},
		{"no name", `{"force": true}`, nil, 400, `{"error": "name: is empty: give the name of a node"}`, ""},
		{"a field that is not known", `{"name": "node-b", "froce": true}`, nil, 400, "", ""},
		{"no JSON", `node-b`, nil, 400, "", ""},
		{"more than one", `{"name": "node-b"} {"name": "node-c"}`, nil, 400, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			asked := ""
			h := newAgent(t).with(func(d *restapi.Deps) {
				d.Cluster = cluster{releaseNode: func(_ context.Context, name string, force bool) (localapi.NodeReleaseReply, error) {
					asked = fmt.Sprint(name, " ", force)
					return localapi.NodeReleaseReply{ID: 5}, c.err
				}}
			})
			code, body := ask(h, "POST", localapi.PathNodeRelease, c.body)
			g.Expect(code).To(Equal(c.code))
			g.Expect(asked).To(Equal(c.asked))
			if c.answer != "" {
				g.Expect(body).To(MatchJSON(c.answer))
			} else {
				g.Expect(reason(g, body)).NotTo(BeEmpty())
			}
		})
	}
}

func TestApply(t *testing.T) {
	const empty = `"problems": [], "blocks": [], "moves": []`
	problem := localapi.Problem{Field: "pools[0].name", Value: "B", Problem: "is not a name: write b"}
	for _, c := range []struct {
		name   string
		result localapi.ApplyResult
		err    error
		dry    bool
		code   int
		answer string
	}{
		{"done", localapi.ApplyResult{Text: "1 change", Changes: 1}, nil, false, 200, `{"text": "1 change", "changes": 1, "refused": false, ` + empty + `}`},
		{"it could be", localapi.ApplyResult{Text: "1 change", Changes: 1, Moves: []localapi.Move{{Pool: "blue", Node: "node-a", To: "10.5.0.0/26"}}}, nil, true, 200,
			`{"text": "1 change", "changes": 1, "refused": false, "problems": [], "blocks": [], "moves": [{"pool": "blue", "node": "node-a", "from": "", "to": "10.5.0.0/26"}]}`},
		{"refused", localapi.ApplyResult{Refused: true, Blocks: []localapi.Blocker{{Pool: "blue", Node: "node-a", Leases: 3, Reason: "pool blue: node-a has 3 leases"}, {Pool: "red", Reason: "pool red is not drained"}}},
			nil, false, 409, `{"error": "nothing was changed: pool blue: node-a has 3 leases\npool red is not drained", "text": "", "changes": 0, "refused": true, "problems": [],
			"blocks": [{"pool": "blue", "node": "node-a", "leases": 3, "reason": "pool blue: node-a has 3 leases"}, {"pool": "red", "node": "", "leases": 0, "reason": "pool red is not drained"}], "moves": []}`},
		{"refused with a text only", localapi.ApplyResult{Refused: true, Text: "no\n"}, nil, false, 409, `{"error": "nothing was changed: no", "text": "no\n", "changes": 0, "refused": true, ` + empty + `}`},
		{"refused for a problem", localapi.ApplyResult{Refused: true, Problems: []localapi.Problem{problem, {Field: "pools", Problem: "is empty"}}}, nil, false, 409,
			`{"error": "nothing was changed: pools[0].name: \"B\" is not a name: write b\npools: is empty", "text": "", "changes": 0, "refused": true, "problems": [
			{"field": "pools[0].name", "value": "B", "problem": "is not a name: write b"}, {"field": "pools", "value": "", "problem": "is empty"}], "blocks": [], "moves": []}`},
		{"it would be refused", localapi.ApplyResult{Refused: true, Text: "no"}, nil, true, 200, `{"text": "no", "changes": 0, "refused": true, ` + empty + `}`},
		{"refused by an error", localapi.ApplyResult{Refused: true, Text: "no"}, &localapi.StatusError{Status: 409, Err: errInjected}, false, 409,
			`{"error": "injected", "text": "no", "changes": 0, "refused": true, ` + empty + `}`},
		{"no YAML", localapi.ApplyResult{Problems: []localapi.Problem{problem}}, &localapi.StatusError{Status: 400, Err: fmt.Errorf("line 3: %w", errInjected)}, true, 400,
			`{"error": "line 3: injected", "text": "", "changes": 0, "refused": false, "problems": [{"field": "pools[0].name", "value": "B", "problem": "is not a name: write b"}], "blocks": [], "moves": []}`},
		{"the store is away", localapi.ApplyResult{}, errInjected, false, 500, `{"error": "injected", "text": "", "changes": 0, "refused": false, ` + empty + `}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			h := newAgent(t).with(func(d *restapi.Deps) {
				d.Cluster = cluster{apply: func(_ context.Context, file []byte, dryRun bool) (localapi.ApplyResult, error) {
					g.Expect(string(file)).To(Equal("pools: []\n"))
					g.Expect(dryRun).To(Equal(c.dry))
					return c.result, c.err
				}}
			})
			body, err := json.Marshal(localapi.ApplyRequest{File: "pools: []\n", DryRun: c.dry})
			g.Expect(err).NotTo(HaveOccurred())
			code, answer := ask(h, "POST", localapi.PathApply, string(body))
			g.Expect(code).To(Equal(c.code))
			g.Expect(answer).To(MatchJSON(c.answer))
		})
	}
}

func TestApplyOfNothing(t *testing.T) {
	for _, body := range []string{`{}`, `{"file": " \n"}`, `{"file": 5}`, `{"file": "pools: []", "dry-run": true}`, ``, `{"file": "` + strings.Repeat("#", 5<<20) + `"}`} {
		g := NewWithT(t)
		h := newAgent(t).with(func(d *restapi.Deps) {
			d.Cluster = cluster{apply: func(context.Context, []byte, bool) (localapi.ApplyResult, error) {
				t.Error("it was applied")
				return localapi.ApplyResult{}, nil
			}}
		})
		code, answer := ask(h, "POST", localapi.PathApply, body)
		g.Expect(code).To(Equal(http.StatusBadRequest))
		g.Expect(reason(g, answer)).NotTo(BeEmpty())
	}
}

// A network may look at the cluster, and at nothing else of it.
func TestTheClusterReadOnly(t *testing.T) {
	g := NewWithT(t)
	deps := newAgent(t).deps
	harm := func() { t.Error("something was changed") }
	deps.State = state{dispatch: func(context.Context) error { harm(); return nil }}
	deps.Cluster = cluster{
		releaseNode: func(context.Context, string, bool) (localapi.NodeReleaseReply, error) {
			harm()
			return localapi.NodeReleaseReply{}, nil
		},
		apply: func(context.Context, []byte, bool) (localapi.ApplyResult, error) {
			harm()
			return localapi.ApplyResult{}, nil
		},
		nodes: func(context.Context) ([]localapi.Node, error) { return nil, nil },
		pools: func(context.Context) ([]localapi.Pool, error) { return nil, nil },
		ipam:  func() (localapi.ContivIPAM, error) { return localapi.ContivIPAM{}, nil },
	}
	h := restapi.NewPlugin(deps).ReadOnlyHandler()
	for _, path := range []string{localapi.PathNodes, localapi.PathPools, localapi.PathIPAM, localapi.PathAllocations} {
		code, _ := ask(h, "GET", path, "")
		g.Expect(code).To(Equal(200), path)
		code, _ = ask(h, "POST", path, "{}")
		g.Expect(code).To(Equal(http.StatusMethodNotAllowed), path)
	}
	for path, body := range map[string]string{localapi.PathDispatch: "", localapi.PathNodeRelease: `{"name": "node-b"}`, localapi.PathApply: `{"file": "pools: []"}`} {
		code, _ := ask(h, "POST", path, body)
		g.Expect(code).To(Equal(http.StatusNotFound), path)
	}
}

// What an agent does not say is still a list.
func TestStatusHasNoNull(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	_, body := ask(a.handler, "GET", localapi.PathStatus, "")
	g.Expect(body).NotTo(ContainSubstring("null"))
	a.status.KVDBConnected, a.status.KVDBRevision, a.status.StateFrom, a.status.Notes = true, 42, "remote", []string{"a", "b"}
	a.status.KVDBError, a.status.NodeIDGeneration, a.status.NodeIDProblem = "x", 3, "y"
	_, body = ask(a.handler, "GET", localapi.PathStatus, "")
	var all map[string]any
	g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
	for key, value := range map[string]any{"kvdbConnected": true, "kvdbRevision": 42.0, "stateFrom": "remote", "notes": []any{"a", "b"}, "kvdbError": "x",
		"nodeIDGeneration": 3.0, "nodeIDProblem": "y"} {
		g.Expect(all).To(HaveKeyWithValue(key, value))
	}
}
