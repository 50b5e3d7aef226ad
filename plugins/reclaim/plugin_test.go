// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/witness"
)

// node is a plugin over a real ledger; the test says what the witnesses show.
type node struct {
	*reclaim.Plugin
	g       Gomega
	memory  *journal.Memory
	ledger  *ledger.Ledger
	wall    time.Time
	uptime  time.Duration
	boot    string
	bootErr error

	places    map[netip.Addr]string // the addresses that a namespace has, with its file
	alone     bool                  // nothing leads to these namespaces
	hidden    string
	sandboxes []witness.Sandbox
	since     time.Time               // of the runtime
	networks  []witness.EngineNetwork // of our driver
	kernelErr error

	resultsErr error
	cri        error
	during     func() // called while the witnesses are read
	degraded   string
	starting   string
	busy       bool
	releases   int
}

type kernelOf struct{ n *node }

func (k kernelOf) Read(context.Context, []string) (*witness.KernelView, error) {
	if k.n.during != nil {
		k.n.during()
	}
	v := &witness.KernelView{Taken: k.n.wall, Hidden: k.n.hidden, Namespaces: []witness.Namespace{{Host: true}}}
	for a, path := range k.n.places {
		link := witness.Link{Name: "eth0", MAC: "02:00:00:00:00:05", Addrs: []netip.Prefix{netip.PrefixFrom(a, 24)}}
		v.Namespaces = append(v.Namespaces, witness.Namespace{Counts: !k.n.alone, Paths: []string{path}, Links: []witness.Link{link}})
	}
	return v, k.n.kernelErr
}

type runtimeOf struct{ n *node }

func (r runtimeOf) Read(context.Context) (*witness.RuntimeView, error) {
	return &witness.RuntimeView{Taken: r.n.wall, Name: "containerd", Since: r.n.since, Sandboxes: r.n.sandboxes}, r.n.cri
}

type engineOf struct{ n *node }

func (e engineOf) Read(context.Context) (*witness.EngineView, error) {
	if e.n.networks == nil {
		return nil, witness.ErrNotApplicable
	}
	return &witness.EngineView{Taken: e.n.wall, Networks: e.n.networks}, nil
}

// Busy and Reclaim are the door of pods.
func (n *node) Busy(ledger.Key) bool { return n.busy }

func (n *node) Reclaim(ctx context.Context, l ledger.Lease, reason string) (bool, error) {
	n.releases++
	freed, err := n.ledger.Release(ctx, ledger.Selector{Key: l.Key, Generation: l.Generation, Reason: reason})
	return len(freed) > 0, err
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		g: NewWithT(t), memory: journal.NewMemory(), places: map[netip.Addr]string{}, boot: "b1",
		wall: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), uptime: time.Hour,
	}
	n.start()
	return n
}

// start is a new process over the same journal.
func (n *node) start() {
	var err error
	n.ledger, err = ledger.Open(context.Background(), n.memory, ledger.Options{
		Now: func() time.Time { return n.wall }, Uptime: func() time.Duration { return n.uptime }, BootID: n.boot,
		History: ledger.HistoryOptions{Reader: n.memory},
	})
	n.g.Expect(err).NotTo(HaveOccurred())
	st := n.ledger.Begin()
	n.g.Expect(st.SetPool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true})).To(Succeed())
	n.g.Expect(st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")})).To(Succeed())
	n.g.Expect(st.Commit(context.Background())).To(Succeed())
	n.Plugin = reclaim.NewPlugin(reclaim.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)},
		Config:     reclaim.Config{Enabled: true, Interval: 20 * time.Second, Grace: time.Minute, Undo: 10 * time.Minute},
		Ledger:     n.ledger,
		Readers: reclaim.Readers{
			Kernel: kernelOf{n}, Runtime: runtimeOf{n}, Engine: engineOf{n}, Results: func() ([]witness.Attachment, error) { return nil, n.resultsErr },
		},
		Doors:    map[ledger.Purpose]reclaim.Door{ledger.ForPod: n},
		Now:      func() time.Time { return n.wall },
		Uptime:   func() time.Duration { return n.uptime },
		BootID:   func() (string, error) { return n.boot, n.bootErr },
		Degraded: func() string { return n.degraded },
		Starting: func() string { return n.starting },
	})
}

