// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
)

// The answer did not arrive, but its withdrawal is void because a repetition
// is on its way; when that fails too, the lease is released.
func TestAnAnswerThatDoesNotArriveAndARepetitionThatFails(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		first := a.begin(request("ADD", "c1"))
		a.drain()
		a.Delivered(request("ADD", "c1"), first.reply, errGone)
		synctest.Wait() // the withdrawal is in the queue
		a.begin(request("ADD", "c1")).leave()
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
	})
}
