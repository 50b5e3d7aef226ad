// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/vpp"
)

// Another version of VPP has other forms of messages. Nothing is changed in it.
func TestAnotherVersionIsRefused(t *testing.T) {
	needsModel(t, "VPP lacks a message")
	l := newLab(t)
	before := l.Dump()
	l.model.Lacks("vxlan_add_del_tunnel_v3")
	l.must(l.resync(l.values()))
	l.Expect(l.scheduler.Away()).To(MatchError(And(
		ContainSubstring("/run/model.sock"), ContainSubstring("vxlan_add_del_tunnel_v3"),
		ContainSubstring("25.10-model"), ContainSubstring("want"),
	)))
	l.Expect(l.Dump()).To(Equal(before))
	l.model.Lacks()
	l.must(l.resync(l.values()))
	l.inspect(l.values())
}

// A message of a plugin that is not loaded fails its value alone, and not the connection.
func TestAMissingPluginFailsItsValuesAlone(t *testing.T) {
	needsModel(t, "VPP lacks a plugin")
	l := newLab(t)
	l.must(l.scheduler.Close())
	opened := 0
	open := l.opt.Open
	l.opt.Open = func(ctx context.Context) (vpp.Transport, error) { opened++; return open(ctx) }
	l.start()
	l.model.Lacks("nat44_ed_plugin_enable_disable", "nat44_ed_add_del_output_interface")
	err := l.resync(l.values())
	l.Expect(err).To(MatchError(ContainSubstring("nat44_ed_")))
	l.Expect(l.Dump()).To(ContainSubstring("cadastre:pod/cad00000000000a"))
	l.Expect(opened).To(Equal(1))
}

// A VPP that does not answer holds up no caller beyond its own end, and goes on later.
func TestAHangingVPPHoldsUpNoCaller(t *testing.T) {
	needsModel(t, "VPP hangs")
	l := newLab(t)
	w := l.values()
	key := "pod/k8s/a/eth0"
	pod := w[key]
	delete(w, key)
	l.must(l.resync(w))
	l.must(l.scheduler.Close())
	asked := make(chan time.Duration, 1000)
	l.opt.After = func(d time.Duration) <-chan time.Time {
		asked <- d
		now := make(chan time.Time)
		close(now)
		return now
	}
	l.start()
	l.must(l.resync(w))
	l.model.Hang(true)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	failed := make(chan error)
	go func() { failed <- l.descriptors[1].Create(ctx, key, pod) }()
	l.Consistently(failed, "300ms").ShouldNot(Receive())
	stop()
	l.Eventually(failed, "5s").Should(Receive(MatchError(ContainSubstring("/run/model.sock"))))
	l.model.Hang(false)
	w[key] = pod
	l.must(l.resync(w))
	l.inspect(w)
}

func TestAPodThatFailsLeavesNoLinkInTheKernel(t *testing.T) {
	needsModel(t, "VPP refuses a link that the kernel has")
	l := newLab(t)
	w := l.values()
	key := "pod/k8s/a/eth0"
	pod := w[key]
	delete(w, key)
	l.must(l.resync(w))
	l.model.LinksOf(func(string) bool { return false }) // VPP cannot read it
	l.Expect(l.update(true, key, pod)).NotTo(Succeed())
	for more := true; more; {
		var err error
		more, err = l.descriptors[1].Sweep(context.Background())
		l.must(err)
	}
	l.must(l.pods[0].Do(func() error {
		_, err := netlink.LinkByName("eth0")
		l.Expect(err).To(HaveOccurred(), "the pod has the interface of an ADD that has failed")
		return nil
	}))
}

// Other programs read links with similar names, and choose numbers of tunnels themselves.
func TestSimilarNamesOfOthersStay(t *testing.T) {
	l := newLab(t)
	for _, link := range []string{"cadvisor0", "cad0", "vpp2"} {
		l.ForeignPacketLink(link)
	}
	l.ForeignTunnel(1500000000)
	before := l.objects()
	l.must(l.resync(wanted{}))
	l.Expect(l.objects()).To(Equal(before))
}

// The translation ends with its value, also if a crash has left a part of it.
func TestAPartOfTheTranslationIsLeftOver(t *testing.T) {
	needsModel(t, "the connection breaks after one request")
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	delete(w, kv.SinkEgress)
	l.model.BreakIn("nat44_ed_add_del_output_interface")
	l.must(l.resync(w))
	l.Expect(l.scheduler.Away()).To(MatchError(southbound.ErrAway))
	l.restart()
	l.must(l.resync(w))
	l.Expect(l.Dump()).NotTo(MatchRegexp("nat (output|address|vxlan) "))
}

// A network of its own does not lead to others: their pods may have the same addresses.
func TestANetworkLeadsToNoOther(t *testing.T) {
	l := newLab(t)
	w := l.values()
	w["network/default"].(*kv.Network).Closed = true
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(ContainSubstring("route 201326599 0.0.0.0/0 source=cadastre via=invalid IP - into=0 drop=true"))
	l.Expect(l.Dump()).To(ContainSubstring("route 0 10.1.0.0/16 source=cadastre via=invalid IP - into=0 drop=true"))
	l.inspect(w)
}

// The status is read while values are made.
func TestNotesAreReadAtAnyTime(t *testing.T) {
	l := newLab(t)
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, d := range l.descriptors {
				d.Notes()
			}
		}
	}()
	l.must(l.resync(l.values()))
	close(stop)
	<-done
}