func key(container string) ledger.Key {
	return ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}
}

func (n *node) add(container string) ledger.Lease {
	leases, _, err := n.ledger.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(container)})
	n.g.Expect(err).NotTo(HaveOccurred())
	return leases[0]
}

// rounds lets a time pass, with a round in each interval.
func (n *node) rounds(d time.Duration) {
	for end := n.uptime + d; n.uptime < end; {
		n.wall, n.uptime = n.wall.Add(20*time.Second), n.uptime+20*time.Second
		_, err := n.Round(context.Background())
		n.g.Expect(err).NotTo(HaveOccurred())
	}
}

// state returns the state of the lease of a container: "" if it has none.
func (n *node) state(container string) string {
	leases := n.ledger.ByKey(key(container))
	if len(leases) == 0 {
		return ""
	}
	return leases[0].State.String()
}

func TestALeaseIsReclaimed(t *testing.T) {
	n := newNode(t)
	g := n.g
	l := n.add("c1")
	used := n.add("c2")
	n.sandboxes = []witness.Sandbox{{ID: "c2"}}
	n.rounds(80 * time.Second)
	g.Expect(n.state("c1")).To(Equal("pending"))
	pending := n.Pending()
	g.Expect(pending).To(HaveLen(1))
	g.Expect(pending[0].Lease.Reason).To(ContainSubstring("runtime: containerd has no sandbox c1"))
	g.Expect(pending[0].Until).To(Equal(n.wall.Add(10 * time.Minute)))
	g.Expect(n.Counts().Pending).To(Equal(1))

	n.rounds(10*time.Minute - 20*time.Second)
	g.Expect(n.state("c1")).To(Equal("pending"))
	n.rounds(20 * time.Second)
	g.Expect(n.state("c1")).To(BeEmpty())
	g.Expect(n.releases).To(Equal(1))
	cools, ok := n.ledger.Lookup("default", l.Addr)
	g.Expect(ok).To(BeTrue())
	g.Expect(cools.State).To(Equal(ledger.Cooling))
	g.Expect(n.state("c2")).To(Equal("held"), used.Addr.String())
	g.Expect(n.Ended()[0].Outcome).To(Equal(reclaim.OutcomeReclaimed))
	g.Expect(n.Counts().Reclaimed).To(BeEquivalentTo(1))
	g.Expect(n.ledger.Check(t.Context())).To(BeEmpty())
}

// What ends a pending reclaim makes the lease held, and on the disk.
func TestAPendingReclaimEnds(t *testing.T) {
	for name, end := range map[string]func(n *node){
		"the sandbox is there":        func(n *node) { n.sandboxes = []witness.Sandbox{{ID: "c1"}}; n.rounds(20 * time.Second) },
		"the address is there":        func(n *node) { n.places[n.Pending()[0].Lease.Addr] = "/run/netns/x"; n.rounds(20 * time.Second) },
		"the kernel cannot be read":   func(n *node) { n.kernelErr = errors.New("permission denied"); n.rounds(20 * time.Second) },
		"the runtime cannot be read":  func(n *node) { n.cri = errors.New("connection refused"); n.rounds(20 * time.Second) },
		"a namespace cannot be read":  func(n *node) { n.hidden = "/run/netns/y"; n.rounds(20 * time.Second) },
		"the boot ID cannot be read":  func(n *node) { n.bootErr = errors.New("no such file"); n.rounds(20 * time.Second) },
		"the database is in doubt":    func(n *node) { n.degraded = "in doubt"; n.rounds(20 * time.Second) },
		"the clock jumped":            func(n *node) { n.wall = n.wall.Add(time.Hour); n.rounds(20 * time.Second) },
		"the runtime repeats the ADD": func(n *node) { n.add("c1") },
		"a person undoes it": func(n *node) {
			_, err := n.Undo(context.Background(), n.Pending()[0].Lease.Addr, "")
			n.g.Expect(err).NotTo(HaveOccurred())
		},
		"restart: it begins anew":                func(*node) {},
		"restart: after longer than all of that": func(n *node) { n.uptime += 24 * time.Hour; n.wall = n.wall.Add(24 * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			l := n.add("c1")
			n.rounds(80 * time.Second)
			n.g.Expect(n.state("c1")).To(Equal("pending"))
			end(n)
			if !strings.HasPrefix(name, "restart: ") {
				n.g.Expect(n.state("c1")).To(Equal("held"))
			}
			n.start() // and on the disk
			n.g.Expect(n.state("c1")).To(Equal("held"))
			n.g.Expect(n.ledger.ByKey(key("c1"))[0].Generation).To(Equal(l.Generation))
			n.g.Expect(n.ledger.ByKey(key("c1"))[0].Reason).To(BeEmpty())
			n.g.Expect(n.ledger.Check(t.Context())).To(BeEmpty())
			n.add("c9") // writes what is left
			n.g.Expect(n.ledger.Check(t.Context())).To(BeEmpty())
		})
	}
}

