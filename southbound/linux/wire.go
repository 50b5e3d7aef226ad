// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// attempts limits the repetitions of a change that meets an older wire, or another program.
	attempts = 4
	// localWait is the first wait for the local route of an address. Each further one is
	// twice as long, up to localPatience.
	localWait     = 10 * time.Microsecond
	localPatience = 2 * time.Second
	// lossWait is the first of these waits after which it is asked whether the address is
	// still there.
	lossWait = time.Millisecond
)

// errLost means that another program has removed a part of a wire while it was made.
var errLost = errors.New("another program has removed it meanwhile")

// wires makes the wires of pods: pairs of veth links with their addresses,
// neighbours, routes and rules. The keys are pod/...; a value without a wire has no object
// and is always made.
type wires struct {
	opt       Options
	ns        *rtnl.Namespace // of the host ends
	host      *rtnl.Socket
	sweeper   *rtnl.Socket
	conntrack *conntrack

	// changing excludes the removal of a batch while a wire is made, so that a creation
	// waits for one batch at most.
	changing sync.Mutex

	mu      sync.Mutex
	keys    map[uint32]string // of the wires that are made, by the index of the host end
	named   map[string]string // likewise, of those with a rule, by its name
	begun   map[string]bool   // keys of wires that this process has made, or an earlier one
	changed chan struct{}     // has an element after each change: Sweep waits for a pause
}

// Wires returns the kind of wires alone, for a switch that reads the packets at their host ends.
func Wires(opt Options) (*southbound.Descriptor, error) {
	w, err := newWires(opt)
	if err != nil {
		return nil, err
	}
	return w.kind().Descriptor(), nil
}

