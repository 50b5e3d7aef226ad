// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestWhatIsNotPartOfTheAPI(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	for _, c := range []struct{ method, path string }{
		{"GET", "/"}, {"GET", "/v1"}, {"GET", "/v2/leases"}, {"POST", "/v1/lease"}, {"DELETE", "/v1/anything"}, {"GET", "/v1/leases/10.1.5.2"},
	} {
		code, body := ask(a.handler, c.method, c.path, "")
		g.Expect(code).To(Equal(http.StatusNotFound), c.path)
		g.Expect(reason(g, body)).To(And(ContainSubstring(c.method), ContainSubstring(c.path)))
	}
}

// A method that a path does not have is refused, with a reason, and does nothing.
func TestWrongMethods(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	before := a.held()
	for path, methods := range map[string][]string{
		localapi.PathLeases: {"POST", "PUT", "DELETE"}, localapi.PathStatus: {"POST"}, localapi.PathEvents: {"DELETE"}, localapi.PathMetrics: {"POST"},
		localapi.PathCNI: {"GET", "PUT"}, localapi.PathRelease: {"GET", "DELETE"}, localapi.PathResync: {"GET"}, localapi.PathBackup: {"POST"},
		localapi.PathCheck: {"POST"}, localapi.PathRepair: {"GET"},
	} {
		for _, method := range methods {
			code, body := ask(a.handler, method, path, `{"containerID": "c1"}`)
			g.Expect(code).To(BeElementOf(http.StatusMethodNotAllowed, http.StatusNotFound), method+" "+path)
			g.Expect(body).To(ContainSubstring(method))
		}
	}
	g.Expect(a.held()).To(Equal(before))
	g.Expect(a.asked).To(BeEmpty())
}

func TestBadBodies(t *testing.T) {
	for path, bodies := range map[string]map[string]string{
		localapi.PathCNI: {
			"nothing": "", "JSON": "{}", "no end": "CNI_COMMAND=ADD\x00", "no value": "CNI_COMMAND\x00\x00{}",
			"too much": string(cniclient.Body(cni.Request{Network: strings.Repeat("x", 5<<20)})),
		},
		localapi.PathRelease: {
			"nothing": "", "no JSON": "{", "a list": "[]", "a field of another type": `{"containerID": 5}`,
			"two values": `{} {}`, "rubbish behind it": `{} x`, "too much": `{"containerID": "` + strings.Repeat("x", 5<<20) + `"}`,
			"a byte that is not UTF-8": "{\"containerID\": \"c\xff\"}", "a character that is cut off": "{\"containerID\": \"c\xe2\x82\"}",
		},
	} {
		for name, body := range bodies {
			t.Run(path+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				a := newAgent(t)
				before := a.held()
				code, answer := ask(a.handler, "POST", path, body)
				g.Expect(code).To(Equal(http.StatusBadRequest))
				g.Expect(reason(g, answer)).To(ContainSubstring(path))
				g.Expect(a.held()).To(Equal(before))
				g.Expect(a.asked).To(BeEmpty())
			})
		}
	}
}

// A release that has more to say than is understood is not done by half.
func TestFieldsThatAreNotKnown(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	before := a.held()
	code, body := ask(a.handler, "POST", localapi.PathRelease, `{"containerID": "c1", "colour": "blue"}`)
	g.Expect(code).To(Equal(http.StatusBadRequest))
	g.Expect(reason(g, body)).To(ContainSubstring("colour"))
	g.Expect(a.held()).To(Equal(before))
}

