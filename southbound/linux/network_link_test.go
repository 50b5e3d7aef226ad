// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// The link of a network does not check sources, whatever new links do, and is repaired in place.
func TestALinkOfANetworkIsRetrievedAndRepaired(t *testing.T) {
	l := newWireLab(t, Options{})
	ctx := context.Background()
	host, err := newTunnelHost(Options{Namespace: l.host.Path()})
	l.must(err)
	t.Cleanup(host.close)
	links := (&networkLinks{host, newNetworkPeers(host)}).kind().Descriptor()
	setting(t, l.host, "net.ipv4.conf.default.rp_filter", "1")
	value := func(local string) controller.Value {
		return controller.Value{Key: "link/blue", Message: &kv.NetworkLink{
			Network: "blue", Vni: 12, Table: 1007, Underlay: []string{local}, Mac: "02:00:c0:a8:1e:05", Mtu: 1400,
		}}
	}
	want, other := value("10.99.1.2"), value("10.99.1.3")
	index := func() uint32 {
		link, _, err := getLink(host.socket, networkLinkName(12))
		l.must(err)
		l.Expect(link.filter).To(BeZero())
		return link.index
	}
	complete := func(want controller.Value) {
		have, err := links.Retrieve(ctx, []controller.Value{want})
		l.must(err)
		equalValues(t, have, want)
	}
	differs := func(want controller.Value, what string) {
		have, err := links.Retrieve(ctx, []controller.Value{want})
		l.must(err)
		l.Expect(have).To(HaveLen(1), what)
		l.Expect(proto.Equal(have[0].Message, &kv.NetworkLink{Vni: 12})).To(BeTrue(), what)
	}
	l.must(links.Create(ctx, want.Key, want.Message))
	complete(want)
	made := index()
	for what, damage := range map[string]func(){
		"it checks sources":      func() { setting(t, l.host, "net.ipv4.conf.cadvx00000c.rp_filter", "1") },
		"it obeys routers":       func() { setting(t, l.host, "net.ipv6.conf.cadvx00000c.accept_ra", "2") },
		"it has another MAC":     func() { runIP(l.Gomega, l.host, "link set cadvx00000c address 02:00:00:00:00:09") },
		"a rule is gone":         func() { runIP(l.Gomega, l.host, "-6 rule del iif cadvx00000c table 1007") },
		"it has another address": func() { runIP(l.Gomega, l.host, "address add 10.9.9.9/24 dev cadvx00000c") },
	} {
		damage()
		differs(want, what)
		l.must(links.Create(ctx, want.Key, want.Message))
		complete(want)
	}
	differs(other, "it has another local address")
	l.must(links.Update(ctx, other.Key, want.Message, other.Message))
	complete(other)
	l.Expect(index()).To(Equal(made), "the link was made again")
	setting(t, l.host, "net.ipv4.conf.all.rp_filter", "1")
	l.Expect(links.Create(ctx, other.Key, other.Message)).
		To(MatchError(ContainSubstring("sysctl -w net.ipv4.conf.all.rp_filter=0")))
	l.must(links.Delete(ctx, other.Key, other.Message))
	l.must(links.Close())
}
