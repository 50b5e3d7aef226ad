// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// metric returns the value of a metric.
func (m *machine) metric(name string) string {
	resp, err := via(m.socket).Get("http://localhost/metrics")
	m.Expect(err).NotTo(HaveOccurred())
	out, err := io.ReadAll(resp.Body)
	m.Expect(errors.Join(err, resp.Body.Close())).To(Succeed())
	for _, line := range strings.Split(string(out), "\n") {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return value
		}
	}
	return ""
}

// A contiv.conf with another pod network than the cluster uses is a problem in the
// status and a metric as long as it differs.
func TestAConfigurationThatDiffers(t *testing.T) {
	const right = "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}"
	m := newMachine(t, right)
	for _, x := range []struct{ conf, problem, metric string }{
		{right, "", "0"},
		{strings.Replace(right, "10.1.", "10.9.", 1), "problem     contiv.conf has podSubnetCIDR 10.9.0.0/16 (a /24 for each node), but the cluster has pool default with 10.1.0.0/16 (a /24 for each node), " +
			"and the cluster's pools count: write the ranges of one of them into contiv.conf, or change the pools with cadastre apply\n", "1"},
		{right, "", "0"},
	} {
		m.write("contiv.conf", x.conf)
		stop := m.startAgent()
		status := m.cadastre("status").Out
		if x.problem == "" {
			m.Expect(status).NotTo(ContainSubstring("problem "))
		} else {
			m.Expect(status).To(ContainSubstring(x.problem))
		}
		m.Expect(m.metric("cadastre_config_differs")).To(Equal(x.metric))
		stop()
	}
}

// A full node says so in the status, and is not full with a second pool.
func TestTheStatusOfAFullNode(t *testing.T) {
	m := newMachine(t, fullConf)
	m.startAgent()
	const full = "full        no ipv4 address is free in pool default: 12 are held, 0 cooling, 0 quarantined\n"
	m.Expect(m.cadastre("status").Out).NotTo(ContainSubstring("full "))
	m.fill()
	m.Expect(m.cadastre("status").Out).To(ContainSubstring(full))
	m.write("pools.yaml", "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]")
	m.Expect(m.cadastre("apply", "-f", "pools.yaml").Code).To(BeZero())
	m.Eventually(func() string { return m.cadastre("status").Out }, awaited).ShouldNot(ContainSubstring("full "))
}

// A node that cannot be ready says which store it waits for, and shows no node ID.
func TestTheStatusOfANodeWithoutItsStore(t *testing.T) {
	m := newMachine(t, `cadastre: {kvdb: {type: etcd, endpoints: ["http://127.0.0.1:1"]}}`)
	m.launchAgent()
	m.Eventually(func() string { return m.cadastre("status").Out }, awaited).Should(And(
		ContainSubstring("node        node-1, which has no node ID yet\n"), ContainSubstring("cluster     not connected"),
		ContainSubstring("ready       no: no resync has succeeded yet: the state of the cluster cannot be read from the store (etcd): ")))
}

// What a node does not have is not called empty.
func TestUnknownPoolsAndAddresses(t *testing.T) {
	m := newMachine(t, "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}")
	m.startAgent()
	m.write("pools.yaml", "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]")
	m.Expect(m.cadastre("apply", "-f", "pools.yaml").Code).To(BeZero())
	for _, x := range []struct {
		args string
		want outcome
	}{
		{"leases --pool nosuch", outcome{1, "", "cadastre: leases: --pool: this node has no pool \"nosuch\": its pools are default, vpphost\n"}},
		{"leases --pool pods-2", outcome{1, "", "cadastre: leases: --pool: the leases of pool pods-2 are in pool default, which is named after its network: write --pool default\n"}},
		{"leases --pool vpphost --state cooling", outcome{0, "", "no leases\n"}},
		{"release --ip 10.1.1.77", outcome{0, "nothing to release: 10.1.1.77 of pool default is not leased\n", ""}},
		{"release --ip 10.1.7.7", outcome{0, "nothing to release: 10.1.7.7 is in no block of this node node-1 (see cadastre node list for those of others)\n", ""}},
		{"node release node-1", outcome{1, "", "cadastre: node release: node-1 is this node, and its agent runs: stop it, and ask the agent of another node\n"}},
		{"release --ip fd00::7", outcome{0, "nothing to release: fd00::7 is in no block of this node node-1 (see cadastre node list for those of others)\n", ""}},
	} {
		m.Expect(m.cadastre(strings.Fields(x.args)...)).To(Equal(x.want), x.args)
	}
}

// A pool of the pod network is of no use to a node with podCIDRs: apply says so.
func TestApplyWhereItHasNoEffect(t *testing.T) {
	m := newMachine(t, "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, useExternalIPAM: true}")
	m.launchAgent()
	m.write("pools.yaml", "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]")
	m.write("blue.yaml", "pools: [{name: blue, network: blue, ranges: [{cidr: 10.3.0.0/16, oneNodePrefixLen: 24}]}]")
	const unused = "This node takes no blocks of the pools of network default: its podBlocks is podcidr.\n"
	m.Eventually(func() outcome { return m.cadastre("apply", "--dry-run", "-f", "pools.yaml") }, awaited).Should(HaveField("Code", 0))
	for _, args := range [][]string{{"apply", "--dry-run"}, {"plan", "--against", m.socket}, {"apply"}} {
		m.Expect(m.cadastre(append(args, "-f", "pools.yaml")...).Out).To(HaveSuffix(unused), "%s", args)
	}
	m.Expect(m.cadastre("apply", "-f", "blue.yaml")).To(And(HaveField("Code", 0), HaveField("Out", Not(ContainSubstring(unused)))))
}
