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

// uplinkAddresses is the descriptor of the values below "uplinkaddress/". Such a value is a
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

var (
	_ southbound.Descriptor  = (*uplinkAddresses)(nil)
	_ southbound.Substituter = (*uplinkAddresses)(nil)
	_ southbound.Watcher     = (*uplinkAddresses)(nil)
)

func (u *uplinkAddresses) Name() string { return "linux uplink address" }

func (u *uplinkAddresses) Handles(key string) bool {
	return strings.HasPrefix(key, kv.SinkSourcePrefix)
}

func (u *uplinkAddresses) Validate(key string, value proto.Message) error {
	want, err := readUplinkAddress(key, value)
	if err == nil && want.iface == "" {
		return errors.New("interface is empty: want that of the address")
	}
	return err
}

// Dependencies returns the uplink.
func (u *uplinkAddresses) Dependencies(_ string, value proto.Message) []string {
	if m, ok := value.(*kv.UplinkAddress); ok && m.GetInterface() != "" {
		return []string{kv.SinkUplinkPrefix + m.GetInterface()}
	}
	return nil
}

// Substitute returns the value whose rule rejects all packets from the address.
func (u *uplinkAddresses) Substitute(_ string, value proto.Message) proto.Message {
	m, ok := value.(*kv.UplinkAddress)
	if !ok || m.GetInterface() == "" {
		return nil
	}
	return &kv.UplinkAddress{Address: m.GetAddress()}
}

// uplinkAddress holds what a value says.
type uplinkAddress struct {
	address netip.Addr
	iface   string // "": the packets from the address are rejected
	rule    object
}

// readUplinkAddress reads a value.
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

// Create makes the rule and the proxy neighbour of an address, or corrects those that are
// there. The rule comes first: before the link answers for the address, replies have their
// way.
func (u *uplinkAddresses) Create(_ context.Context, key string, value proto.Message) error {
	want, err := readUplinkAddress(key, value)
	if err != nil {
		return err
	}
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

// Update changes the objects of an address.
func (u *uplinkAddresses) Update(ctx context.Context, key string, _, value proto.Message) error {
	return u.Create(ctx, key, value)
}

// Delete removes the objects of an address. When it returns, the node does not answer for
// the address any more.
func (u *uplinkAddresses) Delete(_ context.Context, key string, _ proto.Message) error {
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

// Retrieve returns the wanted addresses that are complete, and those that the value stands in
// for that rejects their packets. Of others it returns a description.
func (u *uplinkAddresses) Retrieve(_ context.Context, wanted []controller.Value) ([]controller.Value, error) {
	have, err := u.read(u.families...)
	if err != nil {
		return nil, err
	}
	var all []controller.Value
	for _, v := range wanted {
		want, err := readUplinkAddress(v.Key, v.Message)
		if err != nil {
			continue
		}
		link, _ := u.known.of(want.iface)
		o := have[want.address]
		if o.is(want, link.linkID) {
			all = append(all, v)
			delete(have, want.address)
			continue
		}
		rejected := u.Substitute(v.Key, v.Message)
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
