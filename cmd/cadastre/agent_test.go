// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// noon returns the time of all tests.
func noon() time.Time { return time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) }

// fakeAgent answers on a unix socket as the agent does.
type fakeAgent struct {
	socket string
	mux    *http.ServeMux

	mu       sync.Mutex
	leases   []localapi.Lease
	requests []localapi.ReleaseRequest // of release
	between  func()                    // called after the first of them
}

// newAgent is an agent to which every verb has something to say.
func newAgent(t *testing.T) *fakeAgent {
	t.Helper()
	a := bareAgent(t)
	a.leases = someLeases()
	a.json(localapi.PathStatus, someStatus())
	a.json(localapi.PathCheck, someReport())
	a.json("POST "+localapi.PathResync, struct{}{})
	a.text(localapi.PathHealthz, 200, "ok")
	a.text(localapi.PathReadyz, 200, "ok")
	a.mux.HandleFunc(localapi.PathBackup, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", localapi.TrailerBytes)
		_, _ = io.WriteString(w, "a database")
		w.Header().Set(localapi.TrailerBytes, "10")
	})
	a.mux.HandleFunc(localapi.PathLeases, func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(a.leases)
	})
	a.mux.HandleFunc("POST "+localapi.PathRelease, a.release)
	a.mux.HandleFunc(localapi.PathEvents, events(someEvents()...))
	a.json(localapi.PathAccept, localapi.AcceptReport{Leases: []localapi.Lease{}})
	a.json("GET "+localapi.PathNodes, someNodes())
	a.json("POST "+localapi.PathNodeRelease, localapi.NodeReleaseReply{ID: 7})
	a.json("GET "+localapi.PathPools, somePools())
	a.json("GET "+localapi.PathDockerPools, []localapi.DockerPool{{ID: "LocalDefault/10.50.0.0/24", AddressSpace: "LocalDefault", CIDR: "10.50.0.0/24", Requests: 1}})
	a.json("POST "+localapi.PathDockerPoolRelease, localapi.DockerPoolReleased{ID: "LocalDefault/10.50.0.0/24", Leases: []localapi.Lease{}})
	a.json("POST "+localapi.PathApply, someResult())
	return a
}

// bareAgent is an agent that answers 404 to everything.
func bareAgent(t *testing.T) *fakeAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "cad") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	a := &fakeAgent{socket: filepath.Join(dir, "s"), mux: http.NewServeMux()}
	l, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(a.mux)
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(func() { s.Close(); os.RemoveAll(dir) })
	return a
}

func (a *fakeAgent) json(pattern string, v any) {
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) })
}

func (a *fakeAgent) text(pattern string, status int, body string) {
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

// release does what the agent does with a request, as far as it matters here.
func (a *fakeAgent) release(w http.ResponseWriter, r *http.Request) {
	var req localapi.ReleaseRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(localapi.Error{Error: err.Error()})
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests = append(a.requests, req)
	reply := localapi.ReleaseReply{Leases: []localapi.Lease{}}
	f := releaseFlags{ReleaseRequest: req}
	for i, l := range a.leases {
		skip := func(why string) { reply.Skipped = append(reply.Skipped, l.IP+": "+why) }
		switch {
		case !f.matches(l):
		case l.State == "cooling":
			skip("it is released already and cools down")
		case l.State == "quarantined" && !req.Quarantined:
			skip("it is quarantined")
		case req.Only != nil && !strings.Contains(fmt.Sprint(req.Only), strconv.FormatUint(l.Generation, 10)):
			skip("it was not there before")
		default:
			reply.Leases = append(reply.Leases, l)
			if !req.DryRun {
				a.leases[i].State = "cooling"
			}
		}
	}
	if a.between != nil {
		a.between()
		a.between = nil
	}
	_ = json.NewEncoder(w).Encode(reply)
}

// events streams records, and with follow waits until the caller leaves.
func events(records ...controller.Record) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.ParseUint(r.URL.Query().Get("since"), 10, 64)
		for _, rec := range records {
			if rec.SeqNum >= from {
				_ = json.NewEncoder(w).Encode(rec)
			}
		}
		if r.URL.Query().Get("follow") == "true" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}
}

func someLeases() []localapi.Lease {
	return []localapi.Lease{
		{IP: "10.1.5.1", Family: "ipv4", Pool: "default", Block: "10.1.5.0/24", State: "held", Purpose: "infra", IfName: "gateway", Since: noon().Add(-72 * time.Hour), Generation: 11},
		{IP: "10.1.5.2", Family: "ipv4", Pool: "default", Block: "10.1.5.0/24", State: "held", Purpose: "pod", Network: "k8s", ContainerID: "0123456789abcdef", IfName: "eth0",
			PodName: "web", PodNamespace: "default", PodUID: "u-1", Since: noon().Add(-95 * time.Minute), Generation: 12},
		{IP: "fd00:1::2", Family: "ipv6", Pool: "default", Block: "fd00:1::/64", State: "held", Purpose: "pod", Network: "k8s", ContainerID: "0123456789abcdef", IfName: "eth0",
			PodName: "web", PodNamespace: "default", PodUID: "u-1", Since: noon().Add(-95 * time.Minute), Generation: 13},
		{IP: "10.1.5.9", Family: "ipv4", Pool: "default", Block: "10.1.5.0/24", State: "quarantined", Purpose: "pod", Since: noon().Add(-30 * time.Second), Reason: "used by an unknown pod", Generation: 14},
		{IP: "10.1.5.3", Family: "ipv4", Pool: "default", Block: "10.1.5.0/24", State: "cooling", Purpose: "pod", Network: "k8s", ContainerID: "gone", IfName: "eth0",
			PodName: "old", PodNamespace: "default", Since: noon().Add(-5 * time.Second), Generation: 15},
	}
}

