// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// uplinkLinks holds the links of the wanted uplinks. Any goroutine may call its methods.
type uplinkLinks struct {
	mu          sync.Mutex
	byInterface map[string]uplinkLink
}

// uplinkLink is the link of an uplink, as it was when the uplink was last compared.
type uplinkLink struct {
	linkID // its index is 0 while there is none
	mac    hardware
	up     bool
	note   string
	table  uint32
	failed bool // the last attempt to make the uplink that has ended
	cloud  []netip.Prefix
}

// note notes the link of an uplink.
func (k *uplinkLinks) note(want uplink, link linkID, up bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.byInterface[want.iface]
	k.byInterface[want.iface] = uplinkLink{
		linkID: link,
		mac:    want.mac,
		up:     up,
		note:   before.note,
		table:  want.table,
		failed: before.failed,
		cloud:  want.cloud,
	}
}

// end notes whether an attempt to make an uplink has failed. During the next attempt the
// announcements of what this one removes still arrive.
func (k *uplinkLinks) end(iface string, failed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.byInterface[iface]
	l.failed = failed
	k.byInterface[iface] = l
}

// failed reports whether the table is that of an uplink that could not be made. The routes
// that vanish from it are those of the failed attempt.
func (k *uplinkLinks) failed(table uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.byInterface {
		if l.table == table && l.failed {
			return true
		}
	}
	return false
}

// remark sets the text that Notes returns of an uplink, "" for none.
func (k *uplinkLinks) remark(iface, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.byInterface[iface]
	l.note = text
	k.byInterface[iface] = l
}

// forget drops an uplink that is removed.
func (k *uplinkLinks) forget(iface string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byInterface, iface)
}

// remain reports whether an uplink is wanted.
func (k *uplinkLinks) remain() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byInterface) > 0
}

// retain drops the uplinks that are not wanted.
func (k *uplinkLinks) retain(wanted map[string]bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.byInterface, func(iface string, _ uplinkLink) bool { return !wanted[iface] })
}

// of returns the link of an interface.
func (k *uplinkLinks) of(iface string) (link uplinkLink, found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.byInterface[iface]
	return l, l.index != 0
}

// changed reports whether an announced link is that of an uplink, and not as it was.
func (k *uplinkLinks) changed(have hostLink, gone bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.byInterface {
		same := l.linkID == have.linkID && l.up == have.up && l.mac == have.mac
		if (l.index == have.index || l.mac == have.mac) && (gone || !same) {
			return true
		}
	}
	return false
}

// notes returns the remarks on all uplinks, in order.
func (k *uplinkLinks) notes() (all []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.byInterface {
		if l.note != "" {
			all = append(all, l.note)
		}
	}
	slices.Sort(all)
	return all
}

// link returns the link of an uplink.
func (u *uplinks) link(want uplink) (hostLink, error) {
	links, err := listLinks(u.host, "")
	if err != nil {
		return hostLink{}, err
	}
	return selectLink(want, links)
}

// selectLink returns the link with the MAC of an uplink. Links that are stacked on another
// one share its MAC. Of a VLAN and the link below it the lower one counts. Of a bridge or a
// bond and its ports the upper one counts, through which the kernel routes.
func selectLink(want uplink, links []hostLink) (hostLink, error) {
	var found []hostLink
	for _, l := range links {
		if l.mac == want.mac && !strings.HasPrefix(l.alias, aliasPrefix) {
			found = append(found, l)
		}
	}
	among := func(index uint32) bool {
		return index != 0 && slices.ContainsFunc(found, func(l hostLink) bool { return l.index == index })
	}
	var names []string
	var chosen hostLink
	for _, l := range found {
		if among(l.master) || l.peerNSID == rtnl.Here && among(l.peer) {
			continue
		}
		names, chosen = append(names, l.name), l
	}
	switch {
	case len(names) == 0:
		return hostLink{}, fmt.Errorf("interface %s: the node has no link with the MAC %s yet", want.iface, want.mac)
	case len(names) > 1:
		return hostLink{}, fmt.Errorf("interface %s: links %s all have the MAC %s, want one",
			want.iface, strings.Join(names, ", "), want.mac)
	}
	return chosen, nil
}

// uplinkSetting is a setting of the kernel that an uplink needs.
type uplinkSetting struct {
	name, value string
	optional    bool // without it, packets pass, but later
}

