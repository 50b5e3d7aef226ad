// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// claimant is one instance that claims IDs, or an operator who releases them,
// with a network of its own.
type claimant struct {
	*idHistory
	instance int
	way      *etcdtest.Proxy
	store    kvdb.Store
	rnd      *rand.Rand
	want     nodesync.Held
	runs     int
}

// briefly bounds the age of a fresh beat in these histories.
const briefly = 40 * time.Millisecond

func nameOf(name int) string { return fmt.Sprint("n", name) }

func instanceOf(i int) string { return fmt.Sprint("instance-", i) }

// claim takes the steps of an agent that starts.
func (c *claimant) claim(ctx context.Context) idOp {
	c.runs++
	who := nodesync.Identity{
		Name: nameOf(c.names[c.instance]), Instance: instanceOf(c.instance), Session: fmt.Sprint(c.instance, "-", c.runs),
		Limit: func([]*kv.Pool) uint32 { return 8 }, Fresh: briefly, Random: c.rnd.Float64,
	}
	return c.do(idOp{Verb: claimID, Instance: c.instance}, func(op *idOp) {
		held, err := nodesync.Claim(ctx, c.store, who, c.want, time.Now())
		switch {
		case err == nil:
			op.Fate, op.ID, c.want = Answered, held.ID, held
		case errors.Is(err, nodesync.ErrIDTaken):
			op.Fate, c.want = Refused, nodesync.Held{} // nothing depends on it
		case errors.Is(err, nodesync.ErrNameInUse), errors.Is(err, nodesync.ErrNoID):
			op.Fate = Refused
		default:
			op.Fate = Lost
		}
	})
}

// release takes the steps of an operator.
func (h *idHistory) release(ctx context.Context, store kvdb.Store, name int, force bool) idOp {
	return h.do(idOp{Verb: releaseID, Name: name}, func(op *idOp) {
		id, err := nodesync.Release(ctx, store, nodesync.Gone{Name: nameOf(name), Force: force, Fresh: briefly}, time.Now())
		switch {
		case err == nil:
			op.Fate, op.ID = Answered, id
		case errors.Is(err, nodesync.ErrNoNode):
			op.Fate, op.None = Refused, true
		case errors.Is(err, nodesync.ErrFresh):
			op.Fate = Refused
		default:
			op.Fate = Lost
		}
	})
}

// read returns the content of "cadastre node list".
func (h *idHistory) read(ctx context.Context, store kvdb.Store, instances []string) (all owned, err error) {
	list, err := nodesync.List(ctx, store)
	for _, x := range list {
		for i, uuid := range instances {
			if x.Instance != uuid || x.Released != 0 {
				continue
			}
			if all[i] != 0 {
				return all, fmt.Errorf("%s has node IDs %d and %d", uuid, all[i], x.Id)
			}
			all[i] = x.Id
		}
	}
	return all, err
}

// spoil changes the network at random until ctx ends.
func (c *claimant) spoil(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		switch rnd.IntN(10) {
		case 0:
			c.way.Cut()
		case 1:
			c.way.Blackhole()
		case 2, 3:
			c.way.Mute()
		case 4:
			c.way.Delay(time.Duration(rnd.IntN(40)) * time.Millisecond)
		default:
			c.way.Pass()
		}
		pause(time.Duration(5+rnd.IntN(60)) * time.Millisecond)
	}
	c.way.Pass()
}

// TestHistoriesOfClaims lets instances claim IDs while others of the same name
// do so too, and while operators release them. The networks fail in the middle.
// The test looks for an order that explains what each was told.
func TestHistoriesOfClaims(t *testing.T) {
	tried := attack.Begin(t, attack.IDClaim)
	t.Parallel()
	g := NewWithT(t)
	s := effort.Seed(t)
	server := etcdtest.Start(t)
	fates, unchecked := map[string]int{}, 0
	for epoch := range max(5, effort.Times(t, 5)) {
		h := newIDHistory(0, 0, 1, 1, 2, 3)
		g.Expect(claimAndRelease(t, server, h, epoch, s)).To(Succeed(), "epoch %d", epoch)
		switch err := h.check(searchLimit); {
		// the slower the machine, the more requests are lost
		case errors.Is(err, errNotChecked) && epoch != fairWeather:
			unchecked++
		default:
			g.Expect(err).NotTo(HaveOccurred(), "epoch %d", epoch)
		}
		tried.Add(len(h.ops))
		for _, op := range h.ops {
			fates[fmt.Sprint(op.Verb, " ", op.Fate)]++
		}
		if epoch == fairWeather { // elsewhere there are too many orders to be tried in vain
			g.Expect(h.lie()).To(BeTrue(), "no instance has an ID")
			g.Expect(h.check(searchLimit)).To(MatchError(errNoOrder), "a lie is found")
		}
	}
	t.Logf("%v; %d histories have too many orders to be checked", fates, unchecked)
	g.Expect(fates["CLAIM answered"]).To(BeNumerically(">", 0))
	g.Expect(fates["CLAIM lost"]).To(BeNumerically(">", 0), "no network has failed")
	g.Expect(fates["RELEASE answered"]).To(BeNumerically(">", 0))
}

