// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/engine"
)

// double answers like an engine of API 1.41. It is for what a real engine does not do
// when it is asked: a network that changes at the right moment, and silence.
type double struct {
	lists      atomic.Int64              // how often the networks were listed
	network    func(list int64) []string // the names of networks in that list
	inspect    func(name string) (int, string)
	containers string
	stream     chan string   // events; closed: the stream ends
	hang       chan struct{} // closed: requests but pings are answered
}

func (d *double) start(t *testing.T) (endpoint string) {
	dir, err := os.MkdirTemp("", "double")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: d}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); _ = os.RemoveAll(dir) })
	return "unix://" + filepath.Join(dir, "s")
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	if r.URL.Path == "/_ping" {
		return
	}
	if d.hang != nil {
		select {
		case <-d.hang:
		case <-r.Context().Done():
			return
		}
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/v1.41")
	if !ok {
		http.Error(w, `{"message":"client version is too new"}`, http.StatusBadRequest)
		return
	}
	switch path {
	case "/info":
		fmt.Fprint(w, `{"ID":"E1","ServerVersion":"20.10.24","Swarm":{"LocalNodeState":"active"}}`)
	case "/plugins":
		fmt.Fprint(w, `[{"Name":"our/plugin:latest","Config":{"Entrypoint":["/cadastre-docker-plugin"]}}]`)
	case "/containers/json":
		fmt.Fprint(w, "["+d.containers+"]")
	case "/events":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for text := range d.stream {
			fmt.Fprint(w, text)
			w.(http.Flusher).Flush()
		}
	case "/networks":
		var all []string
		for _, name := range d.network(d.lists.Add(1)) {
			all = append(all, summary(name))
		}
		fmt.Fprintf(w, "[%s]", strings.Join(all, ","))
	default:
		name := strings.TrimPrefix(path, "/networks/")
		status, body := http.StatusOK, summary(name)
		if d.inspect != nil {
			status, body = d.inspect(name)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

func summary(name string) string {
	return fmt.Sprintf(`{"Id":%q,"Name":%q,"Scope":"local","Driver":"bridge","IPAM":{"Driver":"our/plugin:latest"}}`, name, name)
}

func names(v *witness.EngineView) (all []string) {
	for _, n := range v.Networks {
		all = append(all, n.Name)
	}
	return all
}

func TestChangingNetworks(t *testing.T) {
	for name, c := range map[string]struct {
		network func(int64) []string
		inspect func(string) (int, string)
		want    []string
		lists   int64
		err     string
	}{
		"none changes": {network: func(int64) []string { return []string{"a", "b"} }, want: []string{"a", "b"}, lists: 2},
		"one is added while the containers are listed": {
			network: func(n int64) []string { return []string{"a", "b"}[:min(n, 2)] }, want: []string{"a", "b"}, lists: 3},
		"the order changes": {
			network: func(n int64) []string { return []string{"a", "b", "a"}[n%2 : n%2+2] }, want: []string{"a", "b"}, lists: 2},
		"they always change": {network: func(n int64) []string { return []string{fmt.Sprint(n)} }, lists: 6,
			err: "its networks changed each time that they were read"},
		"one vanishes between the list and its details": {
			network: func(n int64) []string { return []string{"a", "b"} },
			inspect: func(name string) (int, string) {
				if name == "b" {
					return http.StatusNotFound, `{"message":"network b not found"}`
				}
				return http.StatusOK, summary(name)
			}, want: []string{"a"}, lists: 2},
		"details cannot be read": {network: func(int64) []string { return []string{"a"} },
			inspect: func(string) (int, string) { return http.StatusInternalServerError, "broken" }, lists: 1, err: "broken"},
		"an answer is cut": {network: func(int64) []string { return []string{"a"} },
			inspect: func(string) (int, string) { return http.StatusOK, `{"Id":"a"` }, lists: 1, err: "unexpected end"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			d := &double{network: c.network, inspect: c.inspect}
			v, err := engine.New(engine.Options{Endpoint: d.start(t), Driver: "cadastre"}).Read(t.Context())
			g.Expect(d.lists.Load()).To(Equal(c.lists))
			if c.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(c.err)))
				g.Expect(v).To(BeNil())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(names(v)).To(Equal(c.want))
			g.Expect(v.Swarm).To(BeTrue())
			g.Expect(v.Networks[0].IPAMDriver).To(Equal("cadastre"), "our managed plugin has another name")
		})
	}
}

