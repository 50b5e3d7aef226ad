// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func TestStatus(t *testing.T) {
	expectText(t, call(t, newAgent(t).socket, "", "status").out, `
node        node-5, ID 5
agent       0.1.0, running for 3h0m, since 2026-03-04 09:00:00
live        yes
ready       yes
event loop  healthy; 42 events processed, 1 queued
store       bolt, state in /var/lib/cadastre
pod blocks  from nodeid
default 10.1.5.0/24 active: 12 held, 2 infra, 3 cooling, 0 quarantined, 237 free of 256
`)
	agent, s := bareAgent(t), someStatus()
	s.Ready, s.ReadyError, s.Suspended, s.Waiting, s.Rebooted = false, "no node ID yet", "the database is older than it was", 1, 3
	s.ConfigProblem = "contiv.conf has podSubnetCIDR 10.9.0.0/16"
	s.Loop.Healthy, s.Loop.LastError, s.Loop.Current, s.Loop.CurrentSince = false, "sink away", "Add Pod", noon().Add(-time.Second)
	agent.json(localapi.PathStatus, s)
	expectText(t, call(t, agent.socket, "", "status", "-o", "wide").out, `
node        node-5, ID 5
agent       0.1.0, running for 3h0m, since 2026-03-04 09:00:00
instance    c0ffee
live        yes
ready       no: no node ID yet
suspended   no new address is allocated: the database is older than it was
problem     contiv.conf has podSubnetCIDR 10.9.0.0/16
event loop  healing: sink away; 42 events processed, 1 queued, 0 follow-ups; in Add Pod for 1s
store       bolt, state in /var/lib/cadastre
pod blocks  from nodeid
waiting     1 DEL that found no agent
reboot      ended 3 leases
default 10.1.5.0/24 active: 12 held, 2 infra, 3 cooling, 0 quarantined, 237 free of 256, 2 reserved
`)
}

// The data plane is shown if the agent makes something of the network.
func TestStatusOfTheDataplane(t *testing.T) {
	for want, plane := range map[string][2]string{
		"data plane  linux, transport vxlan; NetworkPolicies are not enforced\n": {"linux", "vxlan"},
		"data plane  linux, transport none; NetworkPolicies are not enforced\n":  {"linux", "none"},
		"data plane  none, transport hostgw\n":                                   {"none", "hostgw"},
		"":                                                                       {"none", "none"},
	} {
		g := NewWithT(t)
		agent, s := bareAgent(t), someStatus()
		s.Dataplane, s.Transport = plane[0], plane[1]
		agent.json(localapi.PathStatus, s)
		out := call(t, agent.socket, "", "status").out
		g.Expect(out).To(ContainSubstring("pod blocks  from nodeid\n" + want + "default 10.1.5.0/24"))
	}
}

