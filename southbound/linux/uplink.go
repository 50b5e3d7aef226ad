// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// uplinks makes the values below "uplink/": network interfaces of the node
// that a cloud has attached, and whose addresses pods have. The link is found by its MAC. It
// is never renamed, and its own addresses belong to the node's configuration, such as DHCP.
// Each uplink has a routing table with its ranges on-link, a default route to each gateway,
// and an unreachable route behind these. So a packet from one of its addresses never leaves
// through another link. All uplinks share rules, in each family, by which packets to pods of
// this node reach their wires, and replies to connections to the node leave as its own.
type uplinks struct {
	opt     Options
	ns      *rtnl.Namespace
	host    *rtnl.Socket
	known   *uplinkLinks
	replies *replies // shared by all uplinks
	// families holds those of the kernel, which may have no IPv6 ("ipv6.disable=1").
	families []byte
}

// newUplinks opens the node's network namespace for uplinks and for the addresses of pods on them.
// Closing the first closes what both have open.
func newUplinks(opt Options) (*uplinks, *uplinkAddresses, error) {
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, nil, err
	}
	s, err := ns.Dial()
	if err != nil {
		return nil, nil, errors.Join(err, ns.Close())
	}
	n, err := openNFT(opt.Namespace)
	if err != nil {
		return nil, nil, errors.Join(err, s.Close(), ns.Close())
	}
	families, err := kernelFamilies(ns)
	if err != nil {
		return nil, nil, errors.Join(err, n.close(), s.Close(), ns.Close())
	}
	known := &uplinkLinks{byInterface: map[string]uplinkLink{}}
	u := &uplinks{opt: opt, ns: ns, host: s, known: known, replies: &replies{n}, families: families}
	return u, &uplinkAddresses{opt: opt, ns: ns, host: s, known: known, families: families}, nil
}

// kind returns the kind of uplinks.
func (u *uplinks) kind() southbound.Kind[uplink] {
	return southbound.Kind[uplink]{
		Name:      "linux uplink",
		Prefix:    kv.SinkUplinkPrefix,
		Read:      u.read,
		Create:    u.create,
		Update:    u.update,
		Delete:    u.remove,
		Recreates: recreatesUplink,
		Retrieve:  u.retrieve,
		Notes:     u.known.notes,
		Watch:     u.watch,
		Close:     u.close,
	}
}

// close closes the sockets. What was made stays.
func (u *uplinks) close() error {
	return errors.Join(u.replies.nft.close(), u.host.Close(), u.ns.Close())
}

// uplink holds what a value says.
type uplink struct {
	iface    string
	mac      hardware
	table    uint32
	families []byte   // of its ranges
	routes   []object // of its table
	ranges   []netip.Prefix
	cloud    []netip.Prefix // the ranges, and those of the whole cloud network
}

// readUplink reads a value.
func readUplink(key string, value proto.Message) (want uplink, err error) {
	m, err := message[*kv.Uplink](value)
	if err != nil {
		return want, err
	}
	want.iface, want.table = m.GetInterface(), m.GetTable()
	switch {
	case want.iface == "" || key != kv.SinkUplinkPrefix+want.iface:
		return want, fmt.Errorf("its interface %q is not that of its key", want.iface)
	case !kv.IsUplinkTable(want.table):
		return want, fmt.Errorf("table %d: want that of an uplink, above %d", want.table, kv.UplinkTables)
	case len(m.GetRanges()) == 0:
		return want, errors.New("ranges: want the CIDR of its subnet")
	}
	if want.mac, err = readHardware("mac", m.GetMac()); err != nil {
		return want, err
	}
	for _, r := range m.GetRanges() {
		if err := want.readRange(r); err != nil {
			return want, err
		}
	}
	for _, text := range m.GetVpcCidrs() {
		p, err := routeDestination(text)
		if err != nil {
			return want, fmt.Errorf("vpc_cidrs: %w", err)
		}
		want.cloud = append(want.cloud, p)
	}
	want.cloud = append(want.cloud, want.ranges...)
	return want, nil
}

