// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// wiring is a plugin that gives pods their network, as Contiv-VPP's did: it stands
// behind ipam in the order and asks it for the pod's address during the pod's event.
type wiring struct {
	update func(ev controller.Event, txn controller.UpdateOperations) error
	revert func(ev controller.Event) error
}

func (w *wiring) String() string { return "wiring" }
func (w *wiring) HandlesEvent(ev controller.Event) bool {
	switch ev.(type) {
	case *podmanager.AddPod, *podmanager.DeletePod:
		return true
	}
	return false
}
func (w *wiring) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return nil
}
func (w *wiring) Update(ev controller.Event, txn controller.UpdateOperations) (string, error) {
	if w.update == nil {
		return "", nil
	}
	return "", w.update(ev, txn)
}
func (w *wiring) Revert(ev controller.Event) error {
	if w.revert == nil {
		return nil
	}
	return w.revert(ev)
}

// agent is an event loop with podmanager, ipam, and the wiring behind them.
type agent struct {
	*controller.Controller
	g      Gomega
	pods   *podmanager.PodManager
	ipam   ipam.API
	plugin *ipam.IPAM
	wiring *wiring
	last   *wiring // behind it: the one that fails
	sink   *controller.MemorySink
}

// newAgent runs a loop until the test ends.
func newAgent(t *testing.T, conf string, more func(*ipam.Deps)) *agent {
	t.Helper()
	a := &agent{g: NewWithT(t), wiring: &wiring{}, last: &wiring{}, sink: &controller.MemorySink{}}
	cfg, _, err := contivconf.Parse([]byte(conf))
	a.g.Expect(err).NotTo(HaveOccurred())
	leases, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	a.g.Expect(err).NotTo(HaveOccurred())
	stage := leases.Begin()
	a.pods = podmanager.NewPlugin(podmanager.Deps{
		PluginDeps: controller.PluginDeps{Log: slog.New(slog.DiscardHandler)}, EventLoop: a, Ledger: leases, IntentDir: t.TempDir(),
	})
	a.plugin = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.NodeSync, d.ContivConf, d.ServiceLabel, d.EventLoop = &nodes{id: 5, all: nodesync.Nodes{}}, contivconf.NewPlugin(cfg), label(thisNode), a
		d.PodManager, d.Ledger, d.Stage = a.pods, leases, stage
		if more != nil {
			more(d)
		}
	}))
	a.ipam = a.plugin
	a.g.Expect(a.plugin.Init()).To(Succeed())
	a.Controller = controller.New(controller.DefaultConfig(), controller.Deps{
		Handlers: []controller.EventHandler{a.pods, a.plugin, a.wiring, a.last}, Committers: []controller.Committer{stage, a.plugin}, Sink: a.sink,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = a.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	synced := make(chan error, 1)
	a.g.Expect(a.PushEvent(&controller.DBResync{OnDone: func(err error) { synced <- err }})).To(Succeed())
	a.g.Expect(<-synced).To(Succeed())
	return a
}

func (a *agent) serve(command, name string) (cni.Reply, error) {
	return a.deliver(a.request(command, name))
}

// request is one of the container of a pod of the same name.
func (a *agent) request(command, name string) cni.Request {
	return cni.Request{Command: command, Network: "pods", ContainerID: name, IfName: "eth0", Netns: "/run/netns/" + name, Pod: cni.Pod{Namespace: "default", Name: name}}
}

// deliver is a request whose answer arrives.
func (a *agent) deliver(r cni.Request) (cni.Reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply, err := a.pods.Serve(ctx, r)
	a.pods.Delivered(r, reply, nil)
	return reply, err
}

// held are the addresses of pods.
func (a *agent) held() []string {
	var all []string
	for _, l := range a.plugin.Ledger.Leases() {
		if l.Purpose == ledger.ForPod && l.State == ledger.Held {
			all = append(all, l.Addr.String())
		}
	}
	return all
}

// asks has the wiring ask for the address of pod "web" while it handles AddPod.
func (a *agent) asks(also func(txn controller.UpdateOperations) error) (answers *[]string) {
	answers = &[]string{}
	a.wiring.update = func(ev controller.Event, txn controller.UpdateOperations) error {
		if _, ok := ev.(*podmanager.AddPod); !ok {
			return nil
		}
		*answers = append(*answers, text(a.ipam.GetPodIP(pod("web"))))
		ip, err := a.ipam.AllocatePodIP(pod("web"), "", "")
		if err != nil {
			return fmt.Errorf("failed to allocate new IP address for pod: %w", err)
		}
		*answers = append(*answers, ip.String(), text(a.ipam.GetPodIP(pod("web"))), text(a.ipam.GetPodIP(pod("other"))))
		if also != nil {
			return also(txn)
		}
		return nil
	}
	return answers
}

func text(n *net.IPNet) string {
	if n == nil {
		return "none"
	}
	return n.String()
}

func TestTheAddressIsAnsweredDuringThePodsOwnEvent(t *testing.T) {
	for name, more := range map[string]func(*ipam.Deps){
		"with podmanager":              nil,
		"with the published Deps only": func(d *ipam.Deps) { d.PodManager = nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, defaults, more)
			answers := a.asks(nil)
			for range 2 { // the second ADD repeats the first
				*answers = nil
				reply, err := a.serve("ADD", "web")
				a.g.Expect(err).NotTo(HaveOccurred())
				a.g.Expect(*answers).To(Equal([]string{"10.1.5.2/32", "10.1.5.2", "10.1.5.2/32", "none"}))
				a.g.Expect(reply.IPs[0].Address).To(Equal("10.1.5.2/24"))
				a.g.Expect(a.held()).To(Equal([]string{"10.1.5.2"}), "one lease")
			}
			a.g.Expect(text(a.ipam.GetPodIP(pod("web")))).To(Equal("10.1.5.2/32"), "after Done, too")
			ip, err := a.ipam.AllocatePodIP(pod("web"), "", "")
			a.g.Expect(err).NotTo(HaveOccurred())
			a.g.Expect(ip.String()).To(Equal("10.1.5.2"))
			a.g.Expect(a.held()).To(HaveLen(1))
			a.g.Expect(a.ipam.ReleasePodIP(pod("web"))).To(Succeed())
			a.g.Expect(a.held()).To(BeEmpty())
		})
	}
}

