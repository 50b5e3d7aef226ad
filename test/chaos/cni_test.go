// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// refusal runs cadastre-cni with an environment and a configuration, and returns
// the error that it prints; nil: it succeeded.
func refusal(g Gomega, command, container, conf string, env ...string) *cni.Error {
	cmd := exec.Command(program("cadastre-cni"))
	cmd.Stdin = bytes.NewReader([]byte(conf))
	cmd.Env = append([]string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/x", "CNI_PATH=/opt/cni/bin"}, env...)
	out, err := cmd.Output()
	if err == nil {
		return nil
	}
	said := &cni.Error{}
	g.Expect(json.Unmarshal(out, said)).To(Succeed(), "%s: %v", out, err)
	g.Expect(said.Msg).NotTo(BeEmpty())
	return said
}

// config is a network configuration for the agent of a socket, with more keys of
// ipam and of the network.
func config(socket, ipam, more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "cadastre-cni", "socket": %q%s}%s}`, socket, ipam, more)
}

// documentedCodes returns the codes of the table in docs/errors.md.
func documentedCodes(g Gomega) []uint {
	page, err := os.ReadFile("../../docs/errors.md")
	g.Expect(err).NotTo(HaveOccurred())
	var codes []uint
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9]+) \|`).FindAllSubmatch(page, -1) {
		code, err := strconv.ParseUint(string(row[1]), 10, 32)
		g.Expect(err).NotTo(HaveOccurred())
		codes = append(codes, uint(code))
	}
	return codes
}