// What an agent says of its cluster is shown, and nothing where it says nothing.
func TestStatusOfTheCluster(t *testing.T) {
	agent, s := bareAgent(t), someStatus()
	s.KVDB, s.KVDBConnected, s.KVDBRevision, s.StateFrom, s.NodeIDGeneration = "etcd", true, 42, "remote", 3
	s.NodeIDProblem, s.Notes = "another instance has claimed it", []string{"Mismatch of node ID and podCIDRs", "and so on"}
	agent.json(localapi.PathStatus, s)
	expectText(t, call(t, agent.socket, "", "status", "-o", "wide").out, `
node        node-5, ID 5 of generation 3, which may not be its own: another instance has claimed it
agent       0.1.0, running for 3h0m, since 2026-03-04 09:00:00
instance    c0ffee
live        yes
ready       yes
event loop  healthy; 42 events processed, 1 queued, 0 follow-ups
store       etcd, state in /var/lib/cadastre
cluster     connected; its state of revision 42
pod blocks  from nodeid
note        Mismatch of node ID and podCIDRs
note        and so on
default 10.1.5.0/24 active: 12 held, 2 infra, 3 cooling, 0 quarantined, 237 free of 256, 2 reserved
`)
	for want, change := range map[string]func(*localapi.Status){
		"":                                     func(*localapi.Status) {},
		"not connected: refused; no state yet": func(s *localapi.Status) { s.KVDBError = "refused" },
		"not connected: refused; this node's copy of its state of revision 7": func(s *localapi.Status) { s.KVDBError, s.StateFrom, s.KVDBRevision = "refused", "mirror", 7 },
		"not connected since 11:40:00 (20m), allocates until 2026-03-05 05:00:00 (for 17h): refused; its state of revision 0": func(s *localapi.Status) {
			s.KVDBError, s.StateFrom, s.KVDBAway, s.AllocatesUntil = "refused", "remote", noon().Add(-20*time.Minute), noon().Add(17*time.Hour)
		},
		"not connected since 2026-03-03 12:00:00 (24h): refused; no state yet": func(s *localapi.Status) {
			s.KVDBError, s.Suspended, s.KVDBAway, s.AllocatesUntil = "refused", "node ID 5: not confirmed", noon().Add(-24*time.Hour), noon().Add(-time.Hour)
		},
		"not connected; its state of revision 0": func(s *localapi.Status) { s.StateFrom = "remote" },
		"connected; no state yet":                func(s *localapi.Status) { s.KVDBConnected = true },
	} {
		s := someStatus()
		change(&s)
		NewWithT(t).Expect(clusterText(s, noon())).To(Equal(want))
	}
}

func TestLoopInWords(t *testing.T) {
	for want, change := range map[string]func(*localapi.Status){
		"healthy; ":                      func(*localapi.Status) {},
		"not running; ":                  func(s *localapi.Status) { s.Loop.Running = false },
		"waiting for its first resync; ": func(s *localapi.Status) { s.Loop.Resynced = false },
		"failed for good: x; ":           func(s *localapi.Status) { s.Loop.Fatal = "x" },
		"stuck in Add Pod for 65s; ": func(s *localapi.Status) {
			s.Loop.Stuck, s.Loop.Current, s.Loop.CurrentSince = true, "Add Pod", noon().Add(-65*time.Second)
		},
	} {
		s := someStatus()
		change(&s)
		NewWithT(t).Expect(loopText(s, noon(), false)).To(HavePrefix(want))
	}
}

