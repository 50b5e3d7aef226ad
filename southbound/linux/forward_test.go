// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/engines/dockertest"
	"github.com/cadastre/cadastre/southbound"
)

// newForwardNode returns the descriptor of the firewall's part in a namespace.
func newForwardNode(t testing.TB, namespace string, allow bool) (*southbound.Descriptor, *forwardRules) {
	t.Helper()
	tables, err := openNFT(namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.close() })
	f := &forwardRules{
		nft: tables, legacy: &legacyTables{func(f func() error) error { return rtnl.Within(namespace, f) }}, allow: allow, log: slog.New(slog.DiscardHandler),
	}
	return (&ownNode{parts: []nodePart{f}}).kind().Descriptor(), f
}

// command runs a program in the namespace.
func command(t testing.TB, namespace string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("NOT RUN: there is no %s here (Debian: iptables)", args[0])
	}
	var out []byte
	err := rtnl.Within(namespace, func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// newForwardLab returns a lab in which all neighbours know each other.
func newForwardLab(t testing.TB) *egressLab {
	t.Helper()
	lab := newEgressLab(t)
	lab.must(echo(lab.node.pod, "198.51.100.2", 100))
	lab.must(echo(lab.node.pod, "2001:db8::2", 100))
	return lab
}

// forwarded reports whether the node forwards the pod's packets of both families.
func (l *egressLab) forwarded() bool {
	l.t.Helper()
	answered := 0
	for _, addr := range []string{"198.51.100.2", "2001:db8::2"} {
		if echoTimes(l.node.pod, addr, 100, 2) == nil {
			answered++
		}
	}
	if answered == 1 {
		l.t.Fatal("one family is forwarded, and one is not")
	}
	return answered == 2
}

func TestAllowForwardOverridesThePolicyOfIptables(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nft", "legacy"} {
		t.Run(backend, func(t *testing.T) {
			lab := newForwardLab(t)
			ns := lab.node.net.Path()
			programs := []string{"iptables-" + backend, "ip6tables-" + backend}
			for _, p := range programs {
				command(t, ns, p, "-P", "FORWARD", "DROP")
				command(t, ns, p, "-A", "FORWARD", "-i", "theirs", "-j", "ACCEPT")
			}
			g := NewWithT(t)
			g.Expect(lab.forwarded()).To(BeFalse())
			before := map[string]string{}
			for _, p := range programs {
				before[p] = command(t, ns, p, "-S")
			}
			value := lab.node.network(kv.Transport_DIRECT)
			want := []controller.Value{{Key: kv.SinkNode, Message: value}}
			descriptor, part := newForwardNode(t, ns, true)
			complete := func() bool {
				got, err := descriptor.Retrieve(t.Context(), want)
				lab.must(err)
				return proto.Equal(got[0].Message, value)
			}
			g.Expect(complete()).To(BeFalse())
			for range 2 { // the second changes nothing
				lab.must(descriptor.Create(t.Context(), kv.SinkNode, value))
				g.Expect(lab.forwarded()).To(BeTrue())
				g.Expect(complete()).To(BeTrue())
				g.Expect(part.Notes()).To(BeEmpty())
			}
			for _, p := range programs {
				command(t, ns, p, "-D", "FORWARD", "2") // one of both
				lab.must(descriptor.Create(t.Context(), kv.SinkNode, value))
				shown := command(t, ns, p, "-S")
				g.Expect(strings.Count(shown, "cad+")).To(Equal(2), shown)
				g.Expect(shown).To(ContainSubstring("-P FORWARD DROP"))
				g.Expect(shown).To(HavePrefix(strings.TrimSpace(before[p])), "our rules are behind all others")
				command(t, ns, p, "-F", "FORWARD")
				g.Expect(complete()).To(BeFalse(), "the rules of %s are gone", p)
				lab.must(descriptor.Create(t.Context(), kv.SinkNode, value))
				command(t, ns, p, "-I", "FORWARD", "-i", "theirs", "-j", "ACCEPT")
			}
			// another agent without the option removes the rules
			descriptor, _ = newForwardNode(t, ns, false)
			lab.must(descriptor.Create(t.Context(), kv.SinkNode, value))
			for _, p := range programs {
				g.Expect(command(t, ns, p, "-S")).To(Equal(before[p]))
			}
			g.Expect(lab.forwarded()).To(BeFalse())
		})
	}
}