// A network may look, and nothing else.
func TestTheReadOnlyHandler(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	h := restapi.NewPlugin(a.deps).ReadOnlyHandler()
	for _, path := range []string{localapi.PathStatus, localapi.PathLeases, localapi.PathEvents, localapi.PathSink, localapi.PathMetrics, localapi.PathHealthz, localapi.PathReadyz} {
		code, _ := ask(h, "GET", path, "")
		g.Expect(code).To(Equal(200), path)
	}
	before := a.held()
	for _, c := range []struct{ method, path string }{
		{"POST", localapi.PathCNI}, {"POST", localapi.PathRelease}, {"POST", localapi.PathResync}, {"GET", localapi.PathBackup}, {"GET", localapi.PathCheck}, {"POST", localapi.PathRepair}, {"GET", localapi.PathCheckLedger}, {"GET", localapi.PathLogs},
		{"GET", localapi.PathAccept}, {"POST", localapi.PathAccept},
		{"POST", localapi.PathLeases}, {"POST", localapi.PathStatus},
	} {
		code, _ := ask(h, c.method, c.path, `{"containerID": "c1"}`)
		g.Expect(code).To(BeElementOf(http.StatusMethodNotAllowed, http.StatusNotFound), c.method+" "+c.path)
	}
	g.Expect(a.held()).To(Equal(before))
	g.Expect(a.asked).To(BeEmpty())
}

func TestLeases(t *testing.T) {
	g := NewWithT(t)
	code, body := ask(newAgent(t).handler, "GET", localapi.PathLeases, "")
	g.Expect(code).To(Equal(200))
	var all []map[string]any
	g.Expect(json.Unmarshal([]byte(body), &all)).To(Succeed())
	var table []string
	for _, l := range all {
		for _, k := range []string{"ip", "family", "pool", "state", "purpose", "network", "containerID", "ifName", "podName", "podNamespace", "since"} {
			g.Expect(l).To(HaveKey(k))
		}
		_, err := time.Parse(time.RFC3339, l["since"].(string))
		g.Expect(err).NotTo(HaveOccurred())
		table = append(table, fmt.Sprint(l["ip"], " ", l["family"], " ", l["pool"], " ", l["state"], " ", l["purpose"], " ", l["network"], "/", l["containerID"], "/", l["ifName"],
			" ", l["podNamespace"], "/", l["podName"]))
	}
	g.Expect(table).To(Equal([]string{
		"10.1.5.1 ipv4 default held infra //gateway /",
		"10.1.5.2 ipv4 default held pod pods/c1/eth0 ns/web-0",
		"10.1.5.3 ipv4 default held pod pods/c2/eth0 ns/web-0",
		"10.1.5.4 ipv4 default held pod pods/c3/eth0 ns/web-1",
		"10.1.5.5 ipv4 default cooling pod pods/c4/eth0 ns/gone",
		"10.1.5.77 ipv4 default quarantined pod // ns/stranger",
	}))
}

