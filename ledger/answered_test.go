// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
)

// The answer to a request counts until it is taken back, unless a newer one was answered.
func TestAnAnswerIsTakenBack(t *testing.T) {
	g := NewWithT(t)
	l, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{Uptime: func() time.Duration { return time.Hour }})
	g.Expect(err).NotTo(HaveOccurred())
	st := l.Begin()
	g.Expect(st.SetPool(ledger.Pool{Name: "default"})).To(Succeed())
	g.Expect(st.SetBlocks("default", prefixes("10.1.1.0/24"))).To(Succeed())
	key := ledger.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}
	_, _, err = st.Claim(ledger.Request{Pool: "default", Key: key, Accepted: 3})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.AnsweredAfter(key, 2)).To(BeFalse(), "it is not committed")
	g.Expect(st.Commit(t.Context())).To(Succeed())
	after := func(accepted time.Duration) bool { return l.AnsweredAfter(key, accepted) }
	g.Expect([]bool{after(2), after(3)}).To(Equal([]bool{true, false}))

	l.Unanswered(key, 3, 0)
	g.Expect(after(0)).To(BeFalse())
	g.Expect(l.Answered(key, 1)).To(BeZero(), "nothing was answered before")
	g.Expect(l.Answered(key, 5)).To(Equal(time.Duration(1)))
	l.Unanswered(key, 4, 0)
	g.Expect(after(4)).To(BeTrue(), "it was not the newest one")
	l.Unanswered(key, 5, 1)
	g.Expect([]bool{after(0), after(1)}).To(Equal([]bool{true, false}))
}
