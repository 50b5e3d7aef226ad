// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
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
		r.putRaw("k8s/pod/ns/a", []byte{0xff, 0xff, 0xff})
		synctest.Wait()
		byChanges, _, _, _ := r.loop.seen()
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		bySnapshot, _, _, _ := r.loop.seen()
		r.g.Expect(byChanges).To(Equal(bySnapshot))
	})
}