// A person has undone a reclaim: a restart of the agent does not forget that, and a later
// claim of the same key is reclaimed again.
func TestARestartKeepsWhatWasUndoneByHand(t *testing.T) {
	n := newNode(t)
	undone, other := n.add("c1"), n.add("c2")
	n.rounds(80 * time.Second)
	_, err := n.Undo(t.Context(), undone.Addr, "")
	n.g.Expect(err).NotTo(HaveOccurred())
	n.start()
	n.rounds(time.Hour)
	n.g.Expect(n.state("c1")).To(Equal("held"))
	n.g.Expect(n.state("c2")).To(BeEmpty(), "%s was not undone", other.Addr)

	_, err = n.ledger.Release(t.Context(), ledger.Selector{Key: undone.Key})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.add("c1")
	n.start()
	n.rounds(time.Hour)
	n.g.Expect(n.state("c1")).To(BeEmpty())
}

// Undoing an address that is not pending says so.
func TestUndoOfWhatIsNotPending(t *testing.T) {
	n := newNode(t)
	l := n.add("c1")
	_, err := n.Undo(t.Context(), l.Addr, "")
	n.g.Expect(err).To(MatchError(reclaim.ErrNotReclaiming))
	n.rounds(80 * time.Second)
	_, err = n.Undo(t.Context(), l.Addr, "another pool")
	n.g.Expect(err).To(MatchError(reclaim.ErrNotReclaiming))
	n.g.Expect(n.state("c1")).To(Equal("pending"))
}

// An agent that is switched to showing only changes nothing.
func TestDisabled(t *testing.T) {
	n := newNode(t)
	n.Config.Enabled = false
	n.add("c1")
	n.places[netip.MustParseAddr("10.1.5.77")] = "/run/netns/x"
	n.rounds(10 * time.Minute)
	n.g.Expect(n.state("c1")).To(Equal("held"))
	_, ok := n.ledger.Lookup("default", netip.MustParseAddr("10.1.5.77"))
	n.g.Expect(ok).To(BeFalse())
	n.g.Expect(n.World().Kernel.Namespaces).To(HaveLen(2), "it reads them")
}

// Trying a round out changes nothing, however often.
func TestPreview(t *testing.T) {
	n := newNode(t)
	n.add("c1")
	n.rounds(time.Minute)
	commits := n.memory.Commits()
	for range 5 {
		n.uptime, n.wall = n.uptime+20*time.Second, n.wall.Add(20*time.Second)
		steps, world, err := n.Preview(t.Context())
		n.g.Expect(err).NotTo(HaveOccurred())
		n.g.Expect(world.Kernel).NotTo(BeNil())
		n.g.Expect(steps).To(HaveLen(1))
		n.g.Expect(steps[0].Action).To(Equal(reclaim.Begin))
	}
	n.g.Expect(n.state("c1")).To(Equal("held"))
	n.g.Expect(n.memory.Commits()).To(Equal(commits))
}

