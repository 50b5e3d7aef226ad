// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

func registerOf(records ...*kv.NodeRecord) controller.KubeStateData {
	all := map[string]proto.Message{}
	for _, r := range records {
		if r != nil {
			all[kv.NodeRecordKey(r.Id)] = r
		}
	}
	return controller.KubeStateData{kubestate.NodeRecords: all}
}

func TestWhatTheStoreHasLostOfRecordsIsWrittenAgain(t *testing.T) {
	held := &kv.NodeRecord{Id: 5, Name: "a", Generation: 3}
	released := &kv.NodeRecord{Id: 5, Name: "a", Generation: 3, Released: 7}
	superseded := &kv.NodeRecord{Id: 5, Name: "a", Generation: 3, SupersededBy: 9}
	claimed := &kv.NodeRecord{Id: 5, Name: "b", Generation: 4}
	again := &kv.NodeRecord{Id: 5, Name: "a", Generation: 4}
	of := func(name string, r *kv.NodeRecord) *kv.NodeRecord {
		r = proto.Clone(r).(*kv.NodeRecord)
		r.Name = name
		return r
	}
	newcomer := &kv.NodeRecord{Id: 5, Name: "c", Instance: "another", Generation: 1}
	gone := &kv.NodeRecord{Id: 5, Name: "c", Instance: "another", Generation: 1, Released: 7, Clean: true}
	forced := &kv.NodeRecord{Id: 5, Name: "c", Instance: "another", Generation: 1, Released: 7}
	for name, c := range map[string]struct {
		known, found *kv.NodeRecord
		write        bool
	}{
		"all is well":                     {held, held, false},
		"it is new here":                  {nil, held, false},
		"lost":                            {held, nil, true},
		"a release is lost too":           {released, nil, true},
		"it changed hands meanwhile":      {held, claimed, false},
		"an older store":                  {again, held, true},
		"of another node":                 {of("b", again), of("b", held), false},
		"of another node, lost":           {of("b", held), nil, true},
		"of another node, not released":   {of("b", again), of("b", released), true},
		"of another node, superseded":     {of("b", superseded), of("b", held), false},
		"claimed by another node":         {claimed, held, false},
		"released meanwhile":              {held, released, false},
		"an older store, before it":       {released, held, false},
		"superseded meanwhile":            {held, superseded, false},
		"an older store, before that":     {superseded, held, true},
		"superseded and released":         {superseded, released, false},
		"a newcomer has it":               {held, newcomer, false},
		"a newcomer had it":               {held, gone, true},
		"a newcomer may still have it":    {held, forced, false},
		"other addresses, no generation":  {&kv.NodeRecord{Id: 5, Generation: 3, IpAddresses: []string{"10.0.0.1/24"}}, held, false},
		"a later claim after its release": {released, claimed, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			writes := nodesync.Repair("a")(registerOf(c.known), registerOf(c.found), nil)
			if !c.write {
				g.Expect(writes).To(BeEmpty())
				return
			}
			g.Expect(writes).To(HaveLen(1))
			g.Expect(writes[0].Key).To(Equal(kv.NodeRecordKey(5)))
			g.Expect(proto.Equal(writes[0].Message, c.known)).To(BeTrue())
		})
	}
}

// All nodes end with the same records, in any order of their writes, and then write
// nothing more.
func TestRepairEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		record := rapid.Custom(func(t *rapid.T) *kv.NodeRecord {
			return &kv.NodeRecord{
				Id: 5, Generation: rapid.Uint64Range(1, 3).Draw(t, "generation"), Released: rapid.Int64Range(0, 1).Draw(t, "released"),
				SupersededBy: rapid.Uint32Range(0, 1).Draw(t, "superseded"),
			}
		})
		nodes := rapid.SliceOfN(record, 1, 4).Draw(t, "what the nodes know")
		var store *kv.NodeRecord
		if rapid.Bool().Draw(t, "something is left") {
			store = record.Draw(t, "stored")
		}
		for range 2 {
			for _, known := range nodes {
				for _, w := range nodesync.Repair("")(registerOf(known), registerOf(store), nil) {
					store = w.Message.(*kv.NodeRecord)
				}
			}
		}
		for _, known := range nodes {
			g.Expect(nodesync.Repair("")(registerOf(known), registerOf(store), nil)).To(BeEmpty())
			g.Expect(store.Generation).To(BeNumerically(">=", known.Generation))
		}
	})
}
