// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func TestAdd(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, dual)
	reply, err := a.serve(request("ADD", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reply).To(Equal(cni.Reply{
		IPs:    []cni.IP{{Address: "10.1.5.2/24", Gateway: "10.1.5.1"}, {Address: "fd00:1:0:5::2/64", Gateway: "fd00:1:0:5::1"}},
		Routes: []cni.Route{{Dst: "0.0.0.0/0", GW: "10.1.5.1"}, {Dst: "::/0", GW: "fd00:1:0:5::1"}},
	}))
	leases := a.leases.ByKey(key("c1"))
	g.Expect(leases).To(HaveLen(2))
	g.Expect(leases[0].Pod).To(Equal(ledger.Pod{Namespace: "ns", Name: "pod-c1"}))
	commits := a.memory.Commits()
	again, err := a.serve(request("ADD", "c1"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(Equal(reply), "same key, same answer")
	g.Expect(a.memory.Commits()).To(Equal(commits))
	g.Expect(a.served).To(HaveLen(2))
}

// The whole of an attachment is its key: another interface, another network
// or another container is another attachment.
func TestAttachmentsThatDiffer(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	given := map[string]bool{}
	for _, change := range []func(*cni.Request){
		func(*cni.Request) {}, func(r *cni.Request) { r.IfName = "net1" }, func(r *cni.Request) { r.Network = "other" },
		func(r *cni.Request) { r.ContainerID = "c2" },
	} {
		r := request("ADD", "c1")
		change(&r)
		reply, err := a.serve(r)
		g.Expect(err).NotTo(HaveOccurred())
		given[reply.IPs[0].Address] = true
	}
	g.Expect(given).To(HaveLen(4))
	a.del("c1")
	g.Expect(a.leases.ByKey(ledger.Key{Network: "pods", ContainerID: "c1", IfName: "net1"})).To(HaveLen(1))
	g.Expect(a.leases.ByKey(ledger.Key{Network: "other", ContainerID: "c1", IfName: "eth0"})).To(HaveLen(1))
	g.Expect(a.leases.ByKey(key("c1"))).To(BeEmpty())
}

func TestRequestedRoutes(t *testing.T) {
	for name, c := range map[string]struct{ asked, want []cni.Route }{
		"one":  {[]cni.Route{{Dst: "10.0.0.0/8", GW: "10.1.5.1"}}, []cni.Route{{Dst: "10.0.0.0/8", GW: "10.1.5.1"}}},
		"none": {[]cni.Route{}, []cni.Route{}},
	} {
		g := NewWithT(t)
		a := newAgent(t, plain)
		r := request("ADD", "c1")
		r.Routes = c.asked
		reply, err := a.serve(r)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reply.Routes).To(Equal(c.want), name)
		g.Expect(reply.IPs[0].Gateway).To(Equal("10.1.5.1"))
	}
}

// Each refusal has its code, and takes nothing.
func TestAddIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(a *agent, r *cni.Request)
		code   uint
		saying string
	}{
		{"an address outside all blocks", func(_ *agent, r *cni.Request) { r.Wanted = []string{"192.0.2.1"} }, cni.CodeRefused, "192.0.2.1"},
		{"the gateway", func(_ *agent, r *cni.Request) { r.Wanted = []string{"10.1.5.1"} }, cni.CodeRefused, "10.1.5.1"},
		{"another's address", func(_ *agent, r *cni.Request) { r.Wanted = []string{"10.1.5.2"} }, cni.CodeRefused, "ns/pod-c0"},
		{"another than the one it has", func(_ *agent, r *cni.Request) { r.ContainerID, r.Wanted = "c0", []string{"10.1.5.9"} }, cni.CodeRefused, "10.1.5.2"},
		{"no address at all", func(_ *agent, r *cni.Request) { r.Wanted = []string{"pod-1"} }, cni.CodeInvalidConfig, `"pod-1"`},
		{"an address with a zone", func(_ *agent, r *cni.Request) { r.Wanted = []string{"fe80::1%eth0"} }, cni.CodeInvalidConfig, "fe80::1%eth0"},
		{"a pool that is not there", func(_ *agent, r *cni.Request) { r.Pool = "blue" }, cni.CodeInvalidConfig, `"blue"`},
		{"a pool that is not for pods", func(_ *agent, r *cni.Request) { r.Pool = ipam.HostPool }, cni.CodeInvalidConfig, ipam.HostPool},
		{"no network", func(_ *agent, r *cni.Request) { r.Network = "" }, cni.CodeInvalidConfig, "network"},
		{"no container", func(_ *agent, r *cni.Request) { r.ContainerID = "" }, cni.CodeInvalidConfig, "containerID"},
		{"no interface", func(_ *agent, r *cni.Request) { r.IfName = "" }, cni.CodeInvalidConfig, "ifName"},
		{"an unknown command", func(_ *agent, r *cni.Request) { r.Command = "MOVE" }, cni.CodeInvalidConfig, `"MOVE"`},
		{"allocation is suspended", func(a *agent, _ *cni.Request) { a.leases.Suspend("store", "the store is older") }, cni.CodeTryAgain, "the store is older"},
		{"the disk is full", func(a *agent, _ *cni.Request) {
			a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
		}, cni.CodeTryAgain, "injected"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, plain)
			a.add("c0")
			r := request("ADD", "c1")
			c.change(a, &r)
			reply, err := a.serve(r)
			g.Expect(code(g, err)).To(Equal(c.code), "%v", err)
			g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
			g.Expect(err.Error()).NotTo(ContainSubstring("\n"))
			g.Expect(reply).To(Equal(cni.Reply{}))
			g.Expect(a.held()).To(Equal([]string{"c0"}))
			g.Expect(a.served[len(a.served)-1].Code).To(Equal(c.code))
			g.Expect(a.served[len(a.served)-1].Command).To(Equal(r.Command))
		})
	}
}