func TestAnAddressWithoutALeaseIsQuarantined(t *testing.T) {
	n := newNode(t)
	g := n.g
	a := netip.MustParseAddr("10.1.5.77")
	n.places[a] = "/run/netns/x"
	n.rounds(20 * time.Second)
	_, ok := n.ledger.Lookup("default", a)
	g.Expect(ok).To(BeFalse(), "one observation is not enough")
	_, err := n.Round(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	_, ok = n.ledger.Lookup("default", a)
	g.Expect(ok).To(BeFalse(), "a second one at the same time is none")
	n.rounds(20 * time.Second)
	l, ok := n.ledger.Lookup("default", a)
	g.Expect(ok).To(BeTrue())
	g.Expect(l.State).To(Equal(ledger.Quarantined))
	g.Expect(l.Reason).To(ContainSubstring("kernel: link eth0 of network namespace /run/netns/x has 10.1.5.77 (link eth0 is a device of the machine)"))
	g.Expect(n.Counts().Quarantined).To(BeEquivalentTo(1))
	_, _, err = n.ledger.Claim(t.Context(), ledger.Request{Pool: "default", Key: key("c1"), Wanted: []netip.Addr{a}})
	g.Expect(err).To(MatchError(ledger.ErrTaken))

	n.start()
	n.rounds(10 * time.Minute)
	g.Expect(n.ledger.ByKey(l.Key)).To(HaveLen(1), "it is in use still, after a restart too")

	delete(n.places, a)
	n.hidden = "/run/netns/y"
	n.rounds(time.Minute)
	g.Expect(n.ledger.ByKey(l.Key)).To(HaveLen(1), "not all namespaces are seen")
	n.hidden = ""
	n.rounds(20 * time.Second)
	g.Expect(n.ledger.ByKey(l.Key)).To(HaveLen(1), "one observation is not enough")
	n.rounds(20 * time.Second)
	g.Expect(n.ledger.ByKey(l.Key)).To(BeEmpty())
	g.Expect(n.ledger.Check(t.Context())).To(BeEmpty())
}

// All quarantines of a round begin in one commit, and end in one. There is no bound: each
// of these addresses answers.
func TestQuarantinesOfARoundShareACommit(t *testing.T) {
	n := newNode(t)
	g := n.g
	for a := netip.MustParseAddr("10.1.5.1"); a.String() != "10.1.5.255"; a = a.Next() {
		n.places[a] = "/run/netns/" + a.String()
	}
	n.rounds(20 * time.Second)
	commits := n.memory.Commits()
	n.rounds(20 * time.Second)
	g.Expect(n.Counts().Quarantined).To(BeEquivalentTo(254))
	g.Expect(n.memory.Commits()).To(Equal(commits + 1))
	_, _, err := n.ledger.Claim(t.Context(), ledger.Request{Pool: "default", Key: key("c1")})
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	n.rounds(5 * time.Minute)
	g.Expect(n.memory.Commits()).To(Equal(commits + 1))

	clear(n.places)
	n.rounds(40 * time.Second)
	g.Expect(n.memory.Commits()).To(Equal(commits + 2))
	g.Expect(n.ledger.Leases()).To(HaveEach(HaveField("State", ledger.Cooling)))
	g.Expect(n.ledger.Check(t.Context())).To(BeEmpty())
}

// An address of a namespace that nothing leads to is not quarantined. A quarantine that an
// earlier version has begun for it ends.
func TestAnAddressThatDoesNotAnswer(t *testing.T) {
	n := newNode(t)
	g := n.g
	n.places[netip.MustParseAddr("10.1.5.77")], n.places[netip.MustParseAddr("10.1.5.78")] = "/proc/7/ns/net", "/proc/7/ns/net"
	earlier := ledger.Key{Network: ledger.WitnessNetwork, ContainerID: "kernel", IfName: "10.1.5.77"}
	_, err := n.ledger.Quarantine(t.Context(), "default", netip.MustParseAddr("10.1.5.77"), earlier, "kernel: link lo has it")
	g.Expect(err).NotTo(HaveOccurred())
	n.alone = true
	n.start()
	n.rounds(20 * time.Second)
	g.Expect(n.ledger.ByKey(earlier)).To(HaveLen(1), "one observation is not enough")
	n.rounds(20 * time.Second)
	g.Expect(n.ledger.ByKey(earlier)).To(BeEmpty())
	n.rounds(5 * time.Minute)
	g.Expect(n.Counts().Quarantined).To(BeZero())
}

// A quarantine that another part of the agent has begun, such as a resync, ends by hand.
func TestAQuarantineOfAnotherKey(t *testing.T) {
	n := newNode(t)
	a := netip.MustParseAddr("10.1.5.77")
	_, err := n.ledger.Quarantine(t.Context(), "default", a, key("imported"), "an import has it")
	n.g.Expect(err).NotTo(HaveOccurred())
	n.rounds(5 * time.Minute)
	l, _ := n.ledger.Lookup("default", a)
	n.g.Expect(l.State).To(Equal(ledger.Quarantined))
}

// While a witness is away that may name the namespace, its quarantine does not end.
func TestAQuarantineNeedsAllWitnessesToEnd(t *testing.T) {
	n := newNode(t)
	g := n.g
	a := netip.MustParseAddr("10.1.5.77")
	n.places[a] = "/run/netns/x"
	n.rounds(time.Minute)
	state := func() ledger.State {
		l, _ := n.ledger.Lookup("default", a)
		return l.State
	}
	g.Expect(state()).To(Equal(ledger.Quarantined))
	n.alone, n.cri = true, errors.New("connection refused")
	n.rounds(5 * time.Minute)
	g.Expect(state()).To(Equal(ledger.Quarantined))
	n.cri, n.resultsErr = nil, errors.New("permission denied")
	n.rounds(5 * time.Minute)
	g.Expect(state()).To(Equal(ledger.Quarantined))
	n.resultsErr = nil
	n.rounds(time.Minute)
	g.Expect(state()).To(Equal(ledger.Cooling))
}

// What puts the end of a lease in doubt puts that of a quarantine in doubt: two more rounds
// are needed. It does not keep a quarantine from beginning.
func TestADoubtKeepsQuarantines(t *testing.T) {
	for name, c := range map[string]struct{ begin, end func(n *node) }{
		"the database is in doubt": {func(n *node) { n.degraded = "in doubt" }, func(n *node) { n.degraded = "" }},
		"the clock jumps":          {func(n *node) { n.wall = n.wall.Add(time.Hour) }, func(*node) {}},
		"the runtime restarts":     {func(n *node) { n.since = n.wall }, func(*node) {}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			a, other := netip.MustParseAddr("10.1.5.77"), netip.MustParseAddr("10.1.5.78")
			state := func(a netip.Addr) ledger.State {
				l, _ := n.ledger.Lookup("default", a)
				return l.State
			}
			n.places[a] = "/run/netns/x"
			n.rounds(time.Minute)
			n.places = map[netip.Addr]string{other: "/run/netns/y"}
			n.rounds(20 * time.Second)
			c.begin(n)
			n.rounds(20 * time.Second)
			n.g.Expect(state(a)).To(Equal(ledger.Quarantined), "this round is in doubt")
			n.g.Expect(state(other)).To(Equal(ledger.Quarantined))
			c.end(n)
			n.rounds(20 * time.Second)
			n.g.Expect(state(a)).To(Equal(ledger.Quarantined), "it began anew")
			n.rounds(20 * time.Second)
			n.g.Expect(state(a)).To(Equal(ledger.Cooling))
		})
	}
}

