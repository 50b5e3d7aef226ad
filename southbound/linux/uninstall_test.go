// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"runtime"
	"testing"

	"github.com/google/nftables"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
)

func TestUninstallRemovesWhatIsOurs(t *testing.T) {
	l := newWireLab(t, Options{})
	ctx := context.Background()
	l.must(l.networks().Create(ctx, "network/blue", &kv.Network{Table: 1007}))
	node, err := newTunnelHost(Options{Namespace: l.host.Path()})
	l.must(err)
	t.Cleanup(node.close)
	links := (&networkLinks{node, newNetworkPeers(node)}).kind().Descriptor()
	l.must(links.Create(ctx, "link/blue", &kv.NetworkLink{
		Network: "blue", Vni: 12, Table: 1007, Underlay: []string{"10.99.1.2"}, Mac: "02:00:c0:a8:1e:05", Mtu: 1400,
	}))
	l.must(links.Close())
	a, b, gone := l.pod(), l.podOf("blue", 1007, 9), l.pod()
	l.create(a)
	l.create(b)
	l.create(gone)
	l.delete(gone)
	l.must(l.host.Do(func() error {
		if err := foreignLink("other"); err != nil {
			return err
		}
		ours := []netlink.Route{
			{Dst: parseNet("10.1.7.0/24"), Type: unix.RTN_UNREACHABLE, Protocol: ownProtocol},
			{Dst: parseNet("fd01:7::/64"), Type: unix.RTN_UNREACHABLE, Protocol: ownProtocol, Table: 1007},
			{Dst: parseNet("10.99.0.0/16"), Type: unix.RTN_UNREACHABLE, Protocol: unix.RTPROT_STATIC},
		}
		for _, r := range ours {
			if err := netlink.RouteAdd(&r); err != nil {
				return err
			}
		}
		rule := netlink.NewRule()
		rule.Table, rule.Priority, rule.IifName = 77, 77, "other"
		return netlink.RuleAdd(rule)
	}))
	tables, err := openNFT(l.host.Path())
	l.must(err)
	c, err := tables.conn()
	l.must(err)
	for _, name := range []string{nftTable, "foreign"} {
		c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
	}
	l.must(c.Flush())

	command(t, l.host.Path(), "iptables", "-P", "FORWARD", "DROP")
	firewall := command(t, l.host.Path(), "iptables", "-S")
	descriptor, _ := newForwardNode(t, l.host.Path(), true)
	l.must(descriptor.Create(ctx, kv.SinkNode, &kv.NodeNetwork{}))
	l.Expect(command(t, l.host.Path(), "iptables", "-S")).NotTo(Equal(firewall))

	removed, err := Uninstall(ctx, Options{Namespace: l.host.Path()})
	l.must(err)
	l.Expect(removed).To(ContainElements(
		"link "+a.value.Wire.HostIfName+" ("+a.key+")", "link "+b.value.Wire.HostIfName+" ("+b.key+")",
		"link "+gone.value.Wire.HostIfName+" ("+gone.key+")",
		"rule to table 1007 of link "+b.value.Wire.HostIfName, "IPv6 rule to table 1007 of link "+b.value.Wire.HostIfName,
		"linux network link link/cadvx00000c",
		"route "+a.ip[0].String()+"/32", "blackhole route 0.0.0.0/0 table 1007", ContainSubstring("fd01:7::/64 table 1007"),
		ContainSubstring("10.1.7.0/24"), "table inet cadastre of nftables",
	))
	l.Expect(command(t, l.host.Path(), "iptables", "-S")).To(Equal(firewall))
	again, err := Uninstall(ctx, Options{Namespace: l.host.Path()})
	l.must(err)
	l.Expect(again).To(BeEmpty())
	l.must(l.host.Do(func() error {
		links, err := netlink.LinkList()
		l.Expect(links).To(HaveLen(2), "lo and other")
		rules, _ := netlink.RuleList(netlink.FAMILY_V4)
		l.Expect(rules).To(HaveLen(4), "the kernel's three and the foreign one")
		routes, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: unix.RTPROT_STATIC}, netlink.RT_FILTER_PROTOCOL)
		l.Expect(routes).To(HaveLen(1))
		return err
	}))
	left, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	l.must(err)
	l.Expect(left).To(HaveLen(1))
	l.must(tables.close())
}

// TestUninstallNeedsNoRightToEnterNamespaces: the container of k8s/uninstall has CAP_NET_ADMIN
// alone, and is in the node's network namespace already.
func TestUninstallNeedsNoRightToEnterNamespaces(t *testing.T) {
	l := newWireLab(t, Options{})
	a := l.pod()
	l.create(a)
	host, err := rtnl.Open(l.host.Path())
	l.must(err)
	ended := make(chan error)
	var removed []string
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		ended <- func() (err error) {
			if err := unix.Setns(host.Fd(), unix.CLONE_NEWNET); err != nil {
				return err
			}
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			only := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_ADMIN, Permitted: 1 << unix.CAP_NET_ADMIN}}
			if err := unix.Capset(&header, &only[0]); err != nil {
				return err
			}
			removed, err = Uninstall(context.Background(), Options{})
			return err
		}()
	}()
	l.must(<-ended)
	l.must(host.Close())
	l.Expect(removed).To(ContainElement("link " + a.value.Wire.HostIfName + " (" + a.key + ")"))
}