func TestAddInAFullPool(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, small)
	for i := range 4 {
		a.add(fmt.Sprint("c", i))
	}
	_, err := a.serve(request("ADD", "c4"))
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeFull))
	g.Expect(err).To(MatchError(And(ContainSubstring("of 8 addresses 4 are held, 2 infra"), ContainSubstring("2 reserved"))))
	a.del("c1")
	g.Expect(a.add("c4")).To(HavePrefix("10.1."))
}

func TestWantedAddresses(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted []string
		want   []string
	}{
		{"one", []string{"10.1.5.77"}, []string{"10.1.5.77/24"}},
		{"one of each family", []string{"10.1.5.77", "fd00:1:0:5::77"}, []string{"10.1.5.77/24", "fd00:1:0:5::77/64"}},
		{"twice the same", []string{"10.1.5.77", "10.1.5.77", "::ffff:10.1.5.77"}, []string{"10.1.5.77/24"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, dual)
			r := request("ADD", "c1")
			r.Wanted = c.wanted
			for range 2 {
				reply, err := a.serve(r)
				g.Expect(err).NotTo(HaveOccurred())
				var got []string
				for _, ip := range reply.IPs {
					got = append(got, ip.Address)
				}
				g.Expect(got).To(Equal(c.want))
			}
		})
	}
}

// All the addresses that are wanted, or none of them.
func TestOneOfTheWantedAddressesIsTaken(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c0")
	r := request("ADD", "c1")
	r.Wanted = []string{"10.1.5.77", "10.1.5.2"}
	_, err := a.serve(r)
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeRefused))
	r.Wanted, r.ContainerID = []string{"10.1.5.77"}, "c2"
	_, err = a.serve(r)
	g.Expect(err).NotTo(HaveOccurred())
}

func TestDel(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	a.add("c2")
	commits := a.memory.Commits()
	a.del("unknown")
	g.Expect(a.memory.Commits()).To(Equal(commits), "there is nothing to write")
	a.del("c1")
	a.del("c1")
	g.Expect(a.held()).To(Equal([]string{"c2"}))
	g.Expect(a.add("c1")).To(Equal("10.1.5.4/24"), "a new attachment, and the old address rests")
}