// Addresses that are not allocated anyway, and those with a lease, are left alone.
func TestAddressesThatAreNotQuarantined(t *testing.T) {
	n := newNode(t)
	g := n.g
	n.g.Expect(n.ledger.Exclude(t.Context(), ledger.Exclusion{Pool: "default", Addr: netip.MustParseAddr("10.1.5.9"), Owner: "x", Reason: "y"})).To(Succeed())
	for _, a := range []string{"10.1.5.0", "10.1.5.255", "10.1.5.9", "10.2.0.1", "fe80::1"} {
		n.places[netip.MustParseAddr(a)] = "/run/netns/" + a
	}
	l := n.add("c1")
	n.places[l.Addr] = "/run/netns/c1"
	n.rounds(2 * time.Minute)
	g.Expect(n.state("c1")).To(Equal("held"))

	// The runtime releases the lease, then removes the link.
	_, err := n.ledger.Release(t.Context(), ledger.Selector{Key: l.Key})
	g.Expect(err).NotTo(HaveOccurred())
	n.rounds(20 * time.Second)
	cools, _ := n.ledger.Lookup("default", l.Addr)
	g.Expect(cools.State).To(Equal(ledger.Cooling))
	delete(n.places, l.Addr)
	n.rounds(5 * time.Minute)

	// The lease is claimed while the witnesses are read.
	n.during = func() {
		if l := n.add("c2"); n.places[l.Addr] == "" {
			n.places[l.Addr] = "/run/netns/c2"
		}
	}
	n.rounds(2 * time.Minute)
	n.during = nil
	// The agent is about to claim what pods have.
	n.starting = "no resync yet"
	n.places[netip.MustParseAddr("10.1.5.99")] = "/run/netns/z"
	n.rounds(2 * time.Minute)
	g.Expect(n.Counts().Quarantined).To(BeZero())
	n.starting = ""
	n.rounds(20 * time.Second)
	g.Expect(n.Counts().Quarantined).To(BeZero(), "what was seen before does not count")
}

