// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

const webLeases = `
ADDRESS    STATE  PURPOSE  POOL     POD          NETWORK  CONTAINER     IF    AGE
10.1.5.2   held   pod      default  default/web  k8s      0123456789ab  eth0  1h35m
fd00:1::2  held   pod      default  default/web  k8s      0123456789ab  eth0  1h35m
`

// held returns the number of addresses that are not free in the end.
func (a *fakeAgent) held() int {
	n := 0
	for _, l := range a.leases {
		if l.State != "cooling" {
			n++
		}
	}
	return n
}

func TestReleaseAsks(t *testing.T) {
	for _, c := range []struct {
		stdin string
		yes   bool
	}{{"y\n", true}, {"YES\n", true}, {"yes", true}, {" y \n", true}, {"n\n", false}, {"\n", false}, {"", false}, {"yeah\n", false}, {"no\ny\n", false}} {
		t.Run(strings.TrimSpace(c.stdin), func(t *testing.T) {
			g := NewWithT(t)
			agent := newAgent(t)
			got := call(t, agent.socket, c.stdin, "release", "--pod", "default/web")
			g.Expect(got.err).To(HavePrefix("Release these 2 addresses? [y/N] "))
			g.Expect(got.out).To(HavePrefix(strings.TrimPrefix(webLeases, "\n")))
			g.Expect(agent.requests[0]).To(Equal(localapi.ReleaseRequest{Pod: "default/web", DryRun: true}))
			if !c.yes {
				g.Expect(got.code).To(Equal(exitFailed))
				g.Expect(got.err).To(HaveSuffix("cadastre: nothing was released\n"))
				g.Expect(agent.requests).To(HaveLen(1))
				g.Expect(agent.held()).To(Equal(4))
				return
			}
			g.Expect(got.code).To(Equal(0))
			g.Expect(got.out).To(HaveSuffix("released 2 addresses: 10.1.5.2, fd00:1::2\n"))
			g.Expect(agent.requests[1:]).To(Equal([]localapi.ReleaseRequest{{Pod: "default/web", Only: []uint64{12, 13}}}))
			g.Expect(agent.held()).To(Equal(2))
		})
	}
}

// An interrupt is not a yes.
func TestReleaseInterrupted(t *testing.T) {
	g := NewWithT(t)
	agent := newAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silence, end := io.Pipe()
	defer end.Close()
	errs := &gate{full: cancel} // the question comes
	var out strings.Builder
	g.Expect(newApp(silence, &out, errs, func(string) string { return "" }).run(ctx, []string{"release", "--ip", "10.1.5.2", "--socket", agent.socket})).To(Equal(exitFailed))
	g.Expect(errs.String()).To(Equal("Release this address? [y/N] cadastre: nothing was released\n"))
	g.Expect(agent.requests).To(HaveLen(1))
}

func TestReleaseSelectors(t *testing.T) {
	for _, c := range []struct {
		args, want string
		request    localapi.ReleaseRequest
	}{
		{"--ip 10.1.5.2", "10.1.5.2\n", localapi.ReleaseRequest{IP: "10.1.5.2", Only: []uint64{12}}},
		{"--ip ::ffff:10.1.5.2", "10.1.5.2\n", localapi.ReleaseRequest{IP: "10.1.5.2", Only: []uint64{12}}},
		{"--ip FD00:1:0::2", "fd00:1::2\n", localapi.ReleaseRequest{IP: "fd00:1::2", Only: []uint64{13}}},
		{"--container 0123456789abcdef", "10.1.5.2, fd00:1::2\n", localapi.ReleaseRequest{ContainerID: "0123456789abcdef", Only: []uint64{12, 13}}},
		{"--container 0123456789abcdef --if eth0", "10.1.5.2, fd00:1::2\n", localapi.ReleaseRequest{ContainerID: "0123456789abcdef", IfName: "eth0", Only: []uint64{12, 13}}},
		{"--ip 10.1.5.9 --quarantined", "10.1.5.9\n", localapi.ReleaseRequest{IP: "10.1.5.9", Quarantined: true, Only: []uint64{14}}},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			agent := newAgent(t)
			got := call(t, agent.socket, "", append([]string{"release", "--yes"}, strings.Fields(c.args)...)...)
			g.Expect(got.code).To(Equal(0))
			g.Expect(got.err).To(BeEmpty())
			g.Expect(got.out).To(HaveSuffix(": " + c.want))
			g.Expect(agent.requests[1]).To(Equal(c.request))
		})
	}
}

// No matching lease is a success; a matching lease that stays is an error.
func TestReleaseNothing(t *testing.T) {
	for _, c := range []struct {
		args string
		want outcome
	}{
		{"--ip 10.1.5.77", outcome{0, "nothing to release: 10.1.5.77 of pool default is not leased\n", ""}},
		{"--ip 10.1.5.3", outcome{0, "nothing to release\n10.1.5.3: it is released already and cools down\n", ""}},
		{"--container 0123456789ab", outcome{0, "nothing to release: no container has this whole ID (see cadastre leases -o wide)\n", ""}},
		{"--ip 10.1.5.9", outcome{1, "", "cadastre: nothing was released: 10.1.5.9: it is quarantined\nquarantined ones are released with --quarantined\n"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			g := NewWithT(t)
			agent := newAgent(t)
			g.Expect(call(t, agent.socket, "", append([]string{"release"}, strings.Fields(c.args)...)...)).To(Equal(c.want))
			g.Expect(agent.requests).To(HaveLen(1))
		})
	}
	g := NewWithT(t)
	g.Expect(call(t, newAgent(t).socket, "", "release", "--pod", "a/b", "-o", "json").out).To(MatchJSON(`{"leases":[],"inUse":null,"incomplete":null}`))
}

// What was leased between the list and the yes is not released.
func TestReleaseOnlyWhatWasShown(t *testing.T) {
	g := NewWithT(t)
	agent := newAgent(t)
	agent.between = func() { agent.leases[1].Generation = 99 }
	got := call(t, agent.socket, "", "release", "--pod", "default/web", "--yes")
	g.Expect(got.code).To(Equal(exitFailed))
	g.Expect(got.out).To(HaveSuffix("released 1 address: fd00:1::2\n"))
	g.Expect(got.err).To(Equal("cadastre: release: 1 of 2 addresses were released: the other ones have changed since they were listed\n"))
	g.Expect(agent.held()).To(Equal(3))
}

// For programs the output is the answer only; the list is for the user who is asked.
func TestReleaseForPrograms(t *testing.T) {
	g := NewWithT(t)
	got := call(t, newAgent(t).socket, "y\n", "release", "--ip", "10.1.5.2", "-o", "json")
	g.Expect(got.code).To(Equal(0))
	g.Expect(got.out).To(HavePrefix("{\n  \"leases\": [\n"))
	g.Expect(got.err).To(And(HavePrefix("ADDRESS "), HaveSuffix("Release this address? [y/N] ")))
	g.Expect(call(t, newAgent(t).socket, "", "release", "--ip", "10.1.5.2", "-o", "json", "--yes").err).To(BeEmpty())
}