// newWires opens the network namespace of the host ends. It changes nothing.
func newWires(opt Options) (*wires, error) {
	opt = opt.withDefaults()
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, err
	}
	w := &wires{
		opt:     opt,
		ns:      ns,
		keys:    map[uint32]string{},
		named:   map[string]string{},
		begun:   map[string]bool{},
		changed: make(chan struct{}, 1),
	}
	if w.host, err = ns.Dial(); err == nil {
		w.sweeper, err = ns.Dial()
	}
	if err == nil {
		w.conntrack, err = openConntrack(ns)
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// kind returns the kind of wires. A value without a wire has no plan.
func (w *wires) kind() southbound.Kind[*wirePlan] {
	return southbound.Kind[*wirePlan]{
		Name:     "linux wire",
		Prefix:   kv.SinkPodPrefix,
		Read:     w.read,
		Needs:    (*wirePlan).needs,
		Create:   w.create,
		Update:   w.update,
		Delete:   w.remove,
		Retrieve: w.retrieve,
		Inspect:  w.inspect,
		Sweep:    w.sweep,
		Watch:    w.watch,
		Close:    w.close,
	}
}

// close closes the sockets. The wires stay.
func (w *wires) close() error {
	errs := []error{w.ns.Close()}
	for _, s := range []*rtnl.Socket{w.host, w.sweeper} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if w.conntrack != nil {
		errs = append(errs, w.conntrack.close())
	}
	return errors.Join(errs...)
}

// create makes a wire, or repairs the one that is there. After an error the wire is
// detached.
func (w *wires) create(ctx context.Context, _ string, p *wirePlan) error {
	return w.ensure(ctx, p, true)
}

// update makes a wire like its plan. The pair of links stays unless the pod's namespace or the
// name of an interface differs.
func (w *wires) update(ctx context.Context, key string, was southbound.Made[*wirePlan], p *wirePlan) error {
	before, _ := was.Message.(*kv.PodNetwork)
	if name := before.GetWire().GetHostIfName(); name != "" && (p == nil || name != p.hostName) {
		if err := w.remove(ctx, key, was); err != nil {
			return err
		}
	}
	return w.ensure(ctx, p, false)
}

// ensure makes the wire of a plan. fresh means that there is probably none.
func (w *wires) ensure(ctx context.Context, p *wirePlan, fresh bool) error {
	if p == nil {
		return nil
	}
	w.changing.Lock()
	defer w.changing.Unlock()
	defer w.noteChange()
	ns, err := openPod(p)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // it was only read
	if ns.ID() == w.ns.ID() {
		return fmt.Errorf("network namespace %s is that of the node: want the pod's own", p.netns)
	}
	if err := w.confirm(p, ns); err != nil {
		return err
	}
	if err := w.conntrack.remove(p.addresses); err != nil {
		return err
	}
	if p.isolated() {
		loss := fmt.Sprintf("a pod in table %d would be cut off", p.table)
		if err := w.ns.Do(func() error { return checkFilter(loss) }); err != nil {
			return err
		}
	}
	for range attempts {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var link hostLink
		if fresh {
			link, err = w.add(p, ns)
		} else {
			link, err = w.find(p, ns)
		}
		switch {
		case err == nil && link.index != 0:
			if fresh {
				err = w.dress(p, ns, link)
			} else {
				err = w.repair(p, ns, link)
			}
			if err == nil || !errors.Is(err, errLost) && !w.lost(link) {
				return err
			}
		case err != nil && (!errors.Is(err, unix.EEXIST) || errors.Is(err, southbound.ErrForeign)):
			return err
		}
		fresh = !fresh
	}
	return fmt.Errorf("make link %s: other programs change it at the same time", p.hostName)
}

// add makes a pair of links; the end in the pod's namespace is down.
func (w *wires) add(p *wirePlan, ns *rtnl.Namespace) (hostLink, error) {
	pod := p.podPlan().birth(p.podName).U32(unix.IFLA_NET_NS_FD, uint32(ns.Fd()))
	host := p.hostPlan().birth(p.hostName).Nest(unix.IFLA_LINKINFO, rtnl.Message(nil).
		Text(unix.IFLA_INFO_KIND, vethKind).
		Nest(unix.IFLA_INFO_DATA, rtnl.Message(nil).Nest(vethPeer, pod)))
	return makeLink(
		w.host,
		fmt.Sprintf("make the pair of links %s and %s in %s", p.hostName, p.podName, p.netns),
		p.hostName,
		host,
	)
}

// dress gives a new pair of links all that the plan has. After an error the wire is
// detached.
func (w *wires) dress(p *wirePlan, ns *rtnl.Namespace, link hostLink) error {
	w.remember(link.linkID, p) // before it is complete: damage after that is not missed
	err := func() error {
		s, err := ns.Dial()
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		// The host end last: its link then has a carrier at once, which spares the kernel one
		// walk through all IPv6 routes of the node.
		pod := hostLink{linkID: linkID{link.peer, p.podName}, mtu: p.mtu, mac: p.podMAC}
		all := append(p.podPlan().requests(pod), p.pod.differences(nil).requests(pod.linkID)...)
		if err := w.changePod(p, ns, s, all); err != nil {
			return err
		}
		if err := p.hostPlan().writeSettings(link, w.ns.Do); err != nil {
			return err
		}
		all = append(p.hostPlan().requests(link), p.host.differences(nil).requests(link.linkID)...)
		if err := w.changeHost(link, all); err != nil {
			return err
		}
		return w.synchronize(s, p, link)
	}()
	if err != nil {
		return errors.Join(err, w.detach(link.linkID, p.key, p.table))
	}
	return nil
}

// synchronize waits until both ends take and transmit packets, which the kernel prepares in
// the background. It drops what the end that was set up first transmits before its carrier
// is noticed. Since Linux 6.8 a request for the link does not return before that. The
// kernel also drops what arrives for an IPv6 address before its local route is there.
func (w *wires) synchronize(pod *rtnl.Socket, p *wirePlan, link hostLink) error {
	if _, _, err := getLink(pod, p.podName); err != nil {
		return fmt.Errorf("in %s: %w", p.netns, err)
	}
	for _, side := range []struct {
		socket  *rtnl.Socket
		objects objects
		index   uint32
	}{{pod, p.pod, link.peer}, {w.host, p.host, link.index}} {
		for o := range side.objects {
			if o.kind != addressObject || o.prefix.Addr().Is4() {
				continue
			}
			if err := w.awaitLocal(side.socket, o, side.index); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitLocal waits until the kernel takes packets for an address of the link with an index.
// It ends with errLost if the link has lost the address: there will be no route then.
func (w *wires) awaitLocal(s *rtnl.Socket, o object, index uint32) error {
	a := o.prefix.Addr()
	body := make(rtnl.Message, unix.SizeofRtMsg)
	body[0], body[1] = familyOf(a), byte(a.BitLen())
	body = body.Attr(unix.RTA_DST, a.AsSlice())
	for wait := localWait; wait <= localPatience; wait *= 2 {
		var local bool
		r := &rtnl.Request{
			What:  "get the route to " + a.String(),
			Kind:  unix.RTM_GETROUTE,
			Body:  body,
			Allow: []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH},
			Each: func(kind uint16, b []byte) {
				local = local || kind == unix.RTM_NEWROUTE && len(b) >= unix.SizeofRtMsg && b[7] == unix.RTN_LOCAL
			},
		}
		if err := s.Run([]*rtnl.Request{r}); err != nil || local {
			return err
		}
		if wait >= lossWait {
			have, err := readObjects(s, index)
			if errors.Is(err, unix.ENODEV) || err == nil && !have[index].hasAddress(o.prefix) {
				return fmt.Errorf("%s: %w", o, errLost)
			}
		}
		<-w.opt.After(wait)
	}
	return fmt.Errorf("address %s: the kernel has not made its local route", a)
}

// lost reports whether a link that was there is gone.
func (w *wires) lost(link hostLink) bool {
	have, found, err := getLink(w.host, link.name)
	return err == nil && (!found || have.index != link.index)
}

// changeHost runs requests about the host end.
func (w *wires) changeHost(link hostLink, all []*rtnl.Request) error {
	err := w.runWithIPv6(w.ns, w.host, link.name, all)
	if errors.Is(err, unix.EEXIST) {
		return w.takeRoutes(link, all)
	}
	return err
}

// changePod runs requests about the pod's end.
func (w *wires) changePod(p *wirePlan, ns *rtnl.Namespace, s *rtnl.Socket, all []*rtnl.Request) error {
	err := w.runWithIPv6(ns, s, p.podName, all)
	if errors.Is(err, unix.EEXIST) {
		if other := w.ownRoute(s, all); other != "" {
			err = fmt.Errorf("the pod has a route to the same destination on %s, which this agent has made: "+
				"a pod can have one interface of a network: give %s a pool of another network", other, p.podName)
		} else {
			err = fmt.Errorf("%w: %w", southbound.ErrForeign, err)
		}
	}
	if err != nil {
		return fmt.Errorf("in %s: %w", p.netns, err)
	}
	return nil
}

// ownRoute returns the pod's end of another wire of ours that has the destination of a
// route that is there already, "" if there is none.
func (w *wires) ownRoute(s *rtnl.Socket, all []*rtnl.Request) string {
	links, err := listLinks(s, vethKind)
	if err != nil {
		return ""
	}
	for _, r := range all {
		want, ok := parsed{}, false
		if r.Kind == unix.RTM_NEWROUTE && errors.Is(r.Err, unix.EEXIST) {
			want, ok = parseRoute(r.Body)
		}
		if !ok {
			continue
		}
		have, err := findRoutes(s, want.prefix, want.table)
		if err != nil {
			return ""
		}
		for _, route := range have {
			i := slices.IndexFunc(links, func(l hostLink) bool { return l.index == route.index })
			if i >= 0 && w.keyOf(links[i].peer) != "" {
				return links[i].name
			}
		}
	}
	return ""
}

// runWithIPv6 runs requests, and repeats those that failed because IPv6 is turned off on
// the link: the pod has an IPv6 address, so it is turned on there.
func (w *wires) runWithIPv6(ns *rtnl.Namespace, s *rtnl.Socket, link string, all []*rtnl.Request) error {
	err := s.Run(all)
	off := func(r *rtnl.Request) bool { return r.Kind == unix.RTM_NEWADDR && errors.Is(r.Err, unix.EACCES) }
	if !slices.ContainsFunc(all, off) {
		return err
	}
	setting := "net.ipv6.conf." + link + ".disable_ipv6"
	if err := ns.Do(func() error { return writeSetting(setting, "0") }); err != nil {
		return fmt.Errorf("turn IPv6 on for %s, which has an IPv6 address: %w", link, err)
	}
	return s.Run(slices.DeleteFunc(slices.Clone(all), func(r *rtnl.Request) bool { return r.Err == nil }))
}

// takeRoutes repeats the routes of a batch that failed because there are routes to their
// destinations. Those of our wires are replaced, and these wires are detached: the ledger
// has given the address to the newer one, so the deletion of the older one has failed.
// Those of other programs are errors.
func (w *wires) takeRoutes(link hostLink, all []*rtnl.Request) error {
	var again []*rtnl.Request
	older, addresses := map[uint32]uint32{}, []netip.Addr{}
	for _, r := range all {
		switch {
		case r.Err == nil:
			continue
		case r.Kind != unix.RTM_NEWROUTE || !errors.Is(r.Err, unix.EEXIST):
			return r.Err
		}
		want, ok := parseRoute(r.Body)
		if !ok {
			return r.Err
		}
		have, err := findRoutes(w.host, want.prefix, want.table)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(have, func(p parsed) bool { return !p.ours }); i >= 0 {
			return fmt.Errorf("%w: %s of link %d; %w", southbound.ErrForeign, have[i], have[i].index, r.Err)
		}
		for _, route := range have {
			older[route.index] = want.table
		}
		r.Flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		again, addresses = append(again, r), append(addresses, want.prefix.Addr())
	}
	w.opt.Log.Warn("an address had a route to another wire", "link", link.name, "routes", len(again))
	delete(older, link.index)
	if err := w.detachOlder(older, addresses); err != nil {
		return err
	}
	return w.host.Run(again)
}

// detachOlder detaches the wires among links, which have routing tables by index, and
// removes the tracked connections of addresses.
func (w *wires) detachOlder(older map[uint32]uint32, addresses []netip.Addr) error {
	if len(older) == 0 {
		return nil
	}
	links, err := listLinks(w.host, vethKind)
	if err != nil {
		return err
	}
	for _, l := range links {
		table, found := older[l.index]
		if !found || l.key() == "" || l.detached() {
			continue
		}
		w.opt.Log.Warn("the wire of another pod has the address: it is detached", "link", l.name, "key", l.key())
		if err := w.detach(l.linkID, l.key(), table); err != nil {
			return err
		}
	}
	if err := w.conntrack.forget(addresses); err != nil {
		return err
	}
	return w.conntrack.remove(addresses)
}

// remove detaches a wire: no packet from or to the pod passes any more. Before another wire
// gets one of its addresses, the connection tracking has no entry of that address. Sweep
// removes the links.
func (w *wires) remove(_ context.Context, key string, was southbound.Made[*wirePlan]) error {
	pod, ok := was.Message.(*kv.PodNetwork)
	if !ok || pod.GetWire() == nil {
		return nil
	}
	w.changing.Lock()
	defer w.changing.Unlock()
	defer w.noteChange()
	w.mu.Lock()
	delete(w.begun, key)
	w.mu.Unlock()
	name, table := pod.GetWire().GetHostIfName(), pod.GetWire().GetTable()
	link, found, err := getLink(w.host, name)
	switch {
	case err != nil:
	case found && (link.key() == key || link.key() == "" && link.ours()):
		err = w.detach(link.linkID, key, table)
	case !found: // it ended with the pod's namespace, but its rules have not
		err = w.host.Run(removeRulesOf(linkID{name: name}, table))
	}
	if err != nil {
		return err
	}
	return w.conntrack.forget(readAddresses(pod))
}

// removeRulesOf returns the requests that remove the rules of a link.
func removeRulesOf(link linkID, table uint32) (all []*rtnl.Request) {
	if table == 0 || table == unix.RT_TABLE_MAIN {
		return nil
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		all = append(all, object{kind: ruleObject, prefix: defaultRoute(family), table: table}.remove(link))
	}
	return all
}

// detach sets the host end down. The kernel then removes its routes, and neither accepts
// from it nor transmits to it; when the request returns, no packet is on its way. All that
// the pod may do to its own end changes nothing. The gateway's IPv4 address stays on the link,
// which does no harm: other wires have it too.
func (w *wires) detach(link linkID, key string, table uint32) error {
	w.mu.Lock()
	delete(w.keys, link.index)
	delete(w.named, link.name)
	w.mu.Unlock()
	attributes := rtnl.Message(nil).
		U32(unix.IFLA_GROUP, detachedGroup).
		Text(unix.IFLA_IFALIAS, aliasPrefix+key) // a wire that is half made has none
	down := changeLink("detach "+link.name, link.index, 0, unix.IFF_UP, attributes)
	down.Allow = []unix.Errno{unix.ENODEV}
	return w.host.Run(append([]*rtnl.Request{down}, removeRulesOf(link, table)...))
}

// remember notes that a wire is made.
func (w *wires) remember(link linkID, p *wirePlan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys[link.index], w.begun[p.key] = p.key, true
	if p.isolated() {
		w.named[link.name] = p.key
	}
}

// noteChange makes Sweep wait.
func (w *wires) noteChange() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}
