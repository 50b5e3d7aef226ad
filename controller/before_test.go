// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"runtime"
	"testing"

	. "github.com/onsi/gomega"
)

// beforeResync calls BeforeResync with a function that has the given outcome.
func (r *rig) beforeResync(outcome error) (called bool, err error) {
	return r.BeforeResync(func() error { return outcome })
}

func TestWhatIsDoneBeforeTheFirstResyncIsOver(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		refused := errors.New("no")
		called, err := r.beforeResync(refused)
		g.Expect(called).To(BeTrue())
		g.Expect(err).To(MatchError(refused))

		during := true
		r.b.resync = func(ResyncOperations) error { during, _ = r.beforeResync(nil); return refused }
		r.push(&DBResync{})
		g.Expect(during).To(BeFalse(), "a resync is under way")
		called, _ = r.beforeResync(nil)
		g.Expect(called).To(BeTrue(), "a resync that failed commits nothing southbound")

		r.b.resync = nil
		r.push(&DBResync{})
		called, _ = r.beforeResync(nil)
		g.Expect(called).To(BeFalse())
	})
}

func TestTheFirstResyncWaitsForWhatIsDoneBefore(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		resynced := make(chan error, 1)
		_, err := r.BeforeResync(func() error {
			err := r.PushEvent(&DBResync{OnDone: func(err error) { resynced <- err }})
			for range 1000 {
				runtime.Gosched() // the loop would take the event
			}
			r.log.add("done before")
			return err
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(<-resynced).To(Succeed())
		g.Expect(r.log.get()[0]).To(Equal("done before"))
	})
}
