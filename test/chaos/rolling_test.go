// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

// TestRollingUpgrade upgrades the agents of a cluster one after the other, and rolls
// them back one after the other. After each step every node keeps its ID and its
// leases, allocates, and no address is held by two.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	tried := attack.Begin(t, attack.Rolling)
	old := buildLastVersion(t)
	g := NewWithT(t)
	server := etcdtest.Start(t)
	var all []*member
	for _, name := range []string{"a", "b", "c"} {
		m := newMember(t, name, server)
		m.forLastVersion(t)
		m.program = old
		m.join(t)
		all = append(all, m)
	}
	store := newRegistry(t, server.Endpoint())
	told := map[*member]map[string]string{}
	holder := map[string]string{}
	steps := 0
	verify := func() {
		t.Helper()
		steps++
		tried.Add(1)
		store.mustHold(t, idsOf(all))
		for _, m := range all {
			m.awaitFollowing(t)
			if told[m] == nil {
				told[m] = map[string]string{}
			}
			for id, was := range told[m] {
				g.Expect(m.ask(t, Add, id)).To(Equal(was), "step %d: %s of %s", steps, id, m.name)
			}
			id := fmt.Sprint("pod", steps)
			address := m.ask(t, Add, id)
			g.Expect(address).To(HavePrefix("10.1.0."), "step %d: %s", steps, m.name)
			g.Expect(holder).NotTo(HaveKey(address), "step %d: %s", steps, m.name)
			told[m][id], holder[address] = address, m.name+" "+id
		}
	}
	verify()
	for _, m := range all {
		m.kill()
		m.program = ""
		m.run(t)
		verify()
	}
	for _, m := range all {
		g.Expect(m.agent.stop()).To(Succeed())
		out, err := m.cli("database", "downgrade", "--state-dir", m.stateDir, "--run-dir", m.runDir)
		g.Expect(err).NotTo(HaveOccurred(), out)
		m.program = old
		m.run(t)
		verify()
	}
}