// On a node without a CRI socket a GC is the observation of the runtime.
func TestUnlisted(t *testing.T) {
	n := newNode(t)
	g := n.g
	n.cri = witness.ErrNotApplicable
	l, again := n.add("c1"), n.add("c2")
	n.rounds(2 * time.Minute)
	waits, err := n.Unlisted(t.Context(), "pods", []ledger.Lease{l, again})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(waits).To(ConsistOf(
		ContainSubstring(l.Addr.String()+": it waits: a second observation"),
		ContainSubstring(again.Addr.String()+": it waits: a second observation")))
	n.Claimed(again.Key)
	n.rounds(20 * time.Second)
	g.Expect(n.state("c1")).To(Equal("pending"))
	g.Expect(n.state("c2")).To(Equal("held"), "it was added again")
	g.Expect(n.Pending()[0].Lease.Reason).To(ContainSubstring("the last CNI GC of network pods did not list c1"))

	waits, err = n.Unlisted(t.Context(), "pods", nil) // the next GC lists all
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(waits).To(BeEmpty())
	n.rounds(20 * time.Second)
	g.Expect(n.state("c1")).To(Equal("held"))
}

// A GC of another network says nothing about this one, and a later claim of a key is not
// the one that the GC did not list.
// Another runtime on the node may have sent the GC, which lists its own containers only.
func TestAGCDoesNotSpeakForARuntimeThatIsMissing(t *testing.T) {
	n := newNode(t)
	l := n.add("c1")
	n.sandboxes = []witness.Sandbox{{ID: "c1"}}
	_, err := n.Unlisted(t.Context(), "pods", []ledger.Lease{l})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.cri = errors.New("connection refused")
	n.rounds(5 * time.Minute)
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

func TestUnlistedOfAnotherClaim(t *testing.T) {
	n := newNode(t)
	n.cri = witness.ErrNotApplicable
	l := n.add("c1")
	_, err := n.Unlisted(t.Context(), "pods", []ledger.Lease{l})
	n.g.Expect(err).NotTo(HaveOccurred())
	_, err = n.Unlisted(t.Context(), "other", nil)
	n.g.Expect(err).NotTo(HaveOccurred())
	_, err = n.ledger.Release(t.Context(), ledger.Selector{Key: l.Key})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.add("c1")
	n.rounds(10 * time.Minute)
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

// Leases without a door are not reclaimed.
func TestWithoutADoor(t *testing.T) {
	n := newNode(t)
	n.Doors = nil
	n.add("c1")
	n.rounds(10 * time.Minute)
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

// The ledger does not end a reclaim during a slow round, which finds a witness missing.
func TestNothingIsReclaimedDuringASlowRound(t *testing.T) {
	n := newNode(t)
	n.add("c1")
	n.rounds(80 * time.Second)
	n.rounds(9 * time.Minute)
	n.g.Expect(n.state("c1")).To(Equal("pending"))
	n.during = func() { n.wall, n.uptime = n.wall.Add(time.Hour), n.uptime+time.Hour }
	n.cri = errors.New("it does not answer")
	_, err := n.Round(t.Context())
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.state("c1")).To(Equal("held"))
}

// The link of a pod whose removal hangs outlives its lease, and the cool-down.
func TestAnAddressThatIsStillInUseDoesNotEndItsCoolDown(t *testing.T) {
	n := newNode(t)
	g := n.g
	l := n.add("c1")
	n.places[l.Addr] = "/var/run/netns/c1"
	_, err := n.ledger.Release(t.Context(), ledger.Selector{Key: l.Key})
	g.Expect(err).NotTo(HaveOccurred())
	state := func() ledger.State {
		now, _ := n.ledger.Lookup("default", l.Addr)
		return now.State
	}
	n.rounds(20 * time.Second)
	g.Expect(state()).To(Equal(ledger.Cooling), "the runtime removes the link after it has released the address")
	n.rounds(20 * time.Second)
	g.Expect(state()).To(Equal(ledger.Quarantined))
	n.rounds(5 * time.Minute)
	_, _, err = n.ledger.Claim(t.Context(), ledger.Request{Pool: "default", Key: key("c2"), Wanted: []netip.Addr{l.Addr}})
	g.Expect(err).To(MatchError(ledger.ErrTaken))
	delete(n.places, l.Addr)
	n.rounds(time.Minute)
	g.Expect(state()).To(Equal(ledger.Cooling))
}

// Run reads at once and in each interval, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		synctest.Wait()
		n.g.Expect(n.Counts().Rounds).To(BeEquivalentTo(1))
		time.Sleep(time.Minute)
		synctest.Wait()
		n.g.Expect(n.Counts().Rounds).To(BeEquivalentTo(4))
		cancel()
		n.g.Expect(<-ended).To(Succeed())
	})
}