func TestAllFamiliesAreAnsweredDuringThePodsOwnEvent(t *testing.T) {
	a := newAgent(t, dual, nil)
	var got []net.IP
	a.wiring.update = func(controller.Event, controller.UpdateOperations) (err error) {
		got, err = a.plugin.AllocatePodIPs(pod("web"), "", "")
		return err
	}
	_, err := a.serve("ADD", "web")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(fmt.Sprint(got)).To(Equal("[10.1.5.2 fd00:1:0:5::2]"))
}

func TestExternalDataIsComparedWithTheStagedClaim(t *testing.T) {
	a := newAgent(t, external, func(d *ipam.Deps) {
		d.NodeSync = &nodes{id: 5, all: nodesync.Nodes{thisNode: {ID: 5, Name: thisNode, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")}}}}
	})
	var data string
	a.wiring.update = func(controller.Event, controller.UpdateOperations) error {
		_, err := a.ipam.AllocatePodIP(pod("web"), "host-local", data)
		return err
	}
	for _, step := range []struct {
		address string
		outcome types.GomegaMatcher
	}{
		{"10.1.5.77/24", MatchError(And(ContainSubstring("10.1.5.77"), ContainSubstring("has claimed 10.1.5.2")))},
		{"10.1.5.2/24", Succeed()},
		{"10.1.5.77/24", HaveOccurred()}, // of a pod that has its address already
	} {
		data = fmt.Sprintf(`{"version":"4","address":%q}`, step.address)
		r := a.request("ADD", "web")
		r.Wanted = []string{"10.1.5.2"}
		_, err := a.deliver(r)
		a.g.Expect(err).To(step.outcome)
	}
	a.g.Expect(a.held()).To(Equal([]string{"10.1.5.2"}))
}

func TestTheAddressOfExternalDataIsReturnedForAnyFamily(t *testing.T) {
	a := newAgent(t, dual+"\ncadastre: {podBlocks: podcidr}", func(d *ipam.Deps) {
		d.NodeSync = &nodes{id: 5, all: nodesync.Nodes{thisNode: {ID: 5, Name: thisNode, PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.1.5.0/24"), netip.MustParsePrefix("fd00:1:0:5::/64"),
		}}}}
	})
	var got []string
	ask := func(controller.Event, controller.UpdateOperations) error {
		ip, err := a.ipam.AllocatePodIP(pod("web"), "host-local", `{"version":"6","address":"fd00:1:0:5::2/64"}`)
		got = append(got, ip.String())
		return err
	}
	a.wiring.update = ask
	_, err := a.serve("ADD", "web")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(ask(nil, nil)).To(Succeed(), "after Done, too")
	a.g.Expect(got).To(Equal([]string{"fd00:1:0:5::2", "fd00:1:0:5::2"}))
	a.g.Expect(a.held()).To(Equal([]string{"10.1.5.2", "fd00:1:0:5::2"}))
}

// What is not committed is for the event's own handlers only.
func TestAnotherGoroutineDoesNotSeeAStagedAddress(t *testing.T) {
	a := newAgent(t, defaults, nil)
	var seen string
	var allocated error
	a.asks(func(controller.UpdateOperations) error {
		var other sync.WaitGroup
		other.Go(func() {
			seen = text(a.ipam.GetPodIP(pod("web")))
			_, allocated = a.ipam.AllocatePodIP(pod("web"), "", "")
		})
		other.Wait()
		return nil
	})
	_, err := a.serve("ADD", "web")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(seen).To(Equal("none"))
	a.g.Expect(allocated).To(MatchError(ledger.ErrBusy))
}

// Contiv-VPP's caller releases the pod's address when its event is reverted.
func TestARevertReleasesExactlyWhatTheEventClaimed(t *testing.T) {
	no := errors.New("no wire")
	fails := func(ev controller.Event, _ controller.UpdateOperations) error {
		if _, ok := ev.(*podmanager.AddPod); ok {
			return no
		}
		return nil
	}
	for name, fail := range map[string]func(*agent){
		"a later handler": func(a *agent) { a.last.update = fails },
		"the southbound": func(a *agent) {
			a.sink.Fault = func(txn controller.Transaction) error {
				if txn.RevertOnFailure {
					return no
				}
				return nil
			}
		},
	} {
		for _, repeated := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", repeated ", repeated), func(t *testing.T) {
				a := newAgent(t, defaults, nil)
				a.asks(func(txn controller.UpdateOperations) error { txn.Put("wire/web", wrapperspb.Bool(true)); return nil })
				var want, reverted []string
				if repeated {
					_, err := a.serve("ADD", "web")
					a.g.Expect(err).NotTo(HaveOccurred())
					want = []string{"10.1.5.2"}
				}
				a.wiring.revert = func(controller.Event) error {
					reverted = append(reverted, text(a.ipam.GetPodIP(pod("web"))))
					return a.ipam.ReleasePodIP(pod("web"))
				}
				fail(a)
				_, err := a.serve("ADD", "web")
				a.g.Expect(err).To(MatchError(ContainSubstring("no wire")))
				a.g.Expect(reverted).To(Equal([]string{"10.1.5.2/32"}), "the address is known while it is reverted")
				a.g.Expect(a.held()).To(Equal(want))
				a.g.Expect(a.Status().Healthy).To(BeTrue(), "the revert has succeeded")
				findings, err := a.plugin.Ledger.Check(context.Background())
				a.g.Expect(err).NotTo(HaveOccurred())
				a.g.Expect(findings).To(BeEmpty())
			})
		}
	}
}

