// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
)

// An answer that did not arrive is none: its lease is taken back, unless
// another ADD received it, or it is not that lease any more.
func TestAnswersThatDoNotArrive(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(g Gomega, a *agent, first *call)
		held []string
	}{
		{"it arrived", func(_ Gomega, a *agent, first *call) {
			a.Delivered(request("ADD", "c1"), first.reply, nil)
		}, []string{"c1"}},
		{"it did not", func(_ Gomega, a *agent, first *call) {
			a.Delivered(request("ADD", "c1"), first.reply, errGone)
		}, []string{}},
		{"it did not, but that of a repetition did", func(_ Gomega, a *agent, first *call) {
			again := a.begin(request("ADD", "c1"))
			a.drain()
			a.Delivered(request("ADD", "c1"), first.reply, errGone)
			a.Delivered(request("ADD", "c1"), again.reply, nil)
		}, []string{"c1"}},
		{"it did not, and a repetition is on its way", func(g Gomega, a *agent, first *call) {
			a.Delivered(request("ADD", "c1"), first.reply, errGone)
			again := a.begin(request("ADD", "c1"))
			a.drain()
			g.Expect(again.reply.IPs).To(Equal(first.reply.IPs))
			a.Delivered(request("ADD", "c1"), again.reply, nil)
		}, []string{"c1"}},
		{"that of a repetition did not, the first one did", func(_ Gomega, a *agent, first *call) {
			a.Delivered(request("ADD", "c1"), first.reply, nil)
			again := a.begin(request("ADD", "c1"))
			a.drain()
			a.Delivered(request("ADD", "c1"), again.reply, errGone)
		}, []string{"c1"}},
		{"it did not, and a DEL and a new ADD came before that is known", func(_ Gomega, a *agent, first *call) {
			a.begin(request("DEL", "c1"))
			again := a.begin(request("ADD", "c1"))
			a.drain()
			a.Delivered(request("ADD", "c1"), again.reply, nil)
			a.Delivered(request("ADD", "c1"), first.reply, errGone)
		}, []string{"c1"}},
		{"it did not, and a DEL came after", func(_ Gomega, a *agent, first *call) {
			a.Delivered(request("ADD", "c1"), first.reply, errGone)
			a.begin(request("DEL", "c1"))
		}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			slowly(t, func(g Gomega, a *agent) {
				first := a.begin(request("ADD", "c1"))
				a.drain()
				g.Expect(first.err).NotTo(HaveOccurred())
				c.do(g, a, first)
				synctest.Wait()
				a.drain()
				g.Expect(a.held()).To(Equal(c.held))
			})
		})
	}
}

// Only an ADD that took something has something to take back.
func TestOtherAnswersThatDoNotArrive(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		first := a.begin(request("ADD", "c1"))
		a.drain()
		a.Delivered(request("ADD", "c1"), first.reply, nil)
		for _, command := range []string{"DEL", "CHECK", "GC", "STATUS"} {
			r := request(command, "c1")
			a.Delivered(r, first.reply, errGone)
		}
		synctest.Wait()
		g.Expect(a.loop.waiting()).To(BeZero())
		g.Expect(a.held()).To(Equal([]string{"c1"}))
	})
}
