// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func (r *rig) note() string {
	rs, _ := r.Events(0)
	return rs[len(rs)-1].Note
}

func pod(key string, revision int64) *KubeStateChange {
	return &KubeStateChange{Resource: "pod", Key: key, New: wrapperspb.String(key), Revision: revision}
}

func TestAChangeThatTheResyncHasBroughtIsDropped(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		// The source queues a change, then loses its watch and takes a snapshot.
		r.push(&KubeStateChange{Resource: "pod", Key: "gone", New: wrapperspb.String("gone"), Revision: 6})
		r.push(&DBResync{Revision: 7, KubeState: KubeStateData{"pod": values{"a": wrapperspb.String("newest")}}})
		g.Expect(r.kubeState["pod"]).To(And(HaveLen(1), HaveKey("a")), "a key that is gone does not come back")
		g.Expect(r.note()).To(Equal("dropped: the resync at revision 7 has brought revision 6"))
		g.Expect(r.log.get()).NotTo(ContainElement(ContainSubstring("Kubernetes State Change")))
		g.Expect(r.Status().Healthy).To(BeTrue())

		r.push(pod("b", 7))
		g.Expect(r.kubeState["pod"]).NotTo(HaveKey("b"))
		r.push(pod("c", 8))
		r.push(pod("d", 8)) // one transaction of the database
		r.push(pod("e", 0)) // unknown
		g.Expect(r.kubeState["pod"]).To(And(HaveLen(4), HaveKey("c"), HaveKey("d"), HaveKey("e")))
		g.Expect(r.note()).To(BeEmpty())
	})
}

func TestTheDatabaseMayGoBackToAnOlderRevision(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.push(&DBResync{Revision: 7})
		r.push(&DBResync{Revision: 3}) // a backup was restored
		r.push(pod("a", 4))
		g.Expect(r.kubeState["pod"]).To(HaveKey("a"))
		r.push(&DBResync{})
		r.push(pod("b", 1))
		g.Expect(r.kubeState["pod"]).To(HaveKey("b"), "a resync without a revision has not seen any")
	})
}

func TestAResyncThatFailedHasBroughtItsRevisionToo(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.b.resync = func(ResyncOperations) error { return errors.New("no") }
		r.push(&DBResync{Revision: 7, KubeState: KubeStateData{}})
		r.push(pod("a", 6))
		g.Expect(r.note()).To(HavePrefix("dropped"), "the healing goes by its snapshot")
	})
}

func TestExternalChangesOfTheDatabaseAreSeenOnce(t *testing.T) {
	w := &wire{}
	loopWith(t, nil, func(d *Deps) { d.Sink = w }, func(g Gomega, r *rig) {
		r.push(&DBResync{Revision: 7, ExternalConfig: values{"k": file("new")}})
		outcome := errors.New("not called")
		r.push(&ExternalConfigChange{Source: "db", Values: values{"k": file("old")}, Revision: 7, Blocking: true, OnDone: func(err error) { outcome = err }})
		g.Expect(outcome).NotTo(HaveOccurred(), "it is done")
		w.has(g, values{"k": file("new")})
		g.Expect(r.note()).To(HavePrefix("dropped"))
		r.push(&ExternalConfigChange{Source: "grpc", Values: values{"k": file("other")}, Revision: 1})
		w.has(g, values{"k": file("other")}) // which counts for itself
		r.push(&ExternalConfigChange{Source: "db", Values: values{"l": file("l")}, Revision: 8})
		w.has(g, values{"k": file("other"), "l": file("l")})
		r.push(&ExternalConfigChange{Source: "db", Values: values{"l": nil}})
		w.has(g, values{"k": file("other")})
	})
}

func TestALocalResyncThenTheRemoteOne(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		x := &event{name: "x"}
		r.push(x)
		r.push(&DBResync{Local: true, Revision: 5, KubeState: KubeStateData{"pod": values{"old": wrapperspb.String("5")}}})
		g.Expect(x.done()).To(Equal([]error{nil}), "what has waited goes on")
		r.push(pod("a", 4))
		g.Expect(r.kubeState["pod"]).To(And(HaveKey("old"), HaveKey("a")), "a mirror says nothing about what was seen")
		r.push(&DBResync{Local: true, KubeState: KubeStateData{"pod": values{"again": wrapperspb.String("5")}}})
		g.Expect(r.kubeState["pod"]).To(HaveKey("again"), "nothing newer is known")
		r.push(&DBResync{Revision: 9, KubeState: KubeStateData{"pod": values{"new": wrapperspb.String("9")}}})
		g.Expect(r.kubeState["pod"]).To(And(HaveLen(1), HaveKey("new")))
		g.Expect(r.log.get()).To(ContainElements("a resync 1", "a resync 2", "a resync 3"))
		r.push(pod("b", 9))
		g.Expect(r.note()).To(HavePrefix("dropped"))
		r.push(pod("c", 10))
		g.Expect(r.kubeState["pod"]).To(HaveKey("c"))
	})
}

func TestALocalResyncBehindTheRemoteOneIsDropped(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		outcome := errors.New("not called")
		gate := make(chan struct{})
		r.a.resync = func(ResyncOperations) error { <-gate; return nil }
		r.push(&DBResync{Revision: 9, KubeState: KubeStateData{"pod": values{"new": wrapperspb.String("9")}}, ExternalConfig: values{"k": file("new")}})
		r.push(&DBResync{Local: true, KubeState: KubeStateData{"pod": values{"old": wrapperspb.String("5")}}, OnDone: func(err error) { outcome = err }})
		close(gate)
		synctest.Wait()
		g.Expect(outcome).NotTo(HaveOccurred())
		g.Expect(r.kubeState["pod"]).To(And(HaveLen(1), HaveKey("new")), "it never goes back")
		g.Expect(r.sink.dumped()).To(HaveKey("k"))
		g.Expect(r.note()).To(HavePrefix("dropped: a local resync"))
		g.Expect(r.last()).To(Equal("c resync 1"))
		r.push(pod("a", 9))
		g.Expect(r.note()).To(HavePrefix("dropped"), "the revision is still that of the remote one")
	})
}

func TestALocalResyncDoesNotReplaceARemoteOneThatFailed(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.b.resync = func(ResyncOperations) error { return errors.New("no") }
		r.push(&DBResync{KubeState: KubeStateData{"pod": values{"new": wrapperspb.String("9")}}})
		r.push(&DBResync{Local: true})
		g.Expect(r.kubeState["pod"]).To(HaveKey("new"), "the healing goes by it")
		g.Expect(r.Status().Resynced).To(BeFalse())
	})
}