// The runtime deletes an old sandbox after it has made the new one, and Contiv-VPP's
// caller releases the pod's address in that event.
func TestALateDeletionOfAnOldSandboxLeavesTheNewOneItsAddress(t *testing.T) {
	for name, more := range map[string]func(*ipam.Deps){
		"with podmanager":              nil,
		"with the published Deps only": func(d *ipam.Deps) { d.PodManager = nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, defaults, more)
			old, young := a.request("ADD", "web"), a.request("ADD", "web")
			old.ContainerID, young.ContainerID = "old", "young"
			for _, r := range []cni.Request{old, young} {
				_, err := a.deliver(r)
				a.g.Expect(err).NotTo(HaveOccurred())
			}
			a.g.Expect(a.held()).To(Equal([]string{"10.1.5.2", "10.1.5.3"}))
			a.wiring.update = func(controller.Event, controller.UpdateOperations) error { return a.ipam.ReleasePodIP(pod("web")) }
			old.Command, young.Command = "DEL", "DEL"
			_, err := a.deliver(old)
			a.g.Expect(err).NotTo(HaveOccurred())
			a.g.Expect(a.held()).To(Equal([]string{"10.1.5.3"}))
			_, err = a.deliver(young)
			a.g.Expect(err).NotTo(HaveOccurred())
			a.g.Expect(a.held()).To(BeEmpty())
		})
	}
}