// A DEL that could not be written down has freed nothing, and is repeated.
func TestDelOnAFullDisk(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
	_, err := a.serve(request("DEL", "c1"))
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
	g.Expect(a.held()).To(Equal([]string{"c1"}))
	a.del("c1")
	g.Expect(a.held()).To(BeEmpty())
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name      string
		container string
		previous  []string
		code      uint
	}{
		{"as it was given", "c1", []string{"10.1.5.2/24", "fd00:1:0:5::2/64"}, 0},
		{"in another order", "c1", []string{"fd00:1:0:5::2/64", "10.1.5.2/24"}, 0},
		{"without prevResult", "c1", nil, 0},
		{"another address", "c1", []string{"10.1.5.3/24", "fd00:1:0:5::2/64"}, cni.CodeDiffers},
		{"one too few", "c1", []string{"10.1.5.2/24"}, cni.CodeDiffers},
		{"one too many", "c1", []string{"10.1.5.2/24", "fd00:1:0:5::2/64", "10.1.5.3/24"}, cni.CodeDiffers},
		{"no address", "c1", []string{"10.1.5.2"}, cni.CodeDecode},
		{"an unknown container", "c2", nil, cni.CodeUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, dual)
			a.add("c1")
			commits := a.memory.Commits()
			r := request("CHECK", c.container)
			r.Previous = c.previous
			_, err := a.serve(r)
			g.Expect(code(g, err)).To(Equal(c.code), "%v", err)
			g.Expect(a.memory.Commits()).To(Equal(commits), "it only reads")
		})
	}
}

func TestGC(t *testing.T) {
	listed := func(containers ...string) []cni.Attachment {
		all := []cni.Attachment{}
		for _, c := range containers {
			all = append(all, cni.Attachment{ContainerID: c, IfName: "eth0"})
		}
		return all
	}
	for _, c := range []struct {
		name  string
		list  []cni.Attachment
		held  []string
		freed int
	}{
		{"some are listed", listed("c1", "c3", "never seen"), []string{"c1", "c3", "other", "pod:ns/api"}, 1},
		{"all are", listed("c1", "c2", "c3"), []string{"c1", "c2", "c3", "other", "pod:ns/api"}, 0},
		{"none is", listed(), []string{"other", "pod:ns/api"}, 3},
		{"there is no list", nil, []string{"c1", "c2", "c3", "other", "pod:ns/api"}, 0},
		{"another interface is listed", []cni.Attachment{{ContainerID: "c1", IfName: "net1"}}, []string{"other", "pod:ns/api"}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, dual)
			for _, x := range []string{"c1", "c2", "c3"} {
				a.add(x)
			}
			other := request("ADD", "other")
			other.Network = "other"
			_, err := a.serve(other)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = a.ipam.AllocatePodIP(pod("api"), "", "")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = a.serve(cni.Request{Command: "GC", Network: "pods", Attachments: c.list})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(a.freed).To(Equal(c.freed))
			g.Expect(a.held()).To(Equal(c.held))
			infra := 0
			for _, l := range a.leases.Leases() {
				if l.Purpose == ledger.ForInfra {
					infra++
				}
			}
			g.Expect(infra).To(Equal(8))
		})
	}
}