func TestReports(t *testing.T) {
	n := newNode(t)
	g := n.g
	g.Expect(n.Reports()).To(HaveLen(4))
	g.Expect(n.Reports()[0].Reason).To(Equal("it has not been read yet"))
	n.rounds(20 * time.Second)
	read := n.wall
	n.cri = errors.New("connection refused")
	n.rounds(20 * time.Second)
	all := n.Reports()
	var names []witness.Name
	for _, r := range all {
		names = append(names, r.Name)
	}
	g.Expect(names).To(Equal(witness.Names()))
	g.Expect(all[0].State).To(Equal(witness.Present))
	g.Expect(all[0].Objects).To(Equal(1))
	g.Expect(all[1].State).To(Equal(witness.Missing))
	g.Expect(all[1].Reason).To(Equal("connection refused"))
	g.Expect(all[1].Read).To(Equal(read), "the last time that it was read")
	g.Expect(all[2].State).To(Equal(witness.NotApplicable))
}

// observer notes what it was shown.
type observer struct {
	worlds []*witness.World
	err    error
}

func (o *observer) ObserveWorld(_ context.Context, w *witness.World, _ time.Duration) error {
	o.worlds = append(o.worlds, w)
	return o.err
}

// Observers take part in each round; while the ledger is degraded they are shown nothing.
func TestObservers(t *testing.T) {
	n := newNode(t)
	first, second := &observer{err: errors.New("disk full")}, &observer{}
	n.Observers = []reclaim.Observer{first, second}
	w, err := n.Round(t.Context())
	n.g.Expect(err).To(MatchError(first.err))
	n.g.Expect(second.worlds).To(Equal([]*witness.World{w}))
	n.degraded = "in doubt"
	w, err = n.Round(t.Context())
	n.g.Expect(err).To(MatchError(first.err))
	n.g.Expect(w.Kernel).NotTo(BeNil())
	n.g.Expect(*second.worlds[1]).To(Equal(witness.World{Taken: w.Taken}))
	n.Config.Enabled = false
	_, err = n.Round(t.Context())
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(second.worlds).To(HaveLen(2))
}