func TestTheAddressIsAnsweredUntilTheDeletionIsDone(t *testing.T) {
	a := newAgent(t, defaults, nil)
	_, err := a.serve("ADD", "web")
	a.g.Expect(err).NotTo(HaveOccurred())
	var during string
	a.wiring.update = func(controller.Event, controller.UpdateOperations) error {
		during = text(a.ipam.GetPodIP(pod("web")))
		return nil
	}
	_, err = a.serve("DEL", "web")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(during).To(Equal("10.1.5.2/32"))
	a.g.Expect(text(a.ipam.GetPodIP(pod("web")))).To(Equal("none"))
	a.g.Expect(a.held()).To(BeEmpty())
}

// What AllocatePodIP has leased has no sandbox whose deletion would release it.
func TestAHandlerReleasesWhatAllocatePodIPHasLeased(t *testing.T) {
	a := newAgent(t, defaults, nil)
	_, err := a.ipam.AllocatePodIP(pod("web"), "", "")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(a.held()).To(Equal([]string{"10.1.5.2"}))
	a.wiring.update = func(controller.Event, controller.UpdateOperations) error { return a.ipam.ReleasePodIP(pod("web")) }
	_, err = a.serve("DEL", "other")
	a.g.Expect(err).NotTo(HaveOccurred())
	a.g.Expect(a.held()).To(BeEmpty())
}

// Multus adds further interfaces to a pod, each with an event of its own.
func TestAFurtherInterfaceDoesNotChangeThePodsAddress(t *testing.T) {
	for name, more := range map[string]func(*ipam.Deps){
		"with podmanager":              nil,
		"with the published Deps only": func(d *ipam.Deps) { d.PodManager = nil },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, defaults, more)
			_, err := a.serve("ADD", "web")
			a.g.Expect(err).NotTo(HaveOccurred())
			further := a.request("ADD", "web")
			further.Network, further.IfName = "second", "net1"
			answers := a.asks(nil)
			a.last.update = func(controller.Event, controller.UpdateOperations) error { return errors.New("no wire") }
			a.wiring.revert = func(controller.Event) error { return a.ipam.ReleasePodIP(pod("web")) }
			_, err = a.deliver(further)
			a.g.Expect(err).To(HaveOccurred())
			a.g.Expect(a.held()).To(Equal([]string{"10.1.5.2"}), "the revert of net1 is not one of eth0")

			*answers, a.last.update = nil, nil
			_, err = a.deliver(further)
			a.g.Expect(err).NotTo(HaveOccurred())
			a.g.Expect(*answers).To(Equal([]string{"10.1.5.2/32", "10.1.5.2", "10.1.5.2/32", "none"}))
			a.g.Expect(a.held()).To(HaveLen(2))
			a.g.Expect(text(a.ipam.GetPodIP(pod("web")))).To(Equal("10.1.5.2/32"), "after Done, too")
			a.g.Expect(a.ipam.ReleasePodIP(pod("web"))).To(Succeed())
			a.g.Expect(a.held()).To(And(HaveLen(1), Not(ContainElement("10.1.5.2"))))
		})
	}
}

