// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// hardware gives the node a machine of its own: a product UUID that ends with n,
// and a boot ID.
func (n *node) hardware(t *testing.T, number int, boot string) {
	t.Helper()
	g := NewWithT(t)
	uuid, id := filepath.Join(n.dir, "product_uuid"), filepath.Join(n.dir, "boot_id")
	g.Expect(os.WriteFile(uuid, fmt.Appendf(nil, "4C4C4544-0051-3510-8052-%012d\n", number), 0o600)).To(Succeed())
	g.Expect(os.WriteFile(id, []byte(boot+"\n"), 0o600)).To(Succeed())
	n.flags = []string{"--product-uuid", uuid, "--boot-id", id}
}

// patient has beats be fresh for so long that no test waits for their end.
func (m *member) patient(t *testing.T) {
	t.Helper()
	m.change(t, "fresh: 2s, expire: 1h", "fresh: 1h, expire: 24h")
}

// cloneOf is a copy of m's disk, taken at one moment while its agent runs, under
// the same name on other hardware.
func cloneOf(t *testing.T, m *member, server *etcdtest.Server) *member {
	t.Helper()
	g := NewWithT(t)
	c := twin(t, m, server)
	g.Expect(m.agent.cmd.Process.Signal(syscall.SIGSTOP)).To(Succeed())
	g.Expect(os.CopyFS(c.stateDir, os.DirFS(m.stateDir))).To(Succeed())
	g.Expect(m.agent.cmd.Process.Signal(syscall.SIGCONT)).To(Succeed())
	c.hardware(t, 2, "boot-1") // of another boot its sandboxes would have ended, and their leases
	return c
}

// newOriginal is a member that has allocated one address.
func newOriginal(t *testing.T, server *etcdtest.Server) (m *member, address string) {
	t.Helper()
	m = newMember(t, "a", server)
	m.hardware(t, 1, "boot-1")
	m.join(t)
	return m, m.ask(t, Add, "pod")
}

// TestACloneBesideTheOriginal is a disk that was copied to another machine under
// the same name: from its first answer on it serves its leases and allocates nothing.
func TestACloneBesideTheOriginal(t *testing.T) {
	attack.Begin(t, attack.Clone).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	a, address := newOriginal(t, server)
	clone := cloneOf(t, a, server)
	clone.run(t)
	g.Expect(clone.agent.awaitServing()).To(Succeed())
	given := map[string]bool{address: true}
	for i := range 12 {
		id := fmt.Sprint("p", i)
		g.Expect(clone.ask(t, Add, id)).To(ContainSubstring("allocates no new address: node ID 1"))
		own := a.ask(t, Add, id)
		g.Expect(own).To(HavePrefix("10.1.0."))
		g.Expect(given).NotTo(HaveKey(own))
		given[own] = true
		pause(refresh)
	}
	g.Expect(clone.mustStatus(t).NodeIDProblem).To(ContainSubstring("another agent runs with this node's identity"))
	g.Expect(clone.doubts()).To(Succeed())
	g.Expect(clone.ask(t, Add, "pod")).To(Equal(address), "a repeated ADD is served")
	g.Expect(clone.ask(t, Check, "pod")).To(BeEmpty())
	g.Expect(clone.ask(t, Del, "pod")).To(BeEmpty())
	g.Expect(a.follows()).To(Succeed(), "the original has not noticed it")
	g.Expect(a.ask(t, Add, "pod")).To(Equal(address))

	g.Expect(a.agent.stop()).To(Succeed())
	clone.awaitFollowing(t)
	g.Expect(clone.ask(t, Add, "late")).To(HavePrefix("10.1.0."), "the original has said that it ends")
}