func TestProbes(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	for _, path := range []string{localapi.PathHealthz, localapi.PathReadyz} {
		code, body := ask(a.handler, "GET", path, "")
		g.Expect([]any{code, strings.TrimSpace(body)}).To(Equal([]any{200, "ok"}))
	}
	a.status.Ready, a.status.ReadyError = false, "no resync has succeeded yet"
	code, body := ask(a.handler, "GET", localapi.PathReadyz, "")
	g.Expect(code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(body).To(ContainSubstring("no resync has succeeded yet"))
	code, _ = ask(a.handler, "GET", localapi.PathHealthz, "")
	g.Expect(code).To(Equal(200), "not ready is not dead")
	a.status.Live, a.status.LiveError = false, "the event loop is stuck"
	code, body = ask(a.handler, "GET", localapi.PathHealthz, "")
	g.Expect(code).To(Equal(http.StatusServiceUnavailable))
	g.Expect(body).To(ContainSubstring("the event loop is stuck"))
}

func TestCNI(t *testing.T) {
	req := cni.Request{
		Command: "ADD", Network: "pods", ContainerID: "c9", IfName: "eth0", Netns: "/run/netns/c9", Pool: "default",
		Pod: cni.Pod{Name: "web-0"}, Routes: []cni.Route{},
	}
	for name, c := range map[string]struct {
		reply        cni.Reply
		err          error
		code         int
		exit, answer string
	}{
		"an answer": {
			cni.Reply{IPs: []cni.IP{{Address: "10.1.5.2/24"}}}, nil, 200, "0",
			`{"cniVersion": "1.1.0", "ips": [{"address": "10.1.5.2/24"}], "dns": {}}`,
		},
		"a refusal":    {cni.Reply{}, cni.Errorf(cni.CodeRefused, "taken"), 200, "1", `{"cniVersion": "1.1.0", "code": 101, "msg": "taken"}`},
		"wrapped":      {cni.Reply{}, fmt.Errorf("ADD: %w", cni.Errorf(cni.CodeRefused, "taken")), 200, "1", `{"cniVersion": "1.1.0", "code": 101, "msg": "taken"}`},
		"stopping":     {cni.Reply{}, fmt.Errorf("ADD: %w", podmanager.ErrAway), 503, "", `{"error": "ADD: ` + podmanager.ErrAway.Error() + `"}`},
		"who knows":    {cni.Reply{}, errInjected, 500, "", `{"error": "injected"}`},
		"no addresses": {cni.Reply{}, nil, 200, "1", `{"cniVersion": "1.1.0", "code": 6, "msg": "ADD: the agent's answer has no address: want one at least"}`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t)
			a.reply, a.err = c.reply, c.err
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, httptest.NewRequest("POST", localapi.PathCNI, bytes.NewReader(cniclient.Body(req))))
			g.Expect(w.Code).To(Equal(c.code))
			g.Expect(w.Header().Get(cni.HeaderExit)).To(Equal(c.exit))
			g.Expect(w.Body.String()).To(MatchJSON(c.answer))
			g.Expect(a.asked).To(Equal([]cni.Request{req}))
		})
	}
}

func TestEventsSoFar(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	for _, name := range []string{"a", "b", "c"} {
		a.happens(name)
	}
	names := func(query string) []string {
		code, body := ask(a.handler, "GET", localapi.PathEvents+query, "")
		g.Expect(code).To(Equal(200))
		var all []string
		for _, l := range lines([]byte(body)) {
			var r struct{ Name, Method string }
			g.Expect(json.Unmarshal([]byte(l), &r)).To(Succeed())
			g.Expect(r.Method).To(Equal("Update"), "names, not numbers")
			all = append(all, r.Name)
		}
		return all
	}
	g.Expect(names("")).To(Equal([]string{"a", "b", "c"}))
	g.Expect(names("?since=1")).To(Equal([]string{"b", "c"}))
	g.Expect(names("?since=99")).To(BeEmpty())
	g.Expect(names("?follow=false")).To(HaveLen(3))
	for _, query := range []string{"?since=x", "?since=-1", "?follow=maybe"} {
		code, body := ask(a.handler, "GET", localapi.PathEvents+query, "")
		g.Expect(code).To(Equal(http.StatusBadRequest))
		g.Expect(reason(g, body)).To(ContainSubstring(strings.Split(query, "=")[1]))
	}
}

func TestResyncAndSink(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	code, body := ask(a.handler, "POST", localapi.PathResync, "")
	g.Expect([]any{code, strings.TrimSpace(body)}).To(Equal([]any{200, "{}"}))
	code, body = ask(a.handler, "GET", localapi.PathSink, "")
	g.Expect(code).To(Equal(200))
	g.Expect(body).To(MatchJSON(`{"node": {"id": 5, "podSubnets": ["10.1.5.0/24"]}}`))
	a.err = errInjected
	for _, c := range []struct{ method, path string }{{"POST", localapi.PathResync}, {"GET", localapi.PathSink}} {
		code, body = ask(a.handler, c.method, c.path, "")
		g.Expect(code).To(Equal(http.StatusInternalServerError))
		g.Expect(reason(g, body)).To(Equal("injected"))
	}
}
