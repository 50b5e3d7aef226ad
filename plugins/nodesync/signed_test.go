// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// The agent of node b writes over the beat of node a, and pretends to be another
// run of a's instance. Node a keeps its ID, and its next beat takes its place.
func TestABeatSignedByAnotherNode(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		forged := &kv.NodeBeat{Id: 1, Instance: who("a").Instance, Generation: 1, Session: "another", At: time.Now().Add(time.Hour).UnixNano(), NodeName: "b"}
		put(g, store, kv.BeatKey(1), forged)
		a.confirm(t)
		g.Expect(a.Problem()).To(BeEmpty())
		g.Expect(beatOf(g, store, 1)).To(And(HaveField("Session", who("a").Session), HaveField("NodeName", "a")))

		for _, by := range []string{"a", ""} { // a copy of its disk, or an agent that does not sign
			forged.NodeName = by
			put(g, store, kv.BeatKey(1), forged)
			a.confirm(t)
			g.Expect(a.Problem()).To(ContainSubstring("copied"), "signed by %q", by)
		}
	})
}

// The agent of node b makes a record of the name of node a, and beats under it.
// Node a is not kept out.
func TestARecordOfItsNameThatAnotherNodeBeatsUnder(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		put(g, store, kv.NodeRecordKey(7), &kv.NodeRecord{Id: 7, Name: "a", Instance: "forged", Generation: 1})
		beat := &kv.NodeBeat{Id: 7, Instance: "forged", Generation: 1, Session: "another", At: time.Now().UnixNano(), NodeName: "b"}
		put(g, store, kv.BeatKey(7), beat)
		g.Expect(claim(t, store, who("a")).ID).To(BeNumerically("==", 1))
		g.Expect(records(g, store)[7].SupersededBy).To(BeNumerically("==", 1))

		beat.NodeName = "a"
		put(g, store, kv.BeatKey(7), beat)
		put(g, store, kv.NodeRecordKey(7), &kv.NodeRecord{Id: 7, Name: "a", Instance: "forged", Generation: 1})
		_, err := nodesync.Claim(t.Context(), store, who("a"), nodesync.Held{}, time.Now())
		g.Expect(err).To(MatchError(nodesync.ErrNameInUse))
	})
}
