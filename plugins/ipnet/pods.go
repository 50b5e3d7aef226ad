// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

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
}

func originOf(l *ledger.Lease) origin { return origin{l.Generation, l.Prefix(), l.Pool} }

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
	round        uint64                      // number of resyncs
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
	p.checkGateways()
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

// checkGateways drops all attachments if the gateway of a block has changed.
func (p *IPNet) checkGateways() {
	r := &p.rendered
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
	leases := slices.DeleteFunc(p.Ledger.ByKey(k), func(l ledger.Lease) bool { return !attached(&l) })
	if len(leases) == 0 {
		return nil
	}
	slices.SortStableFunc(leases, func(x, y ledger.Lease) int { return cmp.Compare(x.Pool, y.Pool) })
	a := &attachment{sinkKey: podKey(k), key: k, pod: leases[0].Pod, round: p.rendered.round}
	var prefixes []netip.Prefix
	for i := range leases {
		a.leases = append(a.leases, originOf(&leases[i]))
		prefixes = append(prefixes, leases[i].Prefix())
		p.rendered.byGeneration[leases[i].Generation] = a
	}
	gateways, routes := p.routes(leases[0].Pool, prefixes)
	for i, gateway := range gateways {
		p.rendered.gateways[prefixes[i].Masked()] = gateway
	}
	a.value = podNetwork(k, a.pod, prefixes, routes)
	return a
}
