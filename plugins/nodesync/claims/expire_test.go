// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
)

// An agent whose configuration lets it allocate for a day without the store keeps
// its claim for a day, whatever the configuration of the node that releases it.
func TestAHolderWithALongerExpiry(t *testing.T) {
	w := newWorld(t)
	a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
	run(w.store, &every{}, w.check, w.asks(a, wide(), 1))
	w.put(kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: a.Instance, At: w.now.UnixNano(), NodeName: "a", Expire: int64(24 * time.Hour)})
	w.now = w.now.Add(expire)
	w.g.Expect(w.register(w.store).End(context.Background(), "a", w.now)).To(Succeed())
	o, err := w.register(w.store).Ask(context.Background(), b, wide(), w.now)
	w.g.Expect(err).NotTo(HaveOccurred())
	w.g.Expect(o.Held).To(BeFalse())
	w.g.Expect(o.Blocker.Ends).To(BeTemporally("==", epoch().Add(24*time.Hour)))
}

// A node that was released by force may allocate from what its ID implies for as long as
// its own configuration says, whatever that of the node which asks.
func TestANodeReleasedByForceWithALongerExpiry(t *testing.T) {
	w := newWorld(t)
	b := w.joins(node("b", 2))
	w.put(kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: "i-a", Generation: 1, Released: w.now.UnixNano()})
	w.put(kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "i-a", At: w.now.UnixNano(), NodeName: "a", Expire: int64(24 * time.Hour)})
	for wait, held := range map[time.Duration]bool{expire + time.Second: false, 24*time.Hour - time.Second: false, 24 * time.Hour: true} {
		o, err := w.register(w.store).Ask(context.Background(), b, block("10.1.1.0/24"), epoch().Add(wait))
		w.g.Expect(err).NotTo(HaveOccurred())
		w.g.Expect(o.Held).To(Equal(held), "after %s", wait)
		run(w.store, &every{}, w.check, w.givesUp(b, block("10.1.1.0/24")))
	}
}

// A node whose record says that it has a prefix was upgraded: its claim comes
// before the older one of a node that only waits.
func TestAnUpgradedNodeComesBeforeOneThatWaits(t *testing.T) {
	w := newWorld(t)
	a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
	w.put(kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: a.Instance, Generation: 1, PodCidrs: []string{"10.1.77.0/24"}})
	run(w.store, &every{}, w.check, w.asks(b, wide(), 1))
	w.g.Expect(w.held(wide())).To(BeEmpty(), "the record keeps it out")
	run(w.store, &every{}, w.check, w.asks(a, wide(), 1))
	w.g.Expect(w.held(wide())).To(ConsistOf("a/i-a"))
}