// Each code of the table is what cadastre-cni prints in the case that the table
// names, and it prints no other.
func TestTheCodesOfCNI(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNode(t, tightConf)
	away := n.sibling("away")
	n.start(t)
	for i := range 4 {
		n.mustAdd(t, fmt.Sprint("c", i))
	}
	seen := map[uint]bool{}
	for _, c := range []struct {
		name, command, container, conf string
		env                            []string
		code                           uint
		saying                         string
	}{
		{"another version", "ADD", "x", `{"cniVersion": "9.0.0", "name": "net"}`, nil, 1, "incompatible CNI versions"},
		{"an attachment without addresses", "CHECK", "x", config(n.socket(), "", ""), nil, 3, "holds no address"},
		{"a bad container ID", "ADD", "a/b", config(n.socket(), "", ""), nil, 4, "CNI_CONTAINERID"},
		{"a bad pod name", "ADD", "x", config(n.socket(), "", ""), []string{"CNI_ARGS=K8S_POD_NAME=a/b"}, 4, "K8S_POD_NAME"},
		{"a configuration that is not JSON", "ADD", "x", "{", nil, 6, "network config"},
		{"a pool that does not exist", "ADD", "x", config(n.socket(), `, "pool": "blue"`, ""), nil, 7, `"blue"`},
		{"no agent", "ADD", "x", config(away.socket(), "", ""), nil, 11, away.socket()},
		{"no agent", "DEL", "x", config(away.socket(), "", ""), nil, 11, away.intentDir()},
		{"no agent", "STATUS", "x", config(away.socket(), "", ""), nil, 50, away.socket()},
		{"a full node", "STATUS", "x", config(n.socket(), "", ""), nil, 50, "no address of family ipv4 is free"},
		{"another address", "CHECK", "c0", config(n.socket(), "", `, "prevResult": {"ips": [{"address": "192.0.2.1/24"}]}`), nil, 100, "192.0.2.1"},
		{"a main plugin, of an agent that makes no interfaces", "ADD", "x",
			fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "cadastre-cni", "ipam": {"socket": %q}}`, n.socket()), nil, 7, "cadastre.dataplane"},
		{"an address of another pod", "ADD", "x", config(n.socket(), "", ""), []string{"CNI_ARGS=IP=10.1.0.10"}, 101, "taken"},
		{"a full node", "ADD", "x", config(n.socket(), "", ""), nil, 102, "no IP address is free"},
	} {
		said := refusal(g, c.command, c.container, c.conf, c.env...)
		g.Expect(said).NotTo(BeNil(), "%s %s", c.command, c.name)
		g.Expect(said.Code).To(Equal(c.code), "%s %s: %s", c.command, c.name, said.Msg)
		g.Expect(said.Msg).To(ContainSubstring(c.saying))
		seen[said.Code] = true
	}
	documented := documentedCodes(g)
	g.Expect(documented).NotTo(BeEmpty())
	for code := range seen {
		g.Expect(documented).To(ContainElement(code))
	}
	for _, code := range documented {
		g.Expect(seen[code]).To(BeTrue(), "code %d of docs/errors.md is not shown here", code)
	}
}

// A second interface, in another network, leaves the egress of the pod alone, unless
// its configuration asks for a default route. The southbound has the same routes
// after an update and after a resync.
func TestOnlyTheDefaultPoolHasADefaultRoute(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNode(t, dualConf)
	a := n.start(t)
	pools := n.dir + "/pools.yaml"
	g.Expect(os.WriteFile(pools, []byte("pools: [{name: blue, network: blue, ranges: [{cidr: 10.5.0.0/16, oneNodePrefixLen: 24}, {cidr: 'fd06::/48', oneNodePrefixLen: 64}]}]"), 0o600)).To(Succeed())
	g.Eventually(func() (bool, error) { s, err := n.status(); return s.Ready, err }, patience, 20*time.Millisecond).Should(BeTrue())
	out, err := n.cli("apply", "-f", pools)
	g.Expect(err).NotTo(HaveOccurred(), out)
	type result struct {
		IPs    []cni.IP    `json:"ips"`
		Routes []cni.Route `json:"routes"`
	}
	add := func(container, ipam string) (r result, said string) {
		cmd := exec.Command(program("cadastre-cni"))
		cmd.Stdin = bytes.NewReader([]byte(config(n.socket(), ipam, "")))
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/x", "CNI_PATH=/opt/cni/bin"}
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &r)
		}
		if err != nil {
			said = fmt.Sprint(err, string(out))
		}
		return r, said
	}
	g.Eventually(func() string { _, said := add("first", `, "pool": "blue"`); return said }, patience, 50*time.Millisecond).Should(BeEmpty())
	for _, c := range []struct {
		container, ipam string
		want            []cni.Route
	}{
		{"c1", "", []cni.Route{{Dst: "0.0.0.0/0", GW: "10.1.0.33"}, {Dst: "::/0", GW: "fd01:0:0:1::1"}}},
		{"c2", `, "pool": "blue"`, nil},
		{"c3", `, "pool": "blue", "routes": [{"dst": "10.5.0.0/16"}]`, []cni.Route{{Dst: "10.5.0.0/16"}}},
		{"c4", `, "pool": "blue", "routes": [{"dst": "0.0.0.0/0"}]`, []cni.Route{{Dst: "0.0.0.0/0"}}},
	} {
		for range 2 { // a repeated ADD has the same answer
			r, said := add(c.container, c.ipam)
			g.Expect(said).To(BeEmpty())
			g.Expect(r.IPs).To(HaveLen(2))
			g.Expect(r.IPs[0].Gateway).NotTo(BeEmpty(), "for the main plugin's own address, and for routes without one")
			g.Expect(r.Routes).To(Equal(c.want), c.ipam)
		}
	}
	southbound := func() map[string]int {
		var values map[string]struct{ Routes []any }
		g.Expect(get(n.socket(), localapi.PathSink, &values)).To(Succeed())
		return map[string]int{"c1": len(values["pod/net/c1/eth0"].Routes), "c2": len(values["pod/net/c2/eth0"].Routes)}
	}
	g.Expect(southbound()).To(Equal(map[string]int{"c1": 2, "c2": 0}))
	g.Expect(a.stop()).To(Succeed())
	n.start(t)
	g.Eventually(southbound, patience, 20*time.Millisecond).Should(Equal(map[string]int{"c1": 2, "c2": 0}))
}

// Two programs ask the agent without cadastre-cni, under names that differ in bytes
// that are not UTF-8: a decoder makes one name of both.
func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	n := newNode(t, smallConf)
	n.start(t)
	for _, id := range []string{"c\xff", "c\xfe", "c\ufffd"} {
		r, _, err := ask(n.socket(), Key{"net", id, "eth0"}.request(Add), leaving{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Error).To(MatchError(ContainSubstring("CNI_CONTAINERID")))
	}
	book, _, err := readBook(n.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(BeEmpty())
}

// An agent whose store does not answer when it starts waits for it, and says so,
// however long that takes: startupResyncDeadline is not for a store that is away.
func TestAnAgentThatStartsWithoutItsStore(t *testing.T) {
	for name, away := range map[string]func(*etcdtest.Proxy){"it refuses": (*etcdtest.Proxy).Cut, "it is silent": (*etcdtest.Proxy).Blackhole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			m := newMember(t, "a", etcdtest.Start(t))
			m.change(t, "startupResyncDeadline: 1h", "startupResyncDeadline: 100ms, eventTimeout: 4s")
			m.network(away)
			m.run(t)
			g.Expect(m.agent.awaitServing()).To(Succeed())
			const reason = "the state of the cluster cannot be read from the store (etcd)"
			g.Eventually(func() string { s, _ := m.status(); return s.ReadyError }, healing, 20*time.Millisecond).Should(ContainSubstring(reason))
			for range 2 { // each waits for a second
				said := refusal(g, "ADD", "x", config(m.socket(), "", ""))
				g.Expect(said).NotTo(BeNil())
				g.Expect(said.Code).To(BeEquivalentTo(cni.CodeTryAgain))
				g.Expect(said.Msg).To(ContainSubstring(reason))
			}
			said := refusal(g, "STATUS", "x", config(m.socket(), "", ""))
			g.Expect(said).NotTo(BeNil())
			g.Expect(said.Code).To(BeEquivalentTo(cni.CodeNotAvailable))
			g.Expect(said.Msg).To(ContainSubstring(reason))
			g.Expect(refusal(g, "DEL", "x", config(m.socket(), "", ""))).To(BeNil(), "there is nothing to delete")
			s, err := m.status()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(s.Live).To(BeTrue())
			g.Expect(m.running()).To(BeTrue(), m.saying())
			m.pass()
			m.awaitFollowing(t)
			g.Expect(m.running()).To(BeTrue(), "the same process")
			g.Expect(m.ask(t, Add, "pod")).To(HavePrefix("10."))
		})
	}
}

// An agent serves the leases on its own disk before its store answers.
func TestLeasesAreServedBeforeTheStoreAnswers(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	m := newMember(t, "a", etcdtest.Start(t))
	m.change(t, "startupResyncDeadline: 1h", "startupResyncDeadline: 100ms, eventTimeout: 4s")
	m.waitForStore(t)
	m.join(t)
	var told []string
	for _, id := range []string{"keeps", "waits", "goes"} {
		_, address := m.mustAdd(t, id)
		told = append(told, address)
	}
	m.kill()
	m.cut()
	g.Expect(refusal(g, "DEL", "waits", config(m.socket(), "", ""))).To(BeNil())
	m.run(t)
	g.Expect(m.agent.awaitServing()).To(Succeed())
	prev := fmt.Sprintf(`, "prevResult": {"ips": [{"address": %q}]}`, told[0])
	g.Expect(refusal(g, "CHECK", "keeps", config(m.socket(), "", prev))).To(BeNil())
	g.Expect(refusal(g, "DEL", "goes", config(m.socket(), "", ""))).To(BeNil())
	book, _, err := readBook(m.socket())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book).To(HaveLen(1), "the DEL that waited and the one of now")
	s, err := m.status()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Ready).To(BeFalse())
	g.Expect(s.Waiting).To(BeZero(), "the DEL was not left for later")
	said := refusal(g, "ADD", "new", config(m.socket(), "", ""))
	g.Expect(said).NotTo(BeNil())
	g.Expect(said.Code).To(BeEquivalentTo(cni.CodeTryAgain))
	m.pass()
	m.awaitFollowing(t)
	_, address := m.mustAdd(t, "keeps")
	g.Expect(address).To(Equal(told[0]))
	var report localapi.CheckReport
	g.Expect(get(m.socket(), localapi.PathCheckLedger, &report)).To(Succeed())
	g.Expect(report.Findings).To(BeEmpty())
}