// TestACloneWithoutTheStore has neither the original nor the clone reach etcd.
func TestACloneWithoutTheStore(t *testing.T) {
	attack.Begin(t, attack.Clone).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	a, address := newOriginal(t, server)
	clone := cloneOf(t, a, server)
	a.cut()
	clone.cut()
	g.Eventually(a.alone, healing, refresh/10).Should(Succeed())
	clone.run(t)
	g.Expect(clone.agent.awaitServing()).To(Succeed())
	g.Eventually(clone.doubts, healing, refresh/10).Should(Succeed())
	g.Eventually(func() string { return clone.ask(t, Add, "pod") }, healing, refresh).Should(Equal(address), "from the mirror")
	g.Expect(clone.mustStatus(t).NodeIDProblem).To(ContainSubstring("on another machine"))
	for i := range 5 {
		id := fmt.Sprint("p", i)
		g.Expect(clone.ask(t, Add, id)).To(ContainSubstring("allocates no new address: node ID 1"))
		g.Expect(a.ask(t, Add, id)).To(HavePrefix("10.1.0."))
	}

	a.kill()
	a.run(t)
	g.Eventually(a.alone, healing, refresh/10).Should(Succeed(), "a restart needs no store")
	g.Expect(a.ask(t, Add, "restarted")).To(HavePrefix("10.1.0."))
	a.reboot(t)
	a.run(t)
	g.Eventually(a.alone, healing, refresh/10).Should(Succeed(), "nor does a reboot")
	g.Expect(a.ask(t, Add, "rebooted")).To(HavePrefix("10.1.0."))
}

// reboot ends the agent and empties what a reboot empties.
func (m *member) reboot(t *testing.T) {
	t.Helper()
	m.kill()
	NewWithT(t).Expect(os.RemoveAll(m.runDir)).To(Succeed())
	m.hardware(t, 1, "boot-2")
}

// TestARestartDoesNotWait has beats be fresh for an hour. So the next run of a killed
// agent allocates within this test only if it recognizes the last beat as that of its
// own earlier run. A clone waits.
func TestARestartDoesNotWait(t *testing.T) {
	attack.Begin(t, attack.Clone).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	a := newMember(t, "a", server)
	a.patient(t)
	a.hardware(t, 1, "boot-1")
	a.join(t)
	for range 5 {
		a.kill()
		a.join(t)
	}
	a.reboot(t)
	a.join(t)
	g.Expect(a.mustStatus(t).NodeID).To(BeEquivalentTo(1))
	g.Expect(a.ask(t, Add, "pod")).To(HavePrefix("10.1.0."))

	clone := cloneOf(t, a, server)
	clone.patient(t)
	a.kill()
	clone.run(t)
	g.Expect(clone.agent.awaitServing()).To(Succeed())
	g.Eventually(clone.doubts, healing, refresh/10).Should(Succeed())
	g.Eventually(func() string { return clone.mustStatus(t).NodeIDProblem }, healing, refresh).Should(ContainSubstring("may run with this node's identity"))
	a.join(t)
	g.Expect(a.ask(t, Add, "new")).To(HavePrefix("10.1.0."))
	g.Expect(clone.ask(t, Add, "new")).To(ContainSubstring("allocates no new address: node ID 1"))
}

// TestARecordThatCannotBeRead damages one node's record in etcd while its agent is
// down: every other node starts and joins, and the node itself repairs it.
func TestARecordThatCannotBeRead(t *testing.T) {
	attack.Begin(t, attack.Wipe).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	all := newMembers(t, "a b", server)
	a, b := all[0], all[1]
	address := b.ask(t, Add, "pod")
	b.kill()
	store := newRegistry(t, server.Endpoint())
	_, err := store.store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(2), []byte{0xff, 0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	c := newMembers(t, "c", server)[0]
	a.kill()
	a.join(t)
	store.mustHold(t, map[*member]uint32{a: 1, c: 3})
	g.Expect(a.cadastre("node", "list")).To(MatchRegexp(`(?m)^2 +- +unreadable`))
	g.Eventually(func() localapi.Status { return c.mustStatus(t) }, healing, refresh).Should(HaveField("Notes", ContainElement(ContainSubstring("cluster/node-id/2"))))
	b.join(t)
	store.mustHold(t, map[*member]uint32{a: 1, b: 2, c: 3})
	g.Expect(b.ask(t, Add, "pod")).To(Equal(address))
	g.Eventually(func() []string { return c.mustStatus(t).Notes }, healing, refresh).ShouldNot(ContainElement(ContainSubstring("cluster/node-id/2")))
}