// Leases of the Go API are not attachments, for any name of a network.
func TestGCOfANetworkThatIsCalledAsTheGoAPIs(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	_, err := a.ipam.AllocatePodIP(pod("api"), "", "")
	g.Expect(err).NotTo(HaveOccurred())
	r := request("ADD", "c1")
	r.Network = ledger.APINetwork
	_, err = a.serve(r)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = a.serve(cni.Request{Command: "GC", Network: ledger.APINetwork, Attachments: []cni.Attachment{}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.freed).To(Equal(1))
	g.Expect(a.held()).To(Equal([]string{"pod:ns/api"}))
}

// A lease that cannot be freed does not stop the remaining ones.
func TestGCGoesOn(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	for _, x := range []string{"c1", "c2", "c3"} {
		a.add(x)
	}
	a.journal.Plan = journal.At(a.journal.Commits()+4, journal.Fail) // each takes one to begin, one to release
	_, err := a.serve(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
	g.Expect(err).To(MatchError(ContainSubstring("pods/c2/eth0")))
	g.Expect(a.held()).To(Equal([]string{"c2"}))
}

// An attachment whose ADD is in progress is not garbage, nor one that was added again meanwhile.
func TestGCAndAddAtTheSameTime(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		first := a.begin(request("ADD", "c1"))
		a.drain()
		again := a.begin(request("ADD", "c1")) // waits for the loop
		gc := a.begin(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
		g.Expect(gc.done).To(BeTrue(), "there is nothing for it to do")
		g.Expect(gc.err).NotTo(HaveOccurred())
		a.drain()
		g.Expect(again.reply.IPs).To(Equal(first.reply.IPs))
		g.Expect(a.held()).To(Equal([]string{"c1"}))

		gc = a.begin(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
		del := a.begin(request("DEL", "c1"))
		add := a.begin(request("ADD", "c1"))
		a.loop.step(1) // the DEL, before what the GC has found
		synctest.Wait()
		a.loop.step(1) // the ADD
		synctest.Wait()
		a.drain()
		g.Expect([]error{gc.err, del.err, add.err}).To(HaveEach(BeNil()))
		g.Expect(a.held()).To(Equal([]string{"c1"}), "it is another claim than the one that was found")
	})
}

// hasty is a ledger in which something happens as soon as its leases were read.
type hasty struct {
	podmanager.Ledger
	read func()
}

func (b hasty) Leases() []ledger.Lease {
	leases := b.Ledger.Leases()
	b.read()
	return leases
}

// The attachment that GC has found was deleted and added again before GC could free it.
func TestGCKnowsTheClaimThatItHasFound(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.add("c1")
	a.Ledger = hasty{a.leases, func() { a.del("c1"); a.add("c1") }}
	_, err := a.serve(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.freed).To(BeZero())
	g.Expect(a.held()).To(Equal([]string{"c1"}))
}

func TestStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		conf   string
		spoil  func(a *agent)
		code   uint
		saying string
	}{
		{"all is well", plain, func(*agent) {}, 0, ""},
		{"the agent is not ready", plain, func(a *agent) { a.ready = errors.New("no resync yet") }, cni.CodeNotAvailable, "no resync yet"},
		{"allocation is suspended", plain, func(a *agent) { a.leases.Suspend("store", "the store is older") }, cni.CodeNotAvailable, "the store is older"},
		{"one address is left", small, func(a *agent) { a.add("c1"); a.add("c2"); a.add("c3") }, 0, ""},
		{"the pool is full", small, func(a *agent) { a.add("c1"); a.add("c2"); a.add("c3"); a.add("c4") }, cni.CodeNotAvailable, "ipv4"},
		{"one that cools down is left", small, func(a *agent) { a.add("c1"); a.add("c2"); a.add("c3"); a.add("c4"); a.del("c2") }, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			a := newAgent(t, c.conf)
			c.spoil(a)
			commits := a.memory.Commits()
			for range 3 {
				_, err := a.serve(cni.Request{Command: "STATUS", Network: "pods"})
				g.Expect(code(g, err)).To(Equal(c.code), "%v", err)
				if c.code != 0 {
					g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
				}
			}
			g.Expect(a.memory.Commits()).To(Equal(commits), "it costs no write")
			_, err := a.serve(request("ADD", "next"))
			if c.code == 0 {
				g.Expect(err).NotTo(HaveOccurred(), "STATUS reported that ADD can be served")
			}
		})
	}
}

