// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// uplinkAddresses makes the values below "uplinkaddress/". Such a value is a
// rule and a proxy neighbour. By the rule packets from a pod's address use the table of its
// uplink. By the proxy neighbour the node answers for the address on that link. Neighbours are
// told of a new address at once. While the uplink is not made, the rule rejects the packets:
// they leave through no other link.
type uplinkAddresses struct {
	opt   Options
	ns    *rtnl.Namespace // of the descriptor of uplinks, which closes it
	host  *rtnl.Socket    // likewise
	known *uplinkLinks

	families []byte // of the kernel
	warned   sync.Once
}

// kind returns the kind of addresses.
func (u *uplinkAddresses) kind() southbound.Kind[uplinkAddress] {
	return southbound.Kind[uplinkAddress]{
		Name:     "linux uplink address",
		Prefix:   kv.SinkSourcePrefix,
		Read:     readUplinkAddress,
		Needs:    uplinkAddress.uplink,
		StandIn:  uplinkAddress.rejected,
		Create:   u.create,
		Delete:   u.remove,
		Retrieve: u.retrieve,
		Watch:    u.watch,
	}
}

// uplinkAddress holds what a value says.
type uplinkAddress struct {
	address netip.Addr
	iface   string // "": the packets from the address are rejected
	rule    object
}

// uplink returns the key of the uplink.
func (want uplinkAddress) uplink() []string {
	if want.iface == "" {
		return nil
	}
	return []string{kv.SinkUplinkPrefix + want.iface}
}

// rejected returns the value whose rule rejects all packets from the address.
func (want uplinkAddress) rejected() proto.Message {
	if want.iface == "" {
		return nil
	}
	return &kv.UplinkAddress{Address: want.address.String()}
}

// readUplinkAddress reads a value. Without an interface, packets from the address are rejected.
func readUplinkAddress(key string, value proto.Message) (want uplinkAddress, err error) {
	m, err := message[*kv.UplinkAddress](value)
	if err != nil {
		return want, err
	}
	if want.address, err = readAddr("address", m.GetAddress()); err != nil {
		return want, err
	}
	want.iface = m.GetInterface()
	switch {
	case key != kv.SinkSourcePrefix+want.address.String():
		return want, fmt.Errorf("its address %s is not that of its key", want.address)
	case want.iface != "" && !kv.IsUplinkTable(m.GetTable()):
		return want, fmt.Errorf("table %d: want that of an uplink, above %d", m.GetTable(), kv.UplinkTables)
	case want.iface == "" && m.GetTable() != 0:
		return want, fmt.Errorf("table %d without an interface: want both or none", m.GetTable())
	}
	want.rule = object{kind: sourceObject, prefix: whole(want.address), table: m.GetTable()}
	return want, nil
}

// addressObjects holds the objects of ours of each address, and those of other programs that
// are in their way.
type addressObjects struct {
	rules   []parsed
	proxies []parsed
	foreign []parsed // proxy neighbours
}

// read returns the objects of addresses of families.
func (u *uplinkAddresses) read(families ...byte) (map[netip.Addr]*addressObjects, error) {
	all := map[netip.Addr]*addressObjects{}
	at := func(p parsed) *addressObjects {
		a := p.prefix.Addr()
		if all[a] == nil {
			all[a] = &addressObjects{}
		}
		return all[a]
	}
	rules, err := listRules(u.host)
	if err != nil {
		return nil, err
	}
	for _, p := range rules {
		if p.kind == sourceObject {
			at(p).rules = append(at(p).rules, p)
		}
	}
	proxies, err := listProxies(u.host, families...)
	if err != nil {
		return nil, err
	}
	for _, p := range proxies {
		if o := at(p); p.ours {
			o.proxies = append(o.proxies, p)
		} else {
			o.foreign = append(o.foreign, p)
		}
	}
	return all, nil
}

// is reports whether the objects are exactly those of a value.
func (o *addressObjects) is(want uplinkAddress, link linkID) bool {
	if o == nil || len(o.rules) != 1 || o.rules[0].object != want.rule {
		return false
	}
	if want.iface == "" {
		return len(o.proxies) == 0
	}
	return len(o.proxies) == 1 && link.index != 0 && o.proxies[0].index == link.index
}

