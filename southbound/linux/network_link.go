// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// networkLinkPrefix begins the names of the links of networks; the VNI in 6 hexadecimal
	// digits follows.
	networkLinkPrefix = "cadvx"
	// networkAlias begins the alias of these links; the name of the network follows.
	networkAlias = aliasPrefix + kv.SinkNetworkPrefix
)

// networkLinkName returns the name of the link of a network.
func networkLinkName(vni uint32) string { return fmt.Sprintf("%s%06x", networkLinkPrefix, vni) }

// isNetworkLink reports whether a link of ours with that name belongs to a network.
func isNetworkLink(name string) bool { return networkVNI(name) != 0 }

// networkVNI returns the VNI of a link of a network, 0 for another name.
func networkVNI(name string) uint32 {
	vni, err := strconv.ParseUint(strings.TrimPrefix(name, networkLinkPrefix), 16, 24)
	if err != nil || networkLinkName(uint32(vni)) != name {
		return 0
	}
	return uint32(vni)
}

// networkLinks makes the values below "link/". Such a value is the VXLAN
// link of a network with a routing table of its own, and the rules of that link. By these
// rules the kernel looks up packets that arrive through the link in that table.
type networkLinks struct {
	host  *tunnelHost
	peers *networkPeers
}

// kind returns the kind of these links. The table of a network must be closed before.
func (n *networkLinks) kind() southbound.Kind[networkLink] {
	return southbound.Kind[networkLink]{
		Name:      "linux network link",
		Prefix:    kv.SinkLinkPrefix,
		Read:      readNetworkLink,
		Needs:     func(want networkLink) []string { return []string{kv.SinkNetworkPrefix + want.network} },
		Create:    n.create,
		Delete:    n.remove,
		Recreates: n.recreates,
		Retrieve:  n.retrieve,
		Watch:     n.watch,
	}
}

// networkLink holds what a value says.
type networkLink struct {
	vxlanLink
	network     string
	name, alias string
	rules       []object
}

// readNetworkLink reads a value.
func readNetworkLink(key string, value proto.Message) (networkLink, error) {
	m, err := message[*kv.NetworkLink](value)
	if err != nil {
		return networkLink{}, err
	}
	if key != kv.SinkLinkPrefix+m.GetNetwork() {
		return networkLink{}, fmt.Errorf("its network %q is not that of its key", m.GetNetwork())
	}
	table, err := readTable(m.GetTable())
	if err != nil {
		return networkLink{}, err
	}
	if table == unix.RT_TABLE_MAIN {
		return networkLink{}, errors.New("table: want that of a network of its own, not the main table")
	}
	want := networkLink{
		network: m.GetNetwork(),
		name:    networkLinkName(m.GetVni()),
		alias:   networkAlias + m.GetNetwork(),
	}
	want.vxlanLink, err = readVXLANLink(m.GetVni(), m.GetMtu(), m.GetUnderlay())
	if err != nil {
		return networkLink{}, err
	}
	if want.mac, err = readHardware("mac", m.GetMac()); err != nil {
		return networkLink{}, err
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		want.rules = append(want.rules, object{kind: ruleObject, prefix: defaultRoute(family), table: table})
	}
	return want, nil
}

// device returns access to the link of a value.
func (n *networkLinks) device(w networkLink) *vxlan {
	return &vxlan{host: n.host, name: w.name, alias: w.alias, made: n.peers.of(w.vni).forget}
}

// recreates reports whether the link has to be made again: the kernel then removes the
// tunnels and the routes through it.
func (n *networkLinks) recreates(_ string, was southbound.Made[networkLink], want networkLink) bool {
	if old, ok := was.Message.(*kv.NetworkLink); ok && old.GetVni() != want.vni {
		return true
	}
	link, found, err := n.device(want).link()
	return err == nil && found && !link.vxlan.sameForm(want.vxlanLink)
}