func someStatus() localapi.Status {
	return localapi.Status{
		Version: "0.1.0", NodeName: "node-5", NodeID: 5, Instance: "c0ffee", Started: noon().Add(-3 * time.Hour), Live: true, Ready: true,
		KVDB: "bolt", StateDir: "/var/lib/cadastre", PodBlocks: "nodeid",
		Blocks: []localapi.Block{{Pool: "default", Family: "ipv4", Block: "10.1.5.0/24", State: "active", Size: 256, Free: 237, Held: 12, Infra: 2, Cooling: 3, Reserved: 2}},
		Loop:   controller.Status{Running: true, Resynced: true, Healthy: true, Processed: 42, Queued: 1},
	}
}

func someEvents() []controller.Record {
	at := noon().Add(3*time.Hour + 4*time.Minute + 5*time.Second + 123*time.Millisecond)
	return []controller.Record{
		{SeqNum: 12, ProcessingStart: at, ProcessingEnd: at.Add(1234 * time.Microsecond), Waited: 20 * time.Microsecond, Name: "Add Pod", Method: controller.Update,
			Description: "Add Pod\n* pod: default/web", Txn: []string{"put route/10.1.5.2"},
			Handlers: []controller.HandlerRecord{{Handler: "ipam", Change: "leased 10.1.5.2/24", Duration: time.Millisecond}, {Handler: "ipnet", Duration: 50 * time.Microsecond}}},
		{SeqNum: 13, ProcessingStart: at.Add(time.Second), ProcessingEnd: at.Add(1015 * time.Millisecond), Name: "Pod CIDR Change", Method: controller.UpstreamResync, IsFollowUp: true, FollowUpTo: 12,
			Handlers: []controller.HandlerRecord{{Handler: "ipam", Error: "no room"}}, TxnError: "sink away", Error: "ipam: no room\nand more"},
	}
}

func someNodes() []localapi.Node {
	seen := noon().Add(-3 * time.Second)
	return []localapi.Node{
		{ID: 5, Name: "node-5", Instance: "c0ffee", Generation: 3, Addresses: []string{"192.168.16.5/24", "fd00:3::5/64"}, PodCIDRs: []string{"10.1.5.0/24"}, Self: true,
			LastSeen: &seen, Pools: []localapi.PoolUse{{Pool: "default", Generation: 2, Open: true, Leases: 12, Blocks: []localapi.BlockUse{{Block: "10.1.5.0/24", Leases: 12, Reserved: 4}}}, {Pool: "old", Generation: 1, Leases: 1}}},
		{ID: 6, Name: "node-6", Instance: "decaf", Generation: 1, Addresses: []string{}, PodCIDRs: []string{}, Pools: []localapi.PoolUse{}},
		{ID: 7, Name: "node-7", Instance: "f00d", Generation: 9, Released: true, LastSeen: &time.Time{}},
	}
}

func somePools() []localapi.Pool {
	return []localapi.Pool{
		{Name: "default", Network: "default", State: "open", Generation: 2, Origin: "contiv.conf",
			Ranges: []localapi.PoolRange{{CIDR: "10.1.0.0/16", OneNodePrefixLen: 24}, {CIDR: "fd00:1::/48", OneNodePrefixLen: 64}},
			Blocks: []localapi.Block{{Block: "10.1.5.0/24", State: "active", Size: 256, Reserved: 2, Infra: 2, Held: 12, Free: 240}, {Block: "fd00:1:0:5::/64", State: "active", Size: 1<<64 - 1, Held: 3, Free: 1<<64 - 1}}},
		{Name: "blue", Network: "blue", State: "draining", Generation: 1, Origin: "apply", Problem: "10.5.0.0/16 overlaps serviceCIDR",
			Ranges: []localapi.PoolRange{{CIDR: "10.5.0.0/16", OneNodePrefixLen: 26}}, Blocks: []localapi.Block{}},
	}
}

func someResult() localapi.ApplyResult {
	return localapi.ApplyResult{Text: "pool blue: draining\n1 change", Changes: 1, Problems: []localapi.Problem{}, Blocks: []localapi.Blocker{}, Moves: []localapi.Move{}}
}

// outcome holds the result of a call of the program.
type outcome struct {
	code     int
	out, err string
}

// call runs the program at noon, against the agent at socket.
func call(t *testing.T, socket, stdin string, args ...string) outcome {
	t.Helper()
	return callWith(t.Context(), socket, stdin, nil, args...)
}

func callWith(ctx context.Context, socket, stdin string, restore restoreFunc, args ...string) outcome {
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(stdin), &out, &errs, func(key string) string {
		return map[string]string{"CADASTRE_SOCKET": socket}[key]
	})
	a.now = func() time.Time { return noon() }
	a.restore = restore
	code := a.run(ctx, args)
	return outcome{code, out.String(), errs.String()}
}

// noListener returns the path of a socket without a listener.
func noListener(t *testing.T) string { return filepath.Join(t.TempDir(), "none.sock") }

// expectText compares a whole output, which want has with a leading newline.
func expectText(t *testing.T, got, want string) {
	t.Helper()
	NewWithT(t).Expect(got).To(Equal(strings.TrimPrefix(want, "\n")))
}
