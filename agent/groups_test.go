// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// inWorld runs f with an agent in simulated time. more changes the world before the agent
// starts.
func inWorld(t *testing.T, conf string, more func(*world), f func(g Gomega, w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, rnd: rand.New(rand.NewPCG(1, 1)), disk: journal.NewMemory(), store: keptStore{mem.New()}, dir: dir,
			begun: time.Now(), booted: time.Now().Add(-time.Hour), conf: conf,
			told: map[ledger.Key]string{}, unsure: map[ledger.Key]bool{},
		}
		if more != nil {
			more(w)
		}
		w.start()
		f(NewWithT(t), w)
		w.end()
	})
}

// An ADD behind the joins of other nodes is the next event. What this node allocates
// from keeps its place before the ADD.
func TestAnADDOvertakesTheJoinsOfOtherNodes(t *testing.T) {
	conf := "ipamConfig:\n  podSubnetCIDR: 10.0.0.0/12\n  podSubnetOneNodePrefixLen: 28\n"
	inWorld(t, conf, nil, func(g Gomega, w *world) {
		join := func(from, to int) {
			for i := from; i < to; i++ {
				name := fmt.Sprint("other-", i)
				w.put(g, kv.NodeRecordKey(uint32(i+10)), &kv.NodeRecord{Id: uint32(i + 10), Name: name})
				w.put(g, kv.NodeKey(name), &kv.Node{Name: name})
				synctest.Wait() // the watch reads it
			}
		}
		between := func(prepare func()) (names []string) {
			gate := w.pause()
			prepare()
			synctest.Wait()
			g.Expect(w.a.loop.Status().Queued).To(BeNumerically(">=", 400))
			answers := w.queue([]answer{{command: "ADD", key: w.key()}})
			close(gate)
			g.Expect(answers()[0].code).To(BeZero())
			synctest.Wait()
			records, _ := w.a.loop.Events(0)
			at := func(name string) int {
				i := len(records) - 1
				for ; records[i].Name != name; i-- {
				}
				return i
			}
			for _, r := range records[at("Pause")+1 : at("Add Pod")] {
				names = append(names, r.Description)
			}
			return names
		}
		g.Expect(between(func() { join(0, 200) })).To(BeEmpty())
		g.Expect(between(func() {
			join(200, 205)
			w.put(g, kv.NodeConfigKey("n"), &kv.NodeConfig{NodeName: "n"})
			join(205, 400)
		})).To(ContainElement(ContainSubstring("config")), "and it does not overtake the configuration of this node")
	})
}

// put writes a value into the cluster store.
func (w *world) put(g Gomega, key string, m proto.Message) {
	value, err := proto.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = w.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	g.Expect(err).NotTo(HaveOccurred())
}

// fussy is the last handler: it refuses the attachments whose names say so.
type fussy struct{}

func (fussy) String() string                     { return "fussy" }
func (fussy) HandlesEvent(controller.Event) bool { return true }
func (fussy) Revert(controller.Event) error      { return nil }
func (fussy) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return nil
}

func (fussy) Update(ev controller.Event, _ controller.UpdateOperations) (string, error) {
	id := ""
	switch ev := ev.(type) {
	case *podmanager.AddPod:
		id = ev.Key.ContainerID
	case *podmanager.DeletePod:
		id = ev.Key.ContainerID
	}
	switch {
	case strings.HasPrefix(id, "refused"):
		return "", errors.New("refused")
	case strings.HasPrefix(id, "panics"):
		panic("refused")
	case strings.HasPrefix(id, "aborts"):
		return "", controller.NewAbortEventError(errors.New("refused"))
	}
	return "", nil
}

// plainCommitter is a committer without savepoints: beside it no events share a commit.
type plainCommitter struct{}

func (plainCommitter) Commit(context.Context) error { return nil }
func (plainCommitter) Undo()                        {}

// ending holds what a run of requests has come to.
type ending struct{ answers, leases, values, history []string }

// An agent whose events share commits ends where one ends that commits each event: the same
// answers, leases, southbound values and history. If events fail, the addresses may be others:
// the try beside other events has used some.
func TestSharedCommitsChangeNothing(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			g := NewWithT(t)
			fails := seed%2 == 1
			apart, groups := requestsAtRandom(t, seed, fails, true)
			g.Expect(groups).To(BeZero())
			together, groups := requestsAtRandom(t, seed, fails, false)
			g.Expect(groups).To(BeNumerically(">", 10))
			g.Expect(together.answers).To(Equal(apart.answers))
			g.Expect(together.leases).To(Equal(apart.leases))
			g.Expect(together.values).To(Equal(apart.values))
			g.Expect(together.history).To(Equal(apart.history))
		})
	}
}

func requestsAtRandom(t *testing.T, seed uint64, fails, apart bool) (e ending, groups int) {
	conf := "ipamConfig:\n  podSubnetCIDR: 10.1.0.0/16\n  podSubnetOneNodePrefixLen: 22\n"
	more := func(w *world) {
		w.last = fussy{}
		if apart {
			w.committers = []controller.Committer{plainCommitter{}}
		}
	}
	inWorld(t, conf, more, func(g Gomega, w *world) {
		rnd := rand.New(rand.NewPCG(seed, 99))
		address := func(a string) string {
			if fails && a != "" {
				return "some"
			}
			return a
		}
		for range 5 {
			var requests []answer
			for range 5 + rnd.IntN(20) {
				names := []string{"c", "c", "c", "c", "c", "refused", "panics", "aborts"}
				k := ledger.Key{Network: "pods", ContainerID: names[0], IfName: "eth0"}
				if fails {
					k.ContainerID = names[rnd.IntN(len(names))]
				}
				k.ContainerID += fmt.Sprint(rnd.IntN(12))
				requests = append(requests, answer{command: []string{"ADD", "ADD", "DEL"}[rnd.IntN(3)], key: k})
			}
			gate, before := w.pause(), w.processed()
			answers := w.queue(requests)
			close(gate)
			for _, r := range answers() {
				e.answers = append(e.answers, fmt.Sprint(r.command, r.key, address(r.address), r.code))
			}
			time.Sleep(time.Minute) // heals
			synctest.Wait()
			w.countGroups(before)
		}
		for _, l := range w.a.ledger.Leases() {
			if l.Purpose == ledger.ForPod && l.State == ledger.Held {
				e.leases = append(e.leases, fmt.Sprint(address(l.Addr.String()), l.Key, l.Pod, l.State))
			}
		}
		entries, err := w.a.ledger.History(context.Background(), ledger.HistoryQuery{})
		g.Expect(err).NotTo(HaveOccurred())
		for _, x := range entries {
			if x.EventName != "" && x.Key != (ledger.Key{}) {
				e.history = append(e.history, fmt.Sprint(x.Action, x.Key, address(x.Addr.String()), x.EventName, x.Reason))
			}
		}
		values, err := w.sink.Dump(context.Background())
		g.Expect(err).NotTo(HaveOccurred())
		for k, m := range values {
			text := fmt.Sprint(k, " ", m.ProtoReflect().Descriptor().Name())
			if p, ok := m.(*kv.PodNetwork); ok {
				text += fmt.Sprint(p.ContainerId, p.Name)
				for _, a := range p.Addresses {
					text += address(a)
				}
			}
			e.values = append(e.values, text)
		}
		slices.Sort(e.leases)
		slices.Sort(e.values)
		groups = w.groups
	})
	return e, groups
}