// settings returns the settings that the link of an uplink needs.
func (want uplink) settings(link string) (all []uplinkSetting) {
	add := func(format, value string, optional bool) {
		all = append(all, uplinkSetting{fmt.Sprintf(format, link), value, optional})
	}
	for _, family := range want.families {
		if family == unix.AF_INET {
			add("net.ipv4.conf.%s.forwarding", "1", false)
			// Otherwise the kernel waits up to 0.8 s before it answers for a pod.
			add("net.ipv4.neigh.%s.proxy_delay", "0", true)
			continue
		}
		add("net.ipv6.conf.%s.disable_ipv6", "0", false)
		add("net.ipv6.conf.%s.forwarding", "1", false)
		add("net.ipv6.conf.%s.proxy_ndp", "1", false)
		// Otherwise the kernel answers for a pod with the address of another link as the
		// source, if this one has none of its own, and the cloud may drop that.
		add("net.ipv6.conf.%s.use_oif_addrs_only", "1", false)
		add("net.ipv6.neigh.%s.proxy_delay", "0", true)
	}
	return all
}

const (
	allFilter    = "net.ipv4.conf.all.rp_filter"
	linkFilter   = "net.ipv4.conf.%s.rp_filter"
	strictFilter = "1"
	looseFilter  = "2"
)

// strict reports whether the kernel checks the sources of packets from a link strictly: it
// would drop those to the node's own address on an uplink.
func strict(link string) (bool, error) {
	all, err := readSetting(allFilter)
	if err != nil {
		return false, err
	}
	have, err := readSetting(fmt.Sprintf(linkFilter, link))
	return have != looseFilter && (have == strictFilter || all == strictFilter), err
}

// prepare sets a link up, and makes its settings as an uplink needs them. They stay when the
// uplink is removed.
func (u *uplinks) prepare(want uplink, link hostLink) error {
	err := u.ns.Do(func() error {
		for _, s := range want.settings(link.name) {
			err := writeSetting(s.name, s.value)
			if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(s.name, ".disable_ipv6") {
				const text = "link %s: the kernel has no IPv6, which a range of interface %s needs"
				return fmt.Errorf(text, link.name, want.iface)
			}
			if err != nil && s.optional {
				u.opt.Log.Warn("a setting of an uplink cannot be made: neighbours learn of pods later", "error", err)
				continue
			}
			if err != nil {
				return err
			}
		}
		if s, err := strict(link.name); err != nil || !s {
			return err
		}
		return writeSetting(fmt.Sprintf(linkFilter, link.name), looseFilter)
	})
	if err != nil {
		return err
	}
	if !link.up {
		r := changeLink("set up "+link.name, link.index, unix.IFF_UP, unix.IFF_UP, nil)
		if err := u.host.Run([]*rtnl.Request{r}); err != nil {
			return err
		}
	}
	u.known.note(want, link.linkID, true)
	return u.checkAddress(want, link)
}

// prepared reports whether the settings are as an uplink needs them. A setting that only
// makes packets faster does not count: it may be impossible to write.
func (u *uplinks) prepared(want uplink, link hostLink) (is bool, err error) {
	if is, err = (&forwarding{u.opt.Namespace, u.opt.Log}).on(want.families); err != nil || !is {
		return false, err
	}
	err = u.ns.Do(func() error {
		for _, s := range want.settings(link.name) {
			have, err := readSetting(s.name)
			switch {
			case errors.Is(err, fs.ErrNotExist): // the link has just gone
				is = false
			case err != nil:
				return err
			case have != s.value && !s.optional:
				is = false
			}
		}
		s, err := strict(link.name)
		is = is && !s
		if errors.Is(err, fs.ErrNotExist) {
			is, err = false, nil
		}
		return err
	})
	if err == nil && is {
		err = u.checkAddress(want, link)
	}
	return is, err
}

// checkAddress notes a link that has no IPv4 address in one of its ranges. The kernel then
// asks for neighbours with the address of another link, which a cloud may drop.
func (u *uplinks) checkAddress(want uplink, link hostLink) error {
	text := ""
	have, err := readObjects(u.host, link.index)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	var lacking []netip.Prefix
	for _, p := range want.ranges {
		if !p.Addr().Is4() {
			continue
		}
		if have[link.index].hasAddressIn(p) {
			lacking = nil
			break
		}
		lacking = append(lacking, p)
	}
	if len(lacking) > 0 {
		text = fmt.Sprintf("link %s of interface %s has no address in %s: configure it as the cloud says, such as by "+
			"DHCP: other machines of that subnet may not answer it", link.name, want.iface, strings.Join(texts(lacking), " or "))
	}
	u.known.remark(want.iface, text)
	return nil
}