// The engine has killed a container, or lost it in a crash: the list still has its last
// endpoint. A container that runs has its endpoint, whatever the network says.
func TestEndpointsOfContainers(t *testing.T) {
	g := NewWithT(t)
	container := func(name, state, addr string) string {
		return fmt.Sprintf(`{"Id":%[1]q,"Names":["/other/alias","/%[1]s"],"State":%[2]q,"NetworkSettings":{"Networks":{"net":{"NetworkID":"net",`+
			`"EndpointID":"e-%[1]s","IPAddress":%[3]q,"Gateway":"10.1.0.1","MacAddress":"02:42:0A:01:00:02","IPAMConfig":{"IPv4Address":%[3]q}}}}}`, name, state, addr)
	}
	d := &double{network: func(int64) []string { return []string{"net"} }, containers: container("web", "running", "10.1.0.2") + "," +
		container("paused", "paused", "10.1.0.3") + "," + container("dead", "exited", "10.1.0.4")}
	v, err := engine.New(engine.Options{Endpoint: d.start(t), Driver: "cadastre"}).Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for _, e := range v.Networks[0].Endpoints {
		all = append(all, e.Name+" "+e.MAC+" "+e.Addrs[0].String())
	}
	g.Expect(all).To(Equal([]string{"paused 02:42:0a:01:00:02 10.1.0.3", "web 02:42:0a:01:00:02 10.1.0.2"}))
	g.Expect(uses(v, "10.1.0.4")).To(Equal("net: stopped container dead"))
}

func TestSilentEngine(t *testing.T) {
	g := NewWithT(t)
	d := &double{hang: make(chan struct{}), network: func(int64) []string { return nil }}
	r := engine.New(engine.Options{Endpoint: d.start(t), Limit: time.Millisecond})
	_, err := r.Read(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("it has not answered within 1ms")))
	close(d.hang)
}

func TestApplicable(t *testing.T) {
	if _, err := os.Stat("/var/run/docker.sock"); err == nil {
		t.Skip("NOT RUN: this machine has an engine of its own")
	}
	for name, c := range map[string]struct {
		options    engine.Options
		applicable bool
	}{
		"none":                     {engine.Options{Endpoint: engine.None, Needed: true}, false},
		"no socket, not needed":    {engine.Options{}, false},
		"no socket, needed":        {engine.Options{Endpoint: engine.Auto, Needed: true}, true},
		"an endpoint that is gone": {engine.Options{Endpoint: "unix:///no/such"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := engine.New(c.options).Read(t.Context())
			g.Expect(err).To(HaveOccurred())
			g.Expect(witness.ReportOf(witness.Engine, err).State == witness.NotApplicable).To(Equal(!c.applicable), "%v", err)
		})
	}
}

// Watch signals after each event and after each connection, and connects again after
// waits that grow.
func TestWatch(t *testing.T) {
	g := NewWithT(t)
	d := &double{stream: make(chan string)}
	changes := make(chan struct{}, 8)
	waits := make(chan time.Duration)
	again := make(chan time.Time)
	r := engine.New(engine.Options{Endpoint: d.start(t), After: func(wait time.Duration) <-chan time.Time {
		waits <- wait
		return again
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Watch(ctx, func() { changes <- struct{}{} })
	}()
	g.Eventually(changes, "20s").Should(Receive())
	d.stream <- `{"Type":"network","Action":"create"}`
	g.Eventually(changes, "20s").Should(Receive())
	close(d.stream)
	g.Eventually(waits, "20s").Should(Receive(Equal(time.Second)))
	again <- time.Time{}
	g.Eventually(changes, "20s").Should(Receive(), "events may have been missed")
	g.Eventually(waits, "20s").Should(Receive(Equal(time.Second)), "it had connected")
	cancel()
	g.Eventually(ended, "20s").Should(BeClosed())

	ctx, cancel = context.WithCancel(t.Context())
	ended = make(chan struct{})
	gone := engine.New(engine.Options{Endpoint: "unix:///no/such", After: func(wait time.Duration) <-chan time.Time {
		waits <- wait
		return again
	}})
	go func() {
		defer close(ended)
		gone.Watch(ctx, func() { changes <- struct{}{} })
	}()
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		if i > 0 {
			again <- time.Time{}
		}
		g.Eventually(waits, "20s").Should(Receive(Equal(want * time.Second)))
	}
	cancel()
	g.Eventually(ended, "20s").Should(BeClosed())
	g.Expect(changes).NotTo(Receive())
}