// readRange adds the routes of a range. An interface may have several ranges of a family:
// packets to others leave by the first gateway.
func (want *uplink) readRange(r *kv.SubnetRange) error {
	p, err := routeDestination(r.GetCidr())
	if err != nil {
		return fmt.Errorf("ranges: %w", err)
	}
	family := familyOf(p.Addr())
	if slices.Contains(want.ranges, p) {
		return fmt.Errorf("ranges: %s is there twice, want it once", p)
	}
	if !slices.Contains(want.families, family) {
		want.families = append(want.families, family)
	}
	want.ranges = append(want.ranges, p)
	want.routes = append(want.routes, object{kind: routeObject, prefix: p, table: want.table})
	if r.GetGateway() == "" {
		return nil
	}
	gateway, err := readAddr("gateway", r.GetGateway())
	if err != nil {
		return err
	}
	if familyOf(gateway) != family {
		return fmt.Errorf("gateway %s is not of the family of range %s", gateway, p)
	}
	if gateway.Is6() && !p.Contains(gateway) && !gateway.IsLinkLocalUnicast() { // the kernel looks for it in this table
		host := netip.PrefixFrom(gateway, gateway.BitLen())
		want.routes = append(want.routes, object{kind: routeObject, prefix: host, table: want.table})
	}
	o := object{kind: routeObject, prefix: defaultRoute(family), gateway: gateway, table: want.table}
	if !slices.ContainsFunc(want.routes, func(x object) bool { return x.prefix == o.prefix }) {
		want.routes = append(want.routes, o)
	}
	return nil
}