func TestProbes(t *testing.T) {
	for _, c := range []struct {
		name, path, body, flag string
		want                   outcome
		json                   string
	}{
		{"live", localapi.PathHealthz, "", "--live", outcome{0, "", ""}, `{"live":true}`},
		{"ready", localapi.PathReadyz, "", "--ready", outcome{0, "", ""}, `{"ready":true}`},
		{"not live", localapi.PathHealthz, "stuck in Add Pod\n", "--live", outcome{1, "", "cadastre: the agent is not live: stuck in Add Pod\n"},
			`{"live":false,"reason":"stuck in Add Pod"}`},
		{"not ready", localapi.PathReadyz, `{"error":"no node ID yet"}`, "--ready", outcome{1, "", "cadastre: the agent is not ready: no node ID yet\n"},
			`{"ready":false,"reason":"no node ID yet"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			agent, status := bareAgent(t), 200
			if c.body != "" {
				status = 503
			}
			agent.text(c.path, status, c.body)
			g.Expect(call(t, agent.socket, "", "status", c.flag)).To(Equal(c.want))
			got := call(t, agent.socket, "", "status", c.flag, "-o", "json")
			g.Expect(got.out).To(MatchJSON(c.json))
			g.Expect(got.code).To(Equal(c.want.code))
			g.Expect(got.err).To(BeEmpty())
		})
	}
}

func TestLeases(t *testing.T) {
	agent := newAgent(t)
	expectText(t, call(t, agent.socket, "", "leases").out, `
ADDRESS    STATE        PURPOSE  POOL     POD          NETWORK  CONTAINER     IF       AGE
10.1.5.1   held         infra    default  -            -        -             gateway  3d
10.1.5.2   held         pod      default  default/web  k8s      0123456789ab  eth0     1h35m
fd00:1::2  held         pod      default  default/web  k8s      0123456789ab  eth0     1h35m
10.1.5.9   quarantined  pod      default  -            -        -             -        30s
10.1.5.3   cooling      pod      default  default/old  k8s      gone          eth0     5s
`)
	expectText(t, call(t, agent.socket, "", "leases", "-o", "wide", "--state", "quarantined").out, `
ADDRESS   STATE        PURPOSE  POOL     POD  NETWORK  CONTAINER  IF  AGE  SINCE                 BLOCK        UID  REASON
10.1.5.9  quarantined  pod      default  -    -        -          -   30s  2026-03-04T11:59:30Z  10.1.5.0/24  -    used by an unknown pod
`)
}

func TestLeasesForPrograms(t *testing.T) {
	g := NewWithT(t)
	agent := newAgent(t)
	var found []map[string]any
	g.Expect(json.Unmarshal([]byte(call(t, agent.socket, "", "leases", "--pod", "default/web", "-o", "json").out), &found)).To(Succeed())
	g.Expect(found).To(HaveLen(2))
	for key, value := range map[string]any{"ip": "10.1.5.2", "family": "ipv4", "pool": "default", "state": "held", "purpose": "pod", "network": "k8s",
		"containerID": "0123456789abcdef", "ifName": "eth0", "podName": "web", "podNamespace": "default", "since": "2026-03-04T10:25:00Z"} {
		g.Expect(found[0]).To(HaveKeyWithValue(key, value))
	}
	for _, flags := range [][]string{{"--pool", "blue"}, {"--pod", "default/none"}, {"--state", "pending"}} {
		got := call(t, agent.socket, "", append([]string{"leases", "-o", "json"}, flags...)...)
		g.Expect(got).To(Equal(outcome{0, "[]\n", ""}), strings.Join(flags, " "))
		g.Expect(call(t, agent.socket, "", append([]string{"leases"}, flags...)...)).To(Equal(outcome{0, "", "no leases\n"}))
	}
}

func TestEvents(t *testing.T) {
	agent := newAgent(t)
	expectText(t, call(t, agent.socket, "", "events").out, `
#12 15:04:05.123 Add Pod 1.2ms ok  ipam: leased 10.1.5.2/24
#13 15:04:06.123 Pod CIDR Change 15ms failed  ipam: no room and more; transaction: sink away; follow-up of #12
`)
	expectText(t, call(t, agent.socket, "", "events", "-o", "wide").out, `
#12 15:04:05.123 Add Pod 1.2ms ok  ipam: leased 10.1.5.2/24
    Update, waited 20us
    * pod: default/web
    ipam 1ms: leased 10.1.5.2/24
    ipnet 50us
    transaction: put route/10.1.5.2
#13 15:04:06.123 Pod CIDR Change 15ms failed  ipam: no room and more; transaction: sink away; follow-up of #12
    UpstreamResync, waited 0s
    ipam 0s: error: no room
`)
	g := NewWithT(t)
	var all []map[string]any
	g.Expect(json.Unmarshal([]byte(call(t, agent.socket, "", "events", "--since", "13", "-o", "json").out), &all)).To(Succeed())
	g.Expect(all).To(HaveLen(1))
	g.Expect(all[0]).To(And(HaveKeyWithValue("SeqNum", 13.0), HaveKeyWithValue("Method", "UpstreamResync")))
	g.Expect(call(t, agent.socket, "", "events", "--since", "14", "-o", "json").out).To(Equal("[]\n"))
}

// gate is a writer that says when a line has come.
type gate struct {
	bytes.Buffer
	lines int
	full  func()
}

func (g *gate) Write(p []byte) (int, error) {
	n, err := g.Buffer.Write(p)
	if g.lines -= bytes.Count(p, []byte("\n")); g.lines <= 0 {
		g.full()
	}
	return n, err
}

// Followed events come one by one, until the user interrupts: exit code 0.
func TestFollowEvents(t *testing.T) {
	for _, c := range []struct {
		output string
		lines  int
	}{{"table", 2}, {"json", 2}, {"yaml", 20}} {
		t.Run(c.output, func(t *testing.T) {
			g := NewWithT(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &gate{lines: c.lines, full: cancel}
			var errs bytes.Buffer
			args := []string{"events", "-f", "-o", c.output, "--socket", newAgent(t).socket}
			g.Expect(newApp(strings.NewReader(""), out, &errs, func(string) string { return "" }).run(ctx, args)).To(Equal(0))
			g.Expect(errs.String()).To(BeEmpty())
			if c.output == "json" {
				for line := range strings.Lines(out.String()) {
					var r record
					g.Expect(json.Unmarshal([]byte(line), &r)).To(Succeed(), "one record a line")
				}
			}
		})
	}
}

func TestResync(t *testing.T) {
	NewWithT(t).Expect(call(t, newAgent(t).socket, "", "resync")).To(Equal(outcome{0, "resync done in 0s\n", ""}))
}

func TestVersion(t *testing.T) {
	g := NewWithT(t)
	g.Expect(call(t, newAgent(t).socket, "", "version").out).To(MatchRegexp(`^cadastre  0\.1\.0-dev, .*go1\..*\nagent     0\.1\.0\n$`))

	got := call(t, noListener(t), "", "version")
	g.Expect(got.code).To(Equal(0))
	g.Expect(got.out).To(ContainSubstring("agent     unknown: no agent answers at "))

	var v versions
	g.Expect(json.Unmarshal([]byte(call(t, noListener(t), "", "version", "-o", "json").out), &v)).To(Succeed())
	g.Expect(v.Client.Version).To(Equal(version.Next))
	g.Expect(v.Agent).To(BeEmpty())
	g.Expect(v.AgentError).NotTo(BeEmpty())
	g.Expect(clientVersion{Version: "1", Revision: "0123456789abcdef", Modified: true, Go: "go1"}.String()).To(Equal("1, 0123456789ab with changes, go1"))
}

func TestRestore(t *testing.T) {
	report := restoreReport{Kept: "/state/cadastre.db.replaced", Leases: 7}
	fake := func(_ context.Context, file, path string) (restoreReport, error) {
		if file == "bad.db" {
			return restoreReport{}, errors.New("restore bad.db to /state/cadastre.db: no database")
		}
		return report, nil
	}
	restore := func(args ...string) outcome {
		return callWith(t.Context(), "", "", fake, append([]string{"restore", "--state-dir", "/state"}, args...)...)
	}
	expectText(t, restore("copy.db").out, `
restored /state/cadastre.db from copy.db: 7 leases
the database that was there is now /state/cadastre.db.replaced
`)
	report.Older, report.Kept = true, ""
	expectText(t, restore("copy.db").out, `
restored /state/cadastre.db from copy.db: 7 leases

The backup lacks what the database that was there knew: addresses may have been
allocated since. The agent will serve the leases in the backup, and allocate no
new addresses. If there is a newer copy, restore that one. If pods run that the
backup does not know, make a database from what runs instead, which is safe:
    cadastre rebuild
Otherwise start the agent, see what is forgotten and what is in use, and accept it:
    cadastre accept
`)
	g := NewWithT(t)
	g.Expect(restore("copy.db", "-o", "json").out).To(MatchJSON(`{"file":"copy.db","database":"/state/cadastre.db","kept":"","leases":7,"older":true}`))
	g.Expect(restore("bad.db")).To(Equal(outcome{exitFailed, "", "cadastre: restore bad.db to /state/cadastre.db: no database\n"}))
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 59 * time.Minute: "59m", 90 * time.Minute: "1h30m",
		11 * time.Hour: "11h", 49 * time.Hour: "2d",
	} {
		NewWithT(t).Expect(age(noon(), noon().Add(-d))).To(Equal(want))
	}
	NewWithT(t).Expect(age(noon(), time.Time{})).To(BeEmpty())
}

func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1500: "2us", 1234 * time.Microsecond: "1.2ms", 12345 * time.Microsecond: "12ms", 1234 * time.Millisecond: "1.234s", 61400 * time.Millisecond: "1m1s",
	} {
		NewWithT(t).Expect(took(d)).To(Equal(want))
	}
}
