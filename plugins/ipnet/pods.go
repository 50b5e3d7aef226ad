// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// attachment holds the value of one attachment, and what it was rendered from.
type attachment struct {
	sinkKey string
	value   *kv.PodNetwork
	key     ledger.Key
	pod     ledger.Pod
	leases  []origin
	at      int // index in rendered.order

	round uint64 // the last resync that has found one of the leases
	found uint64 // the leases that it has found, as a bit mask
}

// origin is a lease of an attachment.
type origin struct {
	generation uint64
	prefix     netip.Prefix
	pool       string
	wiring     wiring
}

func originOf(l *ledger.Lease) origin {
	return origin{l.Generation, l.Prefix(), l.Pool, wiringOf(l)}
}

func wiringOf(l *ledger.Lease) wiring { return wiring{l.NetNS, l.NetNSID, l.Wired, l.MAC} }

// complete reports whether the resync in progress has found all leases, as far as the mask
// can tell.
func (a *attachment) complete() bool { return len(a.leases) <= 64 && a.found == 1<<len(a.leases)-1 }

// rendered holds the attachments of the last resync. The messages are in transactions and
// must not be changed.
type rendered struct {
	byGeneration map[uint64]*attachment
	order        []*attachment               // as the last resync has put them
	next         int                         // index in order of the attachment that is probably found next
	gateways     map[netip.Prefix]netip.Addr // of their blocks
	plan         *plan
	round        uint64 // number of resyncs
}

// find notes a lease that exists, and returns its attachment if that was rendered from it.
// first reports whether no other lease of it was found before.
func (r *rendered) find(l *ledger.Lease) (a *attachment, first bool) {
	if r.next < len(r.order) && r.order[r.next].leases[0].generation == l.Generation {
		a = r.order[r.next]
	} else {
		a = r.byGeneration[l.Generation]
	}
	if a == nil || a.key != l.Key || a.pod != l.Pod {
		return nil, false
	}
	i := slices.Index(a.leases, originOf(l))
	if i < 0 {
		return nil, false
	}
	if first = a.round != r.round; first {
		a.round, a.found, r.next = r.round, 0, a.at+1
	}
	a.found |= 1 << i
	return a, first
}

// attached reports whether a lease is that of an attachment. A lease of the Go API is not.
func attached(l *ledger.Lease) bool {
	return l.Purpose == ledger.ForPod && l.InUse() && !l.Key.OfAPI()
}

// putPods puts the values of all attachments. It renders only those that have changed
// since the last resync.
func (p *IPNet) putPods(txn controller.ResyncOperations) {
	p.checkPlan()
	r := &p.rendered
	r.round++
	r.next = 0
	found := make([]*attachment, 0, len(r.order))
	changed := map[ledger.Key]bool{}
	var keys []ledger.Key // of changed, in the order of the walk: neighbours stay neighbours in memory
	change := func(k ledger.Key) {
		if !changed[k] {
			changed[k], keys = true, append(keys, k)
		}
	}
	for l := range p.Ledger.All() {
		if !attached(l) {
			continue
		}
		switch a, first := r.find(l); {
		case a == nil:
			change(l.Key)
		case first:
			found = append(found, a)
		}
	}
	order := make([]*attachment, 0, len(found)+len(changed))
	for _, a := range found {
		switch {
		case changed[a.key]:
		case !a.complete():
			change(a.key)
		default:
			order = append(order, a)
		}
	}
	if len(order) < len(r.order) {
		maps.DeleteFunc(r.byGeneration, func(_ uint64, a *attachment) bool {
			return a.round != r.round || changed[a.key]
		})
	}
	for _, k := range keys {
		if a := p.render(k); a != nil {
			order = append(order, a)
		}
	}
	for i, a := range order {
		a.at = i
		txn.Put(a.sinkKey, a.value)
	}
	r.order = order
}

// checkPlan drops all attachments if the plan or the gateway of a block has changed.
func (p *IPNet) checkPlan() {
	r := &p.rendered
	if r.plan != p.plan {
		r.byGeneration, r.plan = nil, p.plan
	}
	for block, gateway := range r.gateways {
		if p.IPAM.BlockGateway(block) != gateway {
			r.byGeneration = nil
			break
		}
	}
	if r.byGeneration == nil {
		r.byGeneration, r.gateways, r.order = map[uint64]*attachment{}, map[netip.Prefix]netip.Addr{}, nil
	}
}

// render makes the attachment of a key, nil if the key has no leases any more.
func (p *IPNet) render(k ledger.Key) *attachment {
	leases := p.leasesOf(k)
	if len(leases) == 0 {
		return nil
	}
	e := endpointOf(leases)
	a := &attachment{sinkKey: podKey(k), key: k, pod: e.pod, round: p.rendered.round}
	for i := range leases {
		a.leases = append(a.leases, originOf(&leases[i]))
		p.rendered.byGeneration[leases[i].Generation] = a
	}
	n := p.networkOf(e)
	for i, gateway := range n.gateways {
		p.rendered.gateways[e.addresses[i].Masked()] = gateway
	}
	a.value = n.value
	return a
}

// refreshPods puts the values of the attachments that a new plan changes.
func (p *IPNet) refreshPods(txn controller.UpdateOperations) {
	seen := map[ledger.Key]bool{}
	for l := range p.Ledger.All() {
		if !attached(l) || seen[l.Key] {
			continue
		}
		seen[l.Key] = true
		leases := p.leasesOf(l.Key)
		if len(leases) == 0 {
			continue // released in the meantime
		}
		key, value := podKey(l.Key), p.networkOf(endpointOf(leases)).value
		if have := txn.Get(key); have != nil && !proto.Equal(have, value) {
			txn.Put(key, value)
		}
	}
}

// leasesOf returns the leases of an attachment, the same one first in each call.
func (p *IPNet) leasesOf(k ledger.Key) []ledger.Lease {
	leases := slices.DeleteFunc(p.Ledger.ByKey(k), func(l ledger.Lease) bool { return !attached(&l) })
	slices.SortStableFunc(leases, func(x, y ledger.Lease) int { return cmp.Compare(x.Pool, y.Pool) })
	return leases
}

// endpointOf returns the endpoint of an attachment with the given leases.
func endpointOf(leases []ledger.Lease) endpoint {
	first := &leases[0]
	e := endpoint{key: first.Key, pod: first.Pod, pool: first.Pool, wiring: wiringOf(first)}
	for i := range leases {
		e.addresses = append(e.addresses, leases[i].Prefix())
	}
	return e
}