func TestADroppingFirewallIsNotedWithTheCommandThatHelps(t *testing.T) {
	t.Parallel()
	for backend, policies := range map[string][][]string{
		"nft":    {{"iptables-nft", "-P", "FORWARD", "DROP"}, {"ip6tables-nft", "-P", "FORWARD", "DROP"}},
		"legacy": {{"iptables-legacy", "-P", "FORWARD", "DROP"}, {"ip6tables-legacy", "-P", "FORWARD", "DROP"}},
	} {
		t.Run(backend, func(t *testing.T) {
			lab := newForwardLab(t)
			ns := lab.node.net.Path()
			var log bytes.Buffer
			descriptor, part := newForwardNode(t, ns, false)
			part.log = slog.New(slog.NewTextHandler(&log, nil))
			value := lab.node.network(kv.Transport_DIRECT)
			g := NewWithT(t)
			look := func() []string {
				_, err := descriptor.Retrieve(t.Context(), []controller.Value{{Key: kv.SinkNode, Message: value}})
				lab.must(err)
				return part.Notes()
			}
			g.Expect(look()).To(BeEmpty())
			for _, p := range policies {
				command(t, ns, p...)
			}
			notes := look()
			g.Expect(notes).To(HaveLen(2))
			g.Expect(look()).To(Equal(notes))
			g.Expect(strings.Count(log.String(), "firewall drops")).To(Equal(2), "each problem is logged once")
			g.Expect(lab.forwarded()).To(BeFalse())
			for i, n := range notes {
				g.Expect(n).To(ContainSubstring("cadastre.allowForward"))
				_, advice, found := strings.Cut(n, "run ")
				g.Expect(found).To(BeTrue())
				g.Expect(advice).To(HavePrefix(strings.TrimSuffix(policies[i][0], "-nft")))
				command(t, ns, "sh", "-c", advice)
			}
			g.Expect(lab.forwarded()).To(BeTrue())
			g.Expect(look()).To(BeEmpty())
		})
	}
}

func TestForwardingBesideARealDockerEngine(t *testing.T) {
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("NOT RUN: Docker's firewall needs iptables (Debian: iptables)")
	}
	engine := dockertest.Start(t, "--iptables=true", "--ip-forward=true")
	ns := engine.Network()
	pod, server := newNamespace(t), newNamespace(t)
	lab := &tunnelLab{t: t}
	for i, end := range []struct {
		name string
		peer interface {
			Do(f func() error) error
			Path() string
		}
	}{{labPodLink, pod}, {"uplink", server}} {
		lab.must(rtnl.Within(ns, func() error {
			peer, err := os.Open(end.peer.Path())
			if err != nil {
				return err
			}
			defer peer.Close()
			attrs := netlink.NewLinkAttrs()
			attrs.Name = end.name
			veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(peer.Fd())}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(fmt.Sprintf("10.77.%d.1/24", i))
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(veth, addr); err != nil {
				return err
			}
			return netlink.LinkSetUp(veth)
		}))
	}
	for i, n := range []interface{ Do(func() error) error }{pod, server} {
		lab.must(n.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(fmt.Sprintf("10.77.%d.2/24", i))
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(eth0, addr); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(eth0); err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(fmt.Sprintf("10.77.%d.1", i)), Scope: unix.RT_SCOPE_UNIVERSE})
		}))
	}
	g := NewWithT(t)
	rules := command(t, ns, "iptables", "-S", "FORWARD")
	if !strings.Contains(rules, "-P FORWARD DROP") {
		t.Skipf("NOT RUN: this engine does not set the policy of FORWARD to DROP:\n%s", rules)
	}
	g.Expect(echoTimes(pod, "10.77.1.2", 100, 2)).NotTo(Succeed())
	descriptor, part := newForwardNode(t, ns, true)
	value := &kv.NodeNetwork{Id: 1}
	lab.must(descriptor.Create(t.Context(), kv.SinkNode, value))
	g.Expect(part.Notes()).To(BeEmpty())
	g.Expect(echo(pod, "10.77.1.2", 100)).To(Succeed())
	g.Expect(echo(server, "10.77.0.2", 100)).To(Succeed())
	engine.Docker("network", "create", "another") // the engine writes its rules again
	g.Expect(echo(pod, "10.77.1.2", 100)).To(Succeed())
	g.Expect(command(t, ns, "iptables", "-S", "FORWARD")).To(ContainSubstring("-i docker0"))
	lab.must(descriptor.Delete(t.Context(), kv.SinkNode, value))
	engine.Docker("network", "rm", "another")
	g.Expect(command(t, ns, "iptables", "-S", "FORWARD")).To(Equal(rules))
	g.Expect(echoTimes(pod, "10.77.1.2", 100, 2)).NotTo(Succeed())
}
