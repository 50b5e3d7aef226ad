// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet"
)

// kernel shows the links of a node that a test changes.
type kernel struct {
	mu    sync.Mutex
	found ipnet.Underlay
	err   error
	asked []netip.Addr // addresses of the Node object of the last reading
}

// newKernel has eth0 with 172.18.0.5 and MTU 1500.
func newKernel() *kernel {
	k := &kernel{}
	k.shows(1500, "172.18.0.5")
	return k
}

func (k *kernel) shows(mtu uint32, addresses ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.found, k.err = ipnet.Underlay{Link: "eth0", MTU: mtu}, nil
	for _, a := range addresses {
		k.found.Addresses = append(k.found.Addresses, netip.MustParseAddr(a))
	}
}

func (k *kernel) fails(text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = errors.New(text)
}

func (k *kernel) read(nodeIPs []netip.Addr) (ipnet.Underlay, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = nodeIPs
	if k.err != nil {
		return ipnet.Underlay{}, k.err
	}
	return k.found, nil
}

// value returns a value of the southbound, nil for none.
func value[M any](w *world, key string) (m M) {
	values, err := w.sink.Dump(context.Background())
	w.g.Expect(err).NotTo(HaveOccurred())
	m, _ = values[key].(M)
	return m
}

const linux = "cadastre: {dataplane: linux, transport: %s%s}\n"

func conf(transport, more string) string { return fmt.Sprintf(linux, transport, more) }

// The pods' MTU is what the transport leaves of the underlay's.
func TestMTUOfThePods(t *testing.T) {
	for _, c := range []struct {
		transport, more string
		underlay        uint32
		addresses       []string
		want            uint32
		note            string
	}{
		{"none", "", 1500, []string{"172.18.0.5"}, 1500, ""},
		{"hostgw", "", 9000, []string{"172.18.0.5"}, 9000, ""},
		{"vxlan", "", 1500, []string{"172.18.0.5"}, 1450, ""},
		{"vxlan", "", 1500, []string{"fd18::5"}, 1430, ""},
		{"vxlan", "", 1500, []string{"172.18.0.5", "fd18::5"}, 1430, ""},
		{"wireguard", "", 1500, []string{"172.18.0.5"}, 1440, ""},
		{"wireguard", "", 9000, []string{"fd18::5"}, 8920, ""},
		{"vxlan", ", mtu: 1400", 1500, []string{"172.18.0.5"}, 1400, ""},
		{"vxlan", ", mtu: 1450", 1500, []string{"172.18.0.5"}, 1450, ""},
		{"vxlan", ", mtu: 1451", 1500, []string{"172.18.0.5"}, 1450, "MTU 1451"},
		{"vxlan", ", mtu: 9000", 1500, []string{"172.18.0.5"}, 1450, "link eth0 has 1500, transport vxlan adds 50 bytes"},
	} {
		t.Run(fmt.Sprint(c.transport, c.more, c.underlay, c.addresses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, conf(c.transport, c.more))
				w.underlay.shows(c.underlay, c.addresses...)
				w.runs(func() {
					m := value[*kv.NodeNetwork](w, kv.SinkNode)
					w.g.Expect(m.Mtu).To(Equal(c.want))
					w.g.Expect(m.Underlay).To(Equal(c.addresses))
					w.g.Expect(w.network.Pending()).To(BeEmpty())
					if c.note == "" {
						w.g.Expect(w.network.Notes()).To(BeEmpty())
					} else {
						w.g.Expect(w.network.Notes()).To(ConsistOf(ContainSubstring(c.note)))
					}
				})
			})
		})
	}
}

// A node without an underlay is not ready if its transport needs one. What was found
// before stays in use while the links show nothing.
func TestAnUnderlayThatIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, conf("vxlan", ""))
		w.underlay.fails("no link has 10.0.0.7")
		w.runs(func() {
			w.g.Expect(w.network.Pending()).To(ContainSubstring("no link has 10.0.0.7"))
			m := value[*kv.NodeNetwork](w, kv.SinkNode)
			w.g.Expect(m.Underlay).To(BeEmpty())
			w.g.Expect(m.Mtu).To(BeEquivalentTo(1430), "the least that any underlay of 1500 leaves")
			w.underlay.shows(1400, "172.18.0.5")
			w.resync()
			w.g.Expect(w.network.Pending()).To(BeEmpty())
			w.g.Expect(w.network.Notes()).To(BeEmpty())
			w.underlay.fails("eth0 is gone")
			w.resync()
			w.g.Expect(w.network.Pending()).To(BeEmpty())
			w.g.Expect(w.network.Notes()).To(ConsistOf(ContainSubstring("eth0 is gone")))
			m = value[*kv.NodeNetwork](w, kv.SinkNode)
			w.g.Expect(m.Underlay).To(Equal([]string{"172.18.0.5"}))
			w.g.Expect(m.Mtu).To(BeEquivalentTo(1350))
		})
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, conf("none", ""))
		w.underlay.fails("there is no default route")
		w.runs(func() {
			w.g.Expect(w.network.Pending()).To(BeEmpty(), "a single node needs no underlay")
			w.g.Expect(w.network.Notes()).To(ConsistOf(ContainSubstring("no default route")))
		})
	})
}