// An event loop of another agent calls the handlers from where it likes.
func TestTheAddressIsAnsweredInAForeignLoop(t *testing.T) {
	n := running(t, defaults, 5)
	ev := add("web")
	n.g.Expect(n.HandlesEvent(ev)).To(BeTrue())
	_, err := n.Update(ev, newTxn())
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.allocate("web")).To(Equal("10.1.5.2"))
	n.g.Expect(text(n.GetPodIP(pod("web")))).To(Equal("10.1.5.2/32"))
	n.g.Expect(n.ReleasePodIP(pod("web"))).To(Succeed(), "the event decides")
	n.g.Expect(n.Stage.Commit(context.Background())).To(Succeed())
	n.sandboxes[pod("web")] = key("web")
	n.g.Expect(n.allocate("web")).To(Equal("10.1.5.2"))
	n.g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(HaveLen(1))
	n.g.Expect(n.ReleasePodIP(pod("web"))).To(Succeed())
	n.g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(BeEmpty())
}

func TestInitNamesAMissingDependency(t *testing.T) {
	cfg, _, err := contivconf.Parse([]byte(defaults))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for missing, set := range map[string]func(*ipam.Deps){
		"NodeSync":     func(d *ipam.Deps) { d.NodeSync = nil },
		"ContivConf":   func(d *ipam.Deps) { d.ContivConf = nil },
		"ServiceLabel": func(d *ipam.Deps) { d.ServiceLabel = nil },
		"Init":         nil,
	} {
		t.Run(missing, func(t *testing.T) {
			g := NewWithT(t)
			p := ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
				d.NodeSync, d.ContivConf, d.ServiceLabel = &nodes{id: 5}, contivconf.NewPlugin(cfg), label(thisNode)
				if set != nil {
					set(d)
				}
			}))
			named := MatchError(ContainSubstring(missing))
			if set != nil {
				g.Expect(p.Init()).To(named)
			}
			g.Expect(p.Resync(&controller.DBResync{}, controller.KubeStateData{}, 1, newTxn())).To(named)
			_, err := p.AllocatePodIP(pod("web"), "", "")
			g.Expect(err).To(named)
			g.Expect(p.ReleasePodIP(pod("web"))).To(named)
			g.Expect(p.GetPodIP(pod("web"))).To(BeNil())
		})
	}
	d := ipam.DefaultPlugin // a copy: another test may use the variable
	NewWithT(t).Expect(d.Init()).To(MatchError(ContainSubstring("NodeSync")))
}

// A wire that was half made, and that cannot be removed, may still answer for the address: no
// other pod gets it before the DEL.
func TestAWireThatRemainsKeepsItsAddress(t *testing.T) {
	for name, remains := range map[string]error{
		"it was removed":      nil,
		"it is half made yet": &controller.RemainError{Key: "wire/web", Err: errors.New("no buffer space")},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, defaults, nil)
			a.wiring.update = func(ev controller.Event, txn controller.UpdateOperations) error {
				if _, ok := ev.(*podmanager.AddPod); ok {
					txn.Put("wire/web", wrapperspb.String("half"))
				}
				return nil
			}
			a.sink.Fault = func(txn controller.Transaction) error {
				if txn.RevertOnFailure {
					return errors.Join(controller.ValueErrors{"wire/web": errors.New("no carrier")}, remains)
				}
				return nil
			}
			_, err := a.serve("ADD", "web")
			a.g.Expect(err).To(MatchError(ContainSubstring("no carrier")))
			a.sink.Fault = nil
			other, err := a.serve("ADD", "other")
			a.g.Expect(err).NotTo(HaveOccurred())
			if remains == nil {
				a.g.Expect(a.held()).To(HaveLen(1))
				return
			}
			a.g.Expect(a.held()).To(HaveLen(2))
			a.g.Expect(other.IPs[0].Address).NotTo(HavePrefix("10.1.5.2/"), "the address of the wire that remains")
			_, err = a.serve("DEL", "web")
			a.g.Expect(err).NotTo(HaveOccurred())
			a.g.Expect(a.held()).To(HaveLen(1))
		})
	}
}