// create makes the link and its rules, or repairs them. The form of a link that is there stays:
// see recreates.
func (n *networkLinks) create(_ context.Context, _ string, want networkLink) error {
	loss := fmt.Sprintf("packets to network %s would be dropped", want.network)
	if err := n.host.within(func() error { return checkFilter(loss) }); err != nil {
		return err
	}
	if err := n.device(want).ensure(want.vxlanLink); err != nil {
		return err
	}
	var all []*rtnl.Request
	link := linkID{name: want.name}
	have, err := n.rulesOf(want.name)
	if err != nil {
		return err
	}
	for _, o := range want.rules {
		if !slices.Contains(have, o) {
			all = append(all, o.add(link))
		}
	}
	for _, o := range have {
		if !slices.Contains(want.rules, o) {
			all = append(all, o.remove(link))
		}
	}
	return n.host.socket.Run(all)
}

// rulesOf returns the rules of ours for packets of a link.
func (n *networkLinks) rulesOf(name string) (found []object, err error) {
	all, err := listRules(n.host.socket)
	for _, r := range all {
		if r.name == name {
			found = append(found, r.object)
		}
	}
	return found, err
}

// remove removes the link, with all that leads through it, and its rules.
func (n *networkLinks) remove(_ context.Context, _ string, was southbound.Made[networkLink]) error {
	m, err := message[*kv.NetworkLink](was.Message)
	if err != nil || m.GetVni() == 0 {
		return err // such a value was never made
	}
	name := networkLinkName(m.GetVni())
	have, err := n.rulesOf(name)
	if err != nil {
		return err
	}
	var all []*rtnl.Request
	for _, o := range have {
		all = append(all, o.remove(linkID{name: name}))
	}
	if err := n.host.socket.Run(all); err != nil {
		return err
	}
	return (&vxlan{host: n.host, name: name, alias: networkAlias}).remove()
}

// retrieve returns the wanted links that are complete. Of others it returns the VNI alone.
func (n *networkLinks) retrieve(
	_ context.Context,
	wanted []southbound.Wanted[networkLink],
) (all []controller.Value, err error) {
	present := map[string]hostLink{}
	links, err := listLinks(n.host.socket, vxlanKind)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		halfMade := l.alias == "" && l.group == unnamedGroup
		if isNetworkLink(l.name) && (halfMade || strings.HasPrefix(l.alias, networkAlias)) {
			present[l.name] = l
		}
	}
	rules, err := listRules(n.host.socket)
	if err != nil {
		return nil, err
	}
	ruled := map[string][]object{}
	for _, r := range rules {
		if isNetworkLink(r.name) {
			ruled[r.name] = append(ruled[r.name], r.object)
		}
	}
	remains := func(key, name string) {
		all = append(all, controller.Value{Key: key, Message: &kv.NetworkLink{Vni: networkVNI(name)}})
	}
	for _, v := range wanted {
		want := v.Plan
		link, found := present[want.name]
		complete := false
		if found {
			if complete, err = n.complete(want, link, ruled[want.name]); err != nil {
				return nil, err
			}
		}
		switch {
		case complete:
			all = append(all, controller.Value{Key: v.Key, Message: v.Message})
		case found || len(ruled[want.name]) > 0:
			remains(v.Key, want.name)
		}
		delete(present, want.name)
		delete(ruled, want.name)
	}
	for name := range present {
		ruled[name] = nil
	}
	for name := range ruled {
		remains(kv.SinkLinkPrefix+name, name)
	}
	return all, nil
}

// complete reports whether a link is as its value says.
func (n *networkLinks) complete(want networkLink, have hostLink, rules []object) (bool, error) {
	if len(rules) != len(want.rules) ||
		slices.ContainsFunc(want.rules, func(o object) bool { return !slices.Contains(rules, o) }) {
		return false, nil
	}
	addresses, err := n.host.addresses(have)
	return err == nil && n.device(want).complete(have, want.vxlanLink, addresses), err
}

// watch calls changed if a link of a network changes, or one of its rules is removed.
func (n *networkLinks) watch(ctx context.Context, changed func(key string)) error {
	return n.host.monitor.follow(ctx, changed, watch{damaged: func(a announcement) (key string, is bool) {
		switch a.kind {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			return "", isNetworkLink(a.link.name)
		case unix.RTM_DELRULE:
			return "", a.object.ours && isNetworkLink(a.object.name)
		}
		return "", false
	}})
}
