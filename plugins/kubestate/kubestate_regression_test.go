// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
)

// A value that was good and cannot be decoded any more is left out by a
// snapshot. The changes must come to the same, not keep the old value.
func TestAValueThatGoesBad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pod("a", "10.1.5.2")
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.putRaw(podKey("a"), []byte{0xff, 0xff, 0xff})
		synctest.Wait()
		byChanges, _, _, _ := r.loop.seen()
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		bySnapshot, _, _, _ := r.loop.seen()
		r.g.Expect(byChanges).To(Equal(bySnapshot))
	})
}

// After the end of Run there is no answer: a caller must get an error, not
// wait for its own end. (A request that is under way when the agent stops has
// no end of its own: it holds up the end of the agent.)
func TestResyncAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		synctest.Wait()
		r.end(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r.g.Expect(r.Resync(ctx)).To(MatchError(controller.ErrClosedController))
		r.g.Expect(r.Dispatch(ctx)).To(MatchError(controller.ErrClosedController))
	})
}