// lie adds, at the end, an answer that gives an instance the ID of another one.
func (h *idHistory) lie() bool {
	last := h.ops[len(h.ops)-1]
	for i, id := range last.All {
		if other := (i + 1) % len(h.names); id != 0 {
			h.ops = append(h.ops, idOp{Verb: claimID, Instance: other, Name: h.names[other], Fate: Answered, ID: id, Call: last.Back + 1, Back: last.Back + 2})
			return true
		}
	}
	return false
}

// fairWeather is the epoch in which no network fails.
const fairWeather = 0

// claimAndRelease makes one history.
func claimAndRelease(t *testing.T, server *etcdtest.Server, h *idHistory, epoch int, seed uint64) error {
	rnd := random(seed, epoch)
	prefix := fmt.Sprintf("/epoch%d/", epoch)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all []*claimant
	var uuids []string
	patience := 200 * time.Millisecond
	if epoch == fairWeather {
		patience = time.Minute // no request is lost, however slow the machine is
	}
	for i := range len(h.names) + 1 { // the last is the operator
		way := newProxy(t, server.Address())
		store, err := etcd.Open(etcd.Config{Endpoints: []string{way.Address()}, Prefix: prefix, RequestTimeout: patience})
		if err != nil {
			return err
		}
		all = append(all, &claimant{idHistory: h, instance: i, way: way, store: store, rnd: rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))})
		uuids = append(uuids, instanceOf(i))
	}
	var work, weather sync.WaitGroup
	errs := make([]error, len(all))
	for i, c := range all {
		own := rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))
		if epoch != fairWeather {
			weather.Go(func() { c.spoil(ctx, own) })
		}
		work.Go(func() {
			for range 7 {
				pause(time.Duration(c.rnd.IntN(40)) * time.Millisecond)
				switch operator := i == len(h.names); {
				case !operator:
					c.claim(ctx)
				case c.rnd.IntN(4) == 0:
					h.do(idOp{Verb: readIDs, Fate: Refused}, func(op *idOp) {
						if all, err := h.read(ctx, c.store, uuids); err == nil {
							op.All, op.Fate = all, Answered
						}
					})
				default:
					h.release(ctx, c.store, c.rnd.IntN(4), c.rnd.IntN(2) == 0)
				}
			}
		})
	}
	work.Wait()
	cancel()
	weather.Wait()
	for _, c := range all {
		errs = append(errs, c.store.Close(), c.way.Close())
	}
	errs = append(errs, untilFree(server.Restart)) // what was still on its way is not any more
	store, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: prefix})
	if err != nil {
		return err
	}
	last, err := h.read(t.Context(), store, uuids)
	h.end(last)
	return errors.Join(append(errs, err, store.Close())...)
}

// lateness is for how long after the death of an agent what it has sent may
// still be done.
const lateness = 300 * time.Millisecond