func TestStatusOfAPoolWithoutABlock(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, "ipamConfig: {useExternalIPAM: true}")
	_, err := a.serve(cni.Request{Command: "STATUS", Network: "pods"})
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeNotAvailable))
	_, err = a.serve(cni.Request{Command: "STATUS", Network: "pods", Pool: "blue"})
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeNotAvailable))
	g.Expect(err).To(MatchError(ContainSubstring(`"blue"`)))
	_, err = a.serve(request("ADD", "c1"))
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
}

// While the agent stops it is as if it were away: the caller must not take
// that for an answer.
func TestTheAgentIsStopping(t *testing.T) {
	for _, closed := range []error{controller.ErrClosedController, controller.ErrEventLoopIsAborting} {
		for _, command := range []string{"ADD", "DEL"} {
			g := NewWithT(t)
			a := newAgent(t, plain)
			a.add("c1")
			a.loop.closed = closed
			_, err := a.serve(request(command, "c1"))
			g.Expect(err).To(MatchError(podmanager.ErrAway))
			var cerr *cni.Error
			g.Expect(errors.As(err, &cerr)).To(BeFalse())
		}
		g := NewWithT(t)
		a := newAgent(t, plain)
		a.add("c1")
		a.loop.closed = closed
		_, err := a.serve(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
		g.Expect(err).To(MatchError(podmanager.ErrAway))
	}
}

// A request ends within its time, for any reason of waiting, with code "try again".
func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		name, command string
		full          bool
	}{
		{"ADD that the loop does not come to", "ADD", false}, {"DEL that the loop does not come to", "DEL", false},
		{"ADD without room in the queue", "ADD", true}, {"DEL without room in the queue", "DEL", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			slowly(t, func(g Gomega, a *agent) {
				a.loop.full = c.full
				began := time.Now()
				_, err := a.serve(request(c.command, "c1"))
				g.Expect(time.Since(began)).To(Equal(time.Minute))
				g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
				a.loop.full = false
				time.Sleep(time.Second)
				a.drain()
				g.Expect(a.held()).To(BeEmpty(), "what is too late is not done any more")
			})
		})
	}
}

// The caller's own deadline counts where it is nearer.
func TestTheCallersDeadline(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := a.Serve(ctx, request("ADD", "c1"))
		g.Expect(time.Since(began)).To(Equal(3 * time.Second))
		g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeTryAgain))
		a.drain()
		g.Expect(a.held()).To(BeEmpty())
	})
}

// Delete ends the attachment of a lease, if it still is that lease.
func TestDeleteOfOneLease(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, dual)
	a.add("c1")
	old := a.leases.ByKey(key("c1"))[0]
	a.del("c1")
	a.add("c1")
	g.Expect(a.Delete(context.Background(), old)).To(Succeed())
	g.Expect(a.held()).To(Equal([]string{"c1"}))
	g.Expect(a.Delete(context.Background(), a.leases.ByKey(key("c1"))[0])).To(Succeed())
	g.Expect(a.held()).To(BeEmpty())
}

func TestThePodEvents(t *testing.T) {
	g := NewWithT(t)
	expires := time.Unix(1000, 0)
	add := &podmanager.AddPod{Key: key("c1"), Pod: pod("p1"), Expires: expires, Wanted: []netip.Addr{netip.MustParseAddr("10.1.5.9")}}
	del := &podmanager.DeletePod{Key: key("c1"), Expires: expires}
	g.Expect([]any{add.GetName(), add.Method(), add.TransactionType(), add.Direction(), add.IsBlocking(), add.Deadline()}).To(Equal(
		[]any{"Add Pod", controller.Update, controller.RevertOnFailure, controller.Forward, true, expires}))
	g.Expect([]any{del.GetName(), del.Method(), del.TransactionType(), del.Direction(), del.IsBlocking(), del.Deadline()}).To(Equal(
		[]any{"Delete Pod", controller.Update, controller.BestEffort, controller.Reverse, true, expires}))
	g.Expect(add.String()).To(And(ContainSubstring("ns/p1"), ContainSubstring("c1"), ContainSubstring("10.1.5.9")))
	g.Expect(del.String()).To(ContainSubstring("c1"))
	g.Expect(del.Void()).To(BeFalse())
}