// The underlay follows the addresses of this node's object, and what the links show: at
// the latest after the period of Watch.
func TestTheUnderlayChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, conf("vxlan", ""))
		w.runs(func() {
			w.set(kv.NodeKey(w.own), &kv.Node{Name: w.own, Uid: "uid", Addresses: []string{"10.200.0.5"}})
			w.g.Expect(fmt.Sprint(w.underlay.asked)).To(Equal("[10.200.0.5]"))
			w.underlay.shows(1300, "10.200.0.5")
			w.g.Expect(w.network.Watch(ended(t), w, time.After)).To(Succeed())
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			pushed := &counting{EventLoop: w}
			w.g.Expect(w.network.Watch(ctx, pushed, time.After)).To(Succeed())
			synctest.Wait()
			w.g.Expect(pushed.count).To(Equal(1))
			w.g.Expect(fmt.Sprint(w.underlay.asked)).To(Equal("[10.200.0.5]"))
			m := value[*kv.NodeNetwork](w, kv.SinkNode)
			w.g.Expect(m.Underlay).To(Equal([]string{"10.200.0.5"}))
			w.g.Expect(m.Mtu).To(BeEquivalentTo(1250))

			w.underlay.shows(1300, "10.200.0.6")
			w.set(kv.NodeKey(w.own), &kv.Node{Name: w.own, Uid: "uid", Addresses: []string{"10.200.0.6"}})
			w.g.Expect(value[*kv.NodeNetwork](w, kv.SinkNode).Underlay).To(Equal([]string{"10.200.0.6"}), "without a period")
			again, stop := context.WithTimeout(t.Context(), time.Hour)
			defer stop()
			w.g.Expect(w.network.Watch(again, pushed, time.After)).To(Succeed())
			synctest.Wait()
			w.g.Expect(pushed.count).To(Equal(1), "nothing has changed")
			w.underlay.fails("eth0 is gone")
			further, cancel2 := context.WithTimeout(t.Context(), time.Hour)
			defer cancel2()
			w.g.Expect(w.network.Watch(further, pushed, time.After)).To(Succeed())
			synctest.Wait()
			w.g.Expect(pushed.count).To(Equal(2), "once, not in each period")
			w.g.Expect(w.network.Notes()).To(ConsistOf("eth0 is gone"))
			byUpdates := w.values()
			w.resync()
			w.g.Expect(w.values()).To(Equal(byUpdates))
		})
	})
}

// counting counts the events that are pushed.
type counting struct {
	controller.EventLoop
	count int
}

func (c *counting) PushEvent(ev controller.Event) error {
	c.count++
	return c.EventLoop.PushEvent(ev)
}

// Other nodes learn of the underlay, and of the key if the transport needs one. A node
// without a data plane takes back what an earlier configuration has published.
func TestTheUnderlayIsPublished(t *testing.T) {
	for _, c := range []struct {
		transport contivconf.Transport
		plane     *ipnet.Dataplane
		want      []string
	}{
		{contivconf.TransportVXLAN, &ipnet.Dataplane{Underlay: newKernel().read, PublicKey: "key"}, []string{"[172.18.0.5] "}},
		{contivconf.TransportWireGuard, &ipnet.Dataplane{Underlay: newKernel().read, PublicKey: "key"}, []string{"[172.18.0.5] key"}},
		{contivconf.TransportHostGW, nil, []string{"[] "}},
		{contivconf.TransportVXLAN, &ipnet.Dataplane{Underlay: func([]netip.Addr) (ipnet.Underlay, error) {
			return ipnet.Underlay{}, errors.New("not found")
		}}, nil},
	} {
		g, b, other := NewWithT(t), &inputs{}, &cluster{id: 5}
		deps := ipnet.Deps{NodeSync: other, IPAM: b, Ledger: b, Transport: c.transport, Dataplane: c.plane}
		deps.Log = slog.New(slog.DiscardHandler)
		b.resync(g, ipnet.NewPlugin(deps))
		g.Expect(other.underlay).To(Equal(c.want))
	}
}

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// The wires of pods follow the MTU of the underlay without a resync.
func TestPodsFollowTheUnderlay(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		k := newKernel()
		a.plane.Underlay = k.read
		a.resync()
		a.add("w1", "web-0")
		g.Expect(a.podNetwork("w1").Wire.Mtu).To(BeEquivalentTo(1500))
		k.shows(1400, "172.18.0.5")
		g.Expect(a.loop.PushEvent(&ipnet.UnderlayChange{})).To(Succeed())
		synctest.Wait()
		g.Expect(a.podNetwork("w1").Wire.Mtu).To(BeEquivalentTo(1400))
		g.Expect(a.cluster.underlay).To(ContainElement("[172.18.0.5] "))
		byUpdates := a.wanted()
		a.resync()
		g.Expect(a.wanted()).To(Equal(byUpdates))
	})
}

func TestTheEventOfAnUnderlayChange(t *testing.T) {
	g := NewWithT(t)
	ev := &ipnet.UnderlayChange{Description: "eth0 has MTU 1400"}
	g.Expect(ipnet.NewPlugin(ipnet.Deps{}).HandlesEvent(ev)).To(BeTrue())
	g.Expect(ev.String()).To(ContainSubstring("eth0 has MTU 1400"))
	g.Expect(ev.Method()).To(Equal(controller.Update))
}