// TestAgentsAreKilledWhileTheyClaim kills agents at random moments of their
// starts, again and again. An instance never has two IDs, keeps the one that it
// was told, and shares it with no other.
func TestAgentsAreKilledWhileTheyClaim(t *testing.T) {
	tried := attack.Begin(t, attack.IDClaim)
	t.Parallel()
	g := NewWithT(t)
	s := effort.Seed(t)
	server := etcdtest.Start(t)
	kills := map[Fate]int{}
	for epoch := range max(2, effort.Times(t, 2)) {
		rnd := random(s, epoch)
		g.Expect(untilFree(server.Wipe)).To(Succeed())
		store := newRegistry(t, server.Endpoint())
		k := &killing{t: t, rnd: rnd, store: store, idHistory: newIDHistory(0, 1, 2, 3, 4, 5), kills: kills, takes: 20 * time.Millisecond, has: map[int]bool{}}
		for i := range k.names {
			k.members = append(k.members, newMember(t, nameOf(i), server))
		}
		k.run(0)
		k.hear(idOp{Verb: claimID}) // the first one waits for other nodes, and no later one does
		for range 10 {
			k.round()
			if rnd.IntN(3) == 0 && effort.Level(t) >= effort.Long {
				k.release(t.Context(), store.store, rnd.IntN(len(k.names)), true)
			}
		}
		pause(lateness)
		var uuids []string
		for _, m := range k.members {
			uuids = append(uuids, k.uuid(g, m))
		}
		last, err := k.read(t.Context(), store.store, uuids)
		g.Expect(err).NotTo(HaveOccurred())
		k.end(last)
		tried.Add(len(k.ops))
		if err := k.check(searchLimit); errors.Is(err, errNotChecked) {
			t.Logf("epoch %d: %v", epoch, err)
		} else {
			g.Expect(err).NotTo(HaveOccurred(), "epoch %d", epoch)
		}
		for _, m := range k.members { // and all of them work
			m.join(t)
		}
		for _, m := range k.members {
			m.kill()
		}
	}
	t.Logf("claims by agents: %v", kills)
	g.Expect(kills[Answered]).To(BeNumerically(">", 0))
	g.Expect(kills[Lost]).To(BeNumerically(">", 0))
	g.Expect(kills[undone]).To(BeNumerically(">", 0))
}

// killing is one history of agents that are killed.
type killing struct {
	*idHistory
	t       *testing.T
	rnd     *rand.Rand
	store   registry
	members []*member
	kills   map[Fate]int
	takes   time.Duration // from a start to the claim, about
	has     map[int]bool  // an ID
}

// undone is the fate of a claim that was lost before it was made.
const undone Fate = "undone"

// round starts three agents at once; some are killed, some are heard, and then
// killed.
func (k *killing) round() {
	var ops []idOp
	for _, i := range k.rnd.Perm(len(k.members))[:3] {
		ops = append(ops, k.run(i))
	}
	heard := k.rnd.IntN(3) // of the three; the others are killed before
	for _, op := range ops[heard:] {
		pause(k.takes/2 + time.Duration(k.rnd.Int64N(int64(k.takes))))
		if m := k.members[op.Instance]; k.rnd.IntN(2) == 0 { // it does not hear that its claim was made
			m.network((*etcdtest.Proxy).Mute)
			pause(k.takes / 2)
			m.kill()
			m.pass()
		} else {
			m.kill()
		}
		op.Fate, op.Back = Lost, k.now()+int64(lateness)
		held, err := k.store.holders()
		NewWithT(k.t).Expect(err).NotTo(HaveOccurred())
		what := undone
		for _, x := range held {
			if x.Name == nameOf(op.Name) { // it was not told, but every node can see it
				what, op.Fate, op.ID = Lost, Answered, x.Id
			}
		}
		k.ops = append(k.ops, op)
		switch { // the next ones die about when it matters most
		case what == undone:
			k.takes += k.takes / 8
		case !k.has[op.Instance]:
			k.takes -= k.takes / 8
		}
		k.has[op.Instance] = what == Lost
		k.kills[what]++
	}
	for _, op := range ops[:heard] {
		k.hear(op)
	}
}

func (k *killing) run(i int) idOp {
	op := idOp{Verb: claimID, Instance: i, Name: i, Call: k.now()}
	k.members[i].run(k.t)
	return op
}

// hear waits until an agent says which ID it has, and kills it.
func (k *killing) hear(op idOp) {
	m := k.members[op.Instance]
	m.awaitFollowing(k.t)
	op.Fate, op.ID, op.Back = Answered, m.mustStatus(k.t).NodeID, k.now()
	k.has[op.Instance] = true
	m.kill()
	k.kills[op.Fate]++
	k.ops = append(k.ops, op)
}

// uuid is the instance of a member, "" if it was never started.
func (k *killing) uuid(g *WithT, m *member) string {
	if m.agent == nil {
		return ""
	}
	m.cut() // or it would claim now
	m.run(k.t)
	var uuid string
	g.Eventually(func() error {
		s, err := m.status()
		uuid = s.Instance
		return err
	}, healing, 5*time.Millisecond).Should(Succeed())
	m.kill()
	m.pass()
	return uuid
}
