// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
)

func TestRestoredAddressAfterATornReleaseIsDurable(t *testing.T) {
	g := NewWithT(t)
	fault := journal.None
	j := &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return fault }}
	w := hosted(g, j, "10.1.0.0/24", "")
	g.Expect(w.AllocateIP(ip("10.1.0.7"), "web")).To(Succeed())
	w.start()
	fault = journal.Tear
	g.Expect(w.ReleaseIP(ip("10.1.0.7"))).To(MatchError(journal.ErrInjected))
	g.Expect(w.AllocateIP(ip("10.1.0.7"), "web")).To(MatchError(journal.ErrInjected), "the journal does not have it")
	fault = journal.None
	g.Expect(w.AllocateIP(ip("10.1.0.7"), "web")).To(Succeed())
	w.start()
	g.Expect(w.held()).To(HaveKeyWithValue("10.1.0.7", "web"))
}
