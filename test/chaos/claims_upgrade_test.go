// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

// The agent of the last version has pods in a podCIDR that a controller assigns to
// a second node. The second node waits, also once the first one is upgraded: its
// pending claim is older than that of the upgraded agent.
func TestTheHolderIsUpgradedWhileAnotherNodeWaits(t *testing.T) {
	t.Parallel()
	old := buildLastVersion(t)
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	store.assigns(t, "a", "uid-1", "10.1.77.0/27")
	a := newMember(t, "a", server)
	a.change(t, "ipamConfig: {", "ipamConfig: {useExternalIPAM: true, ")
	a.forLastVersion(t)
	a.program = old
	a.run(t)
	a.awaitFollowing(t)
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.77.2/27"))

	store.assigns(t, "b", "uid-2", "10.1.77.0/27")
	b := externalMember(t, "b", server)
	g.Eventually(func() error { return b.waits("a") }, healing, 20*time.Millisecond).Should(Succeed())

	a.kill()
	a.program = ""
	a.run(t)
	g.Consistently(func() string { return b.ask(t, Add, "pod") }, 10*fresh, 100*time.Millisecond).Should(ContainSubstring("refused: "), "a's pod has an address there")
	a.awaitFollowing(t)
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.77.2/27"))
	g.Expect(a.ask(t, Add, "other")).To(HavePrefix("10.1.77."))
	g.Expect(b.waits("a")).To(Succeed())
}
