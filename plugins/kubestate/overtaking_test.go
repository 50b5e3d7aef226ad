// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// Pods of this node may overtake what happens to other nodes, and what the API server says
// of pods. They do not overtake what this node allocates from.
func TestPodsOvertakeOnlyOtherNodes(t *testing.T) {
	overtaken := map[string]proto.Message{
		kv.NodeRecordKey(7):               &kv.NodeRecord{Id: 7, Name: "other"},
		kv.NodeKey("other"):               &kv.Node{Name: "other"},
		kv.PrefixClaimPrefix + "of.other": &kv.PrefixClaim{Node: "other"},
		podKey("a"):                       &kv.Pod{Name: "a"},
	}
	ordered := map[string]proto.Message{
		kv.NodeRecordKey(5):              &kv.NodeRecord{Id: 5, Name: thisNode},
		kv.NodeKey(thisNode):             &kv.Node{Name: thisNode},
		kv.PrefixClaimPrefix + "of.this": &kv.PrefixClaim{Node: thisNode},
		kv.PoolKey("p"):                  &kv.Pool{Name: "p"},
		kv.CustomNetworkKey("n"):         &kv.CustomNetwork{Name: "n"},
		kv.NodeConfigKey(thisNode):       &kv.NodeConfig{NodeName: thisNode},
		kv.NetResourceSetKey(thisNode):   &kv.NetResourceSet{Name: thisNode},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		all := maps.Clone(overtaken)
		maps.Copy(all, ordered)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			r.put(key, all[key])
			r.remove(key)
		}
		// An ID changes hands.
		r.put(kv.NodeRecordKey(9), &kv.NodeRecord{Id: 9, Name: "other"})
		r.put(kv.NodeRecordKey(9), &kv.NodeRecord{Id: 9, Name: thisNode})
		r.put(kv.NodeRecordKey(9), &kv.NodeRecord{Id: 9, Name: "other"})
		synctest.Wait()
		r.loop.mu.Lock()
		defer r.loop.mu.Unlock()
		r.g.Expect(r.loop.came).To(HaveLen(2*len(all) + 3))
		var hands []controller.EventClass
		for _, ev := range r.loop.came {
			switch {
			case ev.Key == kv.NodeRecordKey(9):
				hands = append(hands, ev.Class())
			case overtaken[ev.Key] != nil:
				r.g.Expect(ev.Class()).To(Equal(controller.Background), ev.String())
			default:
				r.g.Expect(ev.Class()).To(Equal(controller.Ordered), ev.String())
			}
		}
		r.g.Expect(hands).To(Equal([]controller.EventClass{controller.Background, controller.Ordered, controller.Ordered}))
	})
}
