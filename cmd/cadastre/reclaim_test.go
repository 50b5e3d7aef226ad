// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func someWitnesses() []localapi.Witness {
	return []localapi.Witness{
		{Name: "kernel", State: "present", Source: "netlink", Objects: 14, Read: noon().Add(-3 * time.Second), Limits: "processes are not seen"},
		{Name: "runtime", State: "missing", Reason: "connection refused", Read: noon().Add(-5 * time.Minute)},
		{Name: "engine", State: "not applicable", Reason: "there is no Docker engine"},
		{Name: "cluster", State: "present", Source: "state of revision 7", Objects: 1, Read: noon()},
	}
}

func TestStatusListsTheWitnesses(t *testing.T) {
	agent, s := bareAgent(t), someStatus()
	s.Witnesses = someWitnesses()
	agent.json(localapi.PathStatus, s)
	expectText(t, call(t, agent.socket, "", "status").out, `
node        node-5, ID 5
agent       0.1.0, running for 3h0m, since 2026-03-04 09:00:00
live        yes
ready       yes
event loop  healthy; 42 events processed, 1 queued
store       bolt, state in /var/lib/cadastre
pod blocks  from nodeid
witness     kernel is present: netlink, 14 network namespaces, read 3s ago; processes are not seen
witness     runtime is missing: connection refused, last read 5m ago
witness     engine is not applicable: there is no Docker engine
witness     cluster is present: state of revision 7, 1 pod, read 0s ago
default 10.1.5.0/24 active: 12 held, 2 infra, 3 cooling, 0 quarantined, 237 free of 256
`)
}

func TestReclaimList(t *testing.T) {
	agent := bareAgent(t)
	agent.json(localapi.PathReclaims, localapi.Reclaims{
		Enabled: true,
		Pending: []localapi.Reclaim{{
			State: "pending", IP: []netip.Addr{netip.MustParseAddr("10.1.5.7"), netip.MustParseAddr("fd00::7")}, Pool: "default",
			Network: "pods", ContainerID: "4f1c", IfName: "eth0", Pod: "shop/web-0", Reason: "it is gone",
			At: noon().Add(-30 * time.Second), Until: noon().Add(9 * time.Minute),
		}},
		Ended: []localapi.Reclaim{{
			State: "undone", IP: []netip.Addr{netip.MustParseAddr("10.1.5.8")}, Pool: "default",
			Network: "pods", ContainerID: "5a", IfName: "eth0", Reason: "undone by hand", At: noon().Add(-50 * time.Minute),
		}},
	})
	expectText(t, call(t, agent.socket, "", "reclaim", "list").out, `
STATE    ADDRESS           POOL     OWNER         AGE  UNTIL     EVIDENCE
pending  10.1.5.7,fd00::7  default  shop/web-0    30s  12:09:00  it is gone
undone   10.1.5.8          default  pods/5a/eth0  50m  -         undone by hand
`)
	agent = bareAgent(t)
	agent.json(localapi.PathReclaims, localapi.Reclaims{Enabled: false})
	expectText(t, call(t, agent.socket, "", "reclaim", "list").out, "\nno reclaims: cadastre.reclaim.enabled is false\n")
}

func TestReclaimRun(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	agent.json(localapi.PathReclaimRun, localapi.ReclaimRun{
		Enabled:   true,
		Witnesses: someWitnesses()[:1],
		Steps: []localapi.ReclaimStep{
			{Action: "keep", IP: []netip.Addr{netip.MustParseAddr("10.1.5.7")}, Pool: "default", Pod: "shop/web-0", Conclusion: "gone", Waits: "a second observation"},
			{Action: "keep", IP: []netip.Addr{netip.MustParseAddr("10.1.5.8")}, Pool: "default", Pod: "shop/web-1", Conclusion: "alive", Evidence: []string{"runtime: it has it"}},
			{Action: "begin", IP: []netip.Addr{netip.MustParseAddr("10.1.5.9")}, Pool: "default", Key: "pods/5a/eth0", Conclusion: "gone", Reason: "gone twice"},
		},
	})
	expectText(t, call(t, agent.socket, "", "reclaim", "run", "--dry-run").out, `
witness  kernel is present: netlink, 14 network namespaces, read 3s ago; processes are not seen
ADDRESS   POOL     OWNER         NEXT   WHY
10.1.5.7  default  shop/web-0    wait   a second observation
10.1.5.9  default  pods/5a/eth0  begin  gone twice
1 claim is in use
`)
	g.Expect(call(t, agent.socket, "", "reclaim", "run", "--dry-run", "--all").out).To(ContainSubstring("in use: runtime: it has it"))
	without := call(t, agent.socket, "", "reclaim", "run")
	g.Expect(without.code).To(Equal(exitUsage))
	g.Expect(without.err).To(ContainSubstring("give --dry-run"))
}

func TestReclaimUndo(t *testing.T) {
	g := NewWithT(t)
	agent := bareAgent(t)
	agent.json(localapi.PathReclaimUndo, localapi.ReclaimUndone{Leases: []localapi.Lease{
		{IP: "10.1.5.7", Pool: "default", PodNamespace: "shop", PodName: "web-0"},
		{IP: "10.1.5.7", Pool: "blue", Network: "docker", ContainerID: "e1"},
	}})
	expectText(t, call(t, agent.socket, "", "reclaim", "undo", "10.1.5.7").out, `
10.1.5.7 of pool default is held again by shop/web-0
10.1.5.7 of pool blue is held again by docker/e1/
`)
	g.Expect(call(t, agent.socket, "", "reclaim", "undo", "10.1.5").code).To(Equal(exitUsage))
	g.Expect(call(t, agent.socket, "", "reclaim", "undo").code).To(Equal(exitUsage))
}