// create makes the rule and the proxy neighbour of an address, or corrects those that are
// there. The rule comes first: before the link answers for the address, replies have their
// way.
func (u *uplinkAddresses) create(_ context.Context, _ string, want uplinkAddress) error {
	link, found := u.known.of(want.iface)
	if want.iface != "" && !found {
		return fmt.Errorf("interface %s of the address has no link", want.iface)
	}
	all, err := u.read(familyOf(want.address))
	if err != nil {
		return err
	}
	have := all[want.address]
	if have == nil {
		have = &addressObjects{}
	}
	for _, p := range have.foreign {
		if p.index == link.index && link.index != 0 {
			return fmt.Errorf("%w: the %s on link %s", southbound.ErrForeign, p, link.name)
		}
	}
	requests := have.changes(want, link.linkID)
	first := 0
	if len(requests) > 0 && requests[0].Kind == unix.RTM_NEWRULE {
		first = 1 // with a foreign rule in its way nothing is changed
	}
	err = u.host.Run(requests[:first])
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %w", southbound.ErrForeign, err)
	}
	if err == nil {
		err = u.host.Run(requests[first:])
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(requests, func(r *rtnl.Request) bool { return r.Kind == unix.RTM_NEWNEIGH }) {
		u.tell(link, want.address)
	}
	return nil
}

// tell announces an address on its link. Without it neighbours learn the address later.
func (u *uplinkAddresses) tell(link uplinkLink, address netip.Addr) {
	if err := announce(u.ns, link.linkID, link.mac, address); err != nil {
		u.warned.Do(func() {
			u.opt.Log.Warn("neighbours on an uplink are not told of addresses that move to it", "error", err)
		})
	}
}

// changes returns the requests that make the objects those of a value. A rule is added
// before another one is removed: of two, the first one counts.
func (o *addressObjects) changes(want uplinkAddress, link linkID) (all []*rtnl.Request) {
	if !slices.ContainsFunc(o.rules, func(p parsed) bool { return p.object == want.rule }) {
		r := want.rule.add(linkID{})
		r.Allow = nil // a rule that is there is one of another program
		all = append(all, r)
	}
	for _, p := range o.rules {
		if p.object != want.rule {
			all = append(all, p.removal())
		}
	}
	proxied := false
	for _, p := range o.proxies {
		if want.iface != "" && p.index == link.index {
			proxied = true
			continue
		}
		all = append(all, p.remove(linkID{index: p.index}))
	}
	if want.iface != "" && !proxied {
		all = append(all, object{kind: proxyObject, prefix: want.rule.prefix}.add(link))
	}
	return all
}

// remove removes the objects of an address. When it returns, the node does not answer for
// the address any more.
func (u *uplinkAddresses) remove(_ context.Context, key string, _ southbound.Made[uplinkAddress]) error {
	a, err := netip.ParseAddr(strings.TrimPrefix(key, kv.SinkSourcePrefix))
	if err != nil {
		return nil //nolint:nilerr // an impossible value was never made
	}
	all, err := u.read(familyOf(a))
	if err != nil {
		return err
	}
	have := all[a]
	if have == nil {
		return nil
	}
	var requests []*rtnl.Request
	for _, p := range have.proxies {
		requests = append(requests, p.remove(linkID{index: p.index}))
	}
	for _, p := range have.rules {
		requests = append(requests, p.removal())
	}
	return u.host.Run(requests)
}

// retrieve returns the wanted addresses that are complete, and those that the value stands in
// for that rejects their packets. Of others it returns a description.
func (u *uplinkAddresses) retrieve(
	_ context.Context,
	wanted []southbound.Wanted[uplinkAddress],
) ([]controller.Value, error) {
	have, err := u.read(u.families...)
	if err != nil {
		return nil, err
	}
	var all []controller.Value
	for _, v := range wanted {
		want := v.Plan
		link, _ := u.known.of(want.iface)
		o := have[want.address]
		if o.is(want, link.linkID) {
			all = append(all, controller.Value{Key: v.Key, Message: v.Message})
			delete(have, want.address)
			continue
		}
		rejected := want.rejected()
		if instead, err := readUplinkAddress(v.Key, rejected); err == nil && o.is(instead, linkID{}) {
			all = append(all, controller.Value{Key: v.Key, Message: rejected})
			delete(have, want.address)
		}
	}
	for a, o := range have {
		if len(o.rules)+len(o.proxies) > 0 {
			all = append(all, controller.Value{Key: kv.SinkSourcePrefix + a.String(), Message: o.describe(a)})
		}
	}
	return all, nil
}

// describe returns a value that is like no wanted one.
func (o *addressObjects) describe(a netip.Addr) *kv.UplinkAddress {
	m := &kv.UplinkAddress{Address: a.String(), Table: 1}
	for _, p := range o.rules {
		m.Table = max(m.Table, p.table)
	}
	return m
}