// kernelFamilies returns the families of addresses that the kernel has.
func kernelFamilies(ns *rtnl.Namespace) (all []byte, err error) {
	all = []byte{unix.AF_INET, unix.AF_INET6}
	err = ns.Do(func() error {
		_, err := readSetting("net.ipv6.conf.all.disable_ipv6")
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return all[:1], nil
	}
	return all, err
}

// read reads a value, and adds the routes behind all others.
func (u *uplinks) read(key string, value proto.Message) (want uplink, err error) {
	if want, err = readUplink(key, value); err != nil {
		return want, err
	}
	for _, family := range want.families {
		if !slices.Contains(u.families, family) {
			return want, fmt.Errorf("ranges: the kernel has no IPv6, which interface %s needs", want.iface)
		}
	}
	for _, family := range u.families {
		want.routes = append(want.routes, object{kind: rejectObject, prefix: defaultRoute(family), table: want.table})
	}
	return want, nil
}

// podsRules returns the rules to the routes of pods.
func podsRules(families []byte) (all []object) {
	for _, family := range families {
		all = append(all, object{kind: podsObject, prefix: defaultRoute(family), table: unix.RT_TABLE_MAIN})
	}
	return all
}

// recreatesUplink reports whether the table of an uplink changes, or its link: the rules and the
// proxy neighbours of its addresses lead there, and are made again with it. Of an incomplete
// uplink only the table is known, and the addresses are compared too.
func recreatesUplink(_ string, was southbound.Made[uplink], want uplink) bool {
	if !was.IsRead {
		old, _ := was.Message.(*kv.Uplink)
		return old.GetTable() != want.table
	}
	return was.Plan.table != want.table || was.Plan.mac != want.mac
}

// create makes an uplink, or repairs it. If the node has no link with its MAC, it fails: the
// addresses of the uplink are pending until Watch announces the link. Their packets are
// rejected meanwhile, but for those to pods of this node.
func (u *uplinks) create(_ context.Context, _ string, want uplink) error {
	if err := u.apply(want); err != nil {
		// What its pods need stays, and Watch waits for its link.
		u.known.end(want.iface, true) // before Watch sees what is removed here
		if undo := u.clear(want.table, true); undo != nil {
			return errors.Join(err, undo)
		}
		return southbound.Unchanged(err)
	}
	u.known.end(want.iface, false)
	return nil
}

// update changes the routes of an uplink. One that both values have is never missing.
func (u *uplinks) update(_ context.Context, _ string, _ southbound.Made[uplink], want uplink) error {
	return u.apply(want)
}

// apply makes an uplink as a value says.
func (u *uplinks) apply(want uplink) error {
	u.known.note(want, linkID{}, false) // Watch announces the link when it appears
	if err := u.connectPods(want); err != nil {
		return err
	}
	link, err := u.link(want)
	if err != nil {
		return southbound.Unchanged(err)
	}
	if err := u.prepare(want, link); err != nil {
		return err
	}
	have, err := tableRoutes(u.host, want.table)
	if err != nil {
		return err
	}
	foreign := func(p parsed) bool { return !p.ours && p.protocol != unix.RTPROT_KERNEL }
	if i := slices.IndexFunc(have, foreign); i >= 0 {
		return fmt.Errorf("%w: table %d has the %s", southbound.ErrForeign, want.table, have[i])
	}
	return u.host.Run(want.differences(have, link.linkID))
}

// connectPods makes what pods of this node need to reach each other, with or without a link:
// the rules to them, and forwarding.
func (u *uplinks) connectPods(want uplink) error {
	if err := (&forwarding{u.opt.Namespace, u.opt.Log}).turnOn(want.families); err != nil {
		return err
	}
	return u.shareRules()
}

// is reports whether a route is the wanted one through a link.
func (p parsed) is(o object, link uint32) bool {
	return p.object == o && (o.last() || p.index == link)
}

// differences returns the requests that make the routes of a table those of an uplink. A
// route to another gateway, or through another link, is replaced.
func (want uplink) differences(have []parsed, link linkID) (all []*rtnl.Request) {
	replaced := map[netip.Prefix]bool{}
	for _, o := range want.routes {
		if slices.ContainsFunc(have, func(p parsed) bool { return p.is(o, link.index) }) {
			continue
		}
		r := o.add(link)
		if !o.last() {
			replaced[o.prefix], r.Flags = true, unix.NLM_F_CREATE|unix.NLM_F_REPLACE
		}
		all = append(all, r)
	}
	for _, p := range have {
		wanted := slices.ContainsFunc(want.routes, func(o object) bool { return p.is(o, link.index) })
		wanted = wanted || replaced[p.prefix] && p.kind == routeObject
		if p.ours && !wanted {
			all = append(all, p.remove(linkID{index: p.index}))
		}
	}
	return all
}

// remove removes the table of an uplink, and with the last one the rules to the pods.
func (u *uplinks) remove(_ context.Context, _ string, was southbound.Made[uplink]) error {
	m, _ := was.Message.(*kv.Uplink)
	u.known.forget(m.GetInterface())
	return u.clear(m.GetTable(), u.known.remain())
}

// clear removes the routes of a table. more is set if there are other wanted uplinks, with
// or without a link: then the rules to the pods stay.
func (u *uplinks) clear(table uint32, more bool) error {
	have, err := tableRoutes(u.host, 0)
	if err != nil {
		return err
	}
	var all []*rtnl.Request
	for _, p := range have {
		switch {
		case !p.ours || !kv.IsUplinkTable(p.table):
		case p.table == table:
			all = append(all, p.remove(linkID{index: p.index}))
		default:
			more = true
		}
	}
	if more {
		return u.host.Run(all)
	}
	rules, err := listRules(u.host)
	if err != nil {
		return err
	}
	for _, p := range rules {
		if p.shared() {
			all = append(all, p.removal())
		}
	}
	return errors.Join(u.host.Run(all), u.replies.change(false))
}

// unknownUplink begins the keys of what no wanted value has.
const unknownUplink = kv.SinkUplinkPrefix + "table-"

// retrieve returns the wanted uplinks that are complete. Of others it returns the table
// alone.
func (u *uplinks) retrieve(_ context.Context, wanted []southbound.Wanted[uplink]) (all []controller.Value, err error) {
	routes, err := tableRoutes(u.host, 0)
	if err != nil {
		return nil, err
	}
	rules, err := listRules(u.host)
	if err != nil {
		return nil, err
	}
	links, err := listLinks(u.host, "")
	if err != nil {
		return nil, err
	}
	tables := map[uint32][]parsed{}
	for _, p := range routes {
		if p.ours && kv.IsUplinkTable(p.table) {
			tables[p.table] = append(tables[p.table], p)
		}
	}
	interfaces := map[string]bool{}
	var partial []controller.Value
	for _, v := range wanted {
		want := v.Plan
		interfaces[want.iface] = true
		found := tables[want.table]
		delete(tables, want.table)
		complete, err := u.complete(want, found, links)
		if err != nil {
			return nil, err
		}
		switch {
		case complete:
			u.known.end(want.iface, false)
			all = append(all, controller.Value{Key: v.Key, Message: v.Message})
		case len(found) > 0:
			partial = append(partial, controller.Value{Key: v.Key, Message: &kv.Uplink{Table: want.table}})
		}
	}
	u.known.retain(interfaces)
	shared, err := u.sharedComplete(rules, links)
	if err != nil {
		return nil, err
	}
	if !shared {
		for i, v := range all {
			all[i].Message = &kv.Uplink{Table: v.Message.(*kv.Uplink).GetTable()}
		}
	}
	all = append(all, partial...)
	for table := range tables {
		key := fmt.Sprint(unknownUplink, table)
		all = append(all, controller.Value{Key: key, Message: &kv.Uplink{Table: table}})
	}
	if len(all)+len(interfaces) == 0 && slices.ContainsFunc(rules, parsed.shared) {
		all = append(all, controller.Value{Key: unknownUplink + "0", Message: &kv.Uplink{}})
	}
	return all, nil
}

// complete reports whether an uplink is as its value says, and notes its link.
func (u *uplinks) complete(want uplink, have []parsed, links []hostLink) (bool, error) {
	u.known.note(want, linkID{}, false)
	link, err := selectLink(want, links)
	if err != nil {
		return false, nil //nolint:nilerr // it is not made then
	}
	u.known.note(want, link.linkID, link.up)
	if !link.up || len(have) != len(want.routes) {
		return false, nil
	}
	for _, o := range want.routes {
		if !slices.ContainsFunc(have, func(p parsed) bool { return p.is(o, link.index) }) {
			return false, nil
		}
	}
	return u.prepared(want, link)
}
