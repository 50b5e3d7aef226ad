// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// unknownPrefix begins the keys of what a crash has left, and of no wanted value: links of
// ours that have no alias yet, and rules of links that are gone.
const unknownPrefix = kv.SinkPodPrefix + "link/"

// retrieve returns the wires that are made. One that is complete is returned as wanted; of
// an incomplete one, and of one that is not wanted, only the host end and the addresses are
// returned. A wanted value without a wire is returned as it is.
func (w *wires) retrieve(ctx context.Context, wanted []southbound.Wanted[*wirePlan]) ([]controller.Value, error) {
	var all []controller.Value
	plans, messages := map[string]*wirePlan{}, map[string]controller.Value{}
	byName := map[string]string{}
	for _, v := range wanted {
		messages[v.Key] = controller.Value{Key: v.Key, Message: v.Message}
		if p := v.Plan; p != nil {
			plans[v.Key], byName[p.hostName] = p, v.Key
		}
	}
	s, err := w.ns.Dial() // many reads: a change that is made meanwhile need not wait
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }() // it was only read
	links, err := listLinks(s, vethKind)
	if err != nil {
		return nil, err
	}
	have, err := readObjects(s, 0)
	if err != nil {
		return nil, err
	}
	rules, err := listRules(s)
	if err != nil {
		return nil, err
	}
	keys, named, linked := map[uint32]string{}, map[string]string{}, map[string]bool{}
	for _, link := range links {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if !link.ours() || link.detached() {
			continue
		}
		key := link.key()
		if key == "" {
			if key = byName[link.name]; key == "" {
				key = unknownPrefix + link.name
			}
		}
		keys[link.index], linked[key] = key, true
		objects := hostObjects(link.linkID, have[link.index], rules)
		p := plans[key]
		if p != nil && p.isolated() {
			named[link.name] = key
		}
		if p != nil && w.compare(s, p, link, objects) == nil {
			all = append(all, messages[key])
		} else {
			all = append(all, controller.Value{Key: key, Message: remains(link, objects)})
		}
	}
	for name, table := range strayRules(links, rules) {
		if byName[name] == "" {
			wire := &kv.Wire{HostIfName: name, Table: table}
			all = append(all, controller.Value{Key: unknownPrefix + name, Message: &kv.PodNetwork{Wire: wire}})
		}
	}
	var live []netip.Addr
	for key, v := range messages {
		switch {
		case linked[key] && plans[key] != nil:
			live = append(live, plans[key].addresses...)
		case plans[key] == nil && !linked[key]:
			all = append(all, v)
		}
	}
	if err := w.conntrack.inherit(live); err != nil {
		w.opt.Log.Warn("tracked connections that an earlier process has left are not known", "error", err)
	}
	w.mu.Lock()
	w.keys, w.named = keys, named
	for key := range plans {
		w.begun[key] = true
	}
	w.mu.Unlock()
	return all, nil
}

// strayRules returns the tables of the rules of links that are gone, by name.
func strayRules(links []hostLink, rules []parsed) map[string]uint32 {
	tables := map[string]uint32{}
	for _, r := range rules {
		if strings.HasPrefix(r.name, wirePrefix) && !isNetworkLink(r.name) {
			tables[r.name] = r.table
		}
	}
	for _, l := range links {
		delete(tables, l.name)
	}
	return tables
}

// remains returns what the kernel shows of a wire at the host end.
func remains(link hostLink, have *linkObjects) *kv.PodNetwork {
	value := &kv.PodNetwork{Wire: &kv.Wire{HostIfName: link.name}}
	for o := range have.ours {
		switch {
		case o.kind == neighbourObject:
			value.Addresses = append(value.Addresses, o.prefix.String())
		case o.kind == ruleObject, o.kind == routeObject && o.table != unix.RT_TABLE_MAIN:
			value.Wire.Table = o.table
		}
	}
	slices.Sort(value.Addresses)
	return value
}

// readAddresses returns the addresses of a pod, without those that are not valid.
func readAddresses(pod *kv.PodNetwork) (all []netip.Addr) {
	for _, text := range pod.GetAddresses() {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			all = append(all, prefix.Addr())
		}
	}
	return all
}