// A source that changes makes a round begin before the interval has passed; changes
// that follow at once share it.
func TestWake(t *testing.T) {
	n := newNode(t)
	rounds, waits := make(chan struct{}), make(chan time.Duration)
	elapsed := make(chan time.Time)
	n.during = func() { rounds <- struct{}{} }
	n.After = func(d time.Duration) <-chan time.Time {
		waits <- d
		return elapsed
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	<-rounds
	n.g.Expect(<-waits).To(Equal(20 * time.Second))
	for range 5 {
		n.Wake()
	}
	n.g.Expect(<-waits).To(Equal(5 * time.Second))
	elapsed <- time.Time{}
	<-rounds
	n.g.Expect(<-waits).To(Equal(20 * time.Second))
	cancel()
	n.g.Expect(<-ended).To(Succeed())
}

// An address that no link has is in use as well if the runtime or the engine has given it
// away. So it is with a data plane in user space. Check, repair and accept quarantine it by
// the same rule: no round may end that.
func TestAUseThatTheKernelDoesNotShow(t *testing.T) {
	a := netip.MustParseAddr("10.1.5.77")
	pod := witness.Sandbox{ID: "c9", Namespace: "shop", Name: "web", Ready: true, NetNS: "/run/netns/c9", Addrs: []netip.Addr{a}}
	network := witness.EngineNetwork{ID: "n", Name: "blue", Endpoints: []witness.EngineEndpoint{{Name: "db", Addrs: []netip.Addr{a}}}}
	for name, c := range map[string]struct {
		begin, end func(n *node)
		reason     string
	}{
		"a sandbox": {
			func(n *node) { n.sandboxes = []witness.Sandbox{pod} },
			func(n *node) { n.sandboxes[0].Ready = false },
			"runtime: sandbox c9 of pod shop/web has 10.1.5.77",
		},
		"a container of the engine": {
			func(n *node) { n.networks = []witness.EngineNetwork{network} },
			func(n *node) { n.networks = nil },
			"engine: network blue uses 10.1.5.77: container db",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			state := func() ledger.State {
				l, _ := n.ledger.Lookup("default", a)
				return l.State
			}
			c.begin(n)
			n.rounds(20 * time.Second)
			n.g.Expect(n.Counts().Quarantined).To(BeZero(), "one observation is not enough")
			n.rounds(5 * time.Minute)
			n.g.Expect(state()).To(Equal(ledger.Quarantined))
			l, _ := n.ledger.Lookup("default", a)
			n.g.Expect(l.Reason).To(ContainSubstring(c.reason))
			c.end(n)
			n.rounds(20 * time.Second)
			n.g.Expect(state()).To(Equal(ledger.Quarantined), "one observation is not enough")
			n.rounds(20 * time.Second)
			n.g.Expect(state()).To(Equal(ledger.Cooling))
		})
		t.Run("by hand: "+name, func(t *testing.T) {
			n := newNode(t)
			c.begin(n)
			_, err := n.ledger.Quarantine(t.Context(), "default", a, ledger.KeyOfWitness("kernel", a), "by hand")
			n.g.Expect(err).NotTo(HaveOccurred())
			n.rounds(5 * time.Minute)
			l, _ := n.ledger.Lookup("default", a)
			n.g.Expect(l.State).To(Equal(ledger.Quarantined))
		})
	}
}
