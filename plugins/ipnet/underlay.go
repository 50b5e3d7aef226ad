// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

// Underlay holds what the node's links show of the network between the nodes.
type Underlay struct {
	Addresses []netip.Addr // by which other nodes reach this one, one of each family at most
	Link      string       // with the first address
	MTU       uint32       // the smallest one of the links with the addresses
}

func (u Underlay) equal(v Underlay) bool {
	return slices.Equal(u.Addresses, v.Addresses) && u.Link == v.Link && u.MTU == v.MTU
}

// observation is the last reading of the underlay. It is immutable.
type observation struct {
	Underlay          // the last one that was found
	problem  string   // the reason why the last reading has found none
	notes    []string // on the MTU
	nodeIPs  []netip.Addr
}

// found reports whether an underlay was found in this process.
func (o *observation) found() bool { return o != nil && len(o.Addresses) > 0 }

// Bytes that a transport adds to a packet, over IPv4; IPv6 adds ipv6Extra more.
const (
	vxlanOverhead     = 50
	wireGuardOverhead = 60
	ipv6Extra         = 20
	// Overhead is the most that a transport adds to a packet.
	Overhead = wireGuardOverhead + ipv6Extra
)

const (
	unknownMTU = 1500 // of an underlay that was not found
	ipv6MTU    = 1280 // the least that IPv6 works with
)

// overhead returns the number of bytes that the transport adds to a packet. Each tunnel
// must take the packets of all pods, so it is that of IPv6 if this node has an underlay
// address of IPv6, or none that is known.
func overhead(t contivconf.Transport, addresses []netip.Addr) uint32 {
	var n uint32
	switch t {
	case contivconf.TransportVXLAN:
		n = vxlanOverhead
	case contivconf.TransportWireGuard:
		n = wireGuardOverhead
	default:
		return 0
	}
	if len(addresses) == 0 || slices.ContainsFunc(addresses, netip.Addr.Is6) {
		n += ipv6Extra
	}
	return n
}

// readUnderlay reads the underlay for a node with addresses nodeIPs in its Node object.
// After an error the one that was found before stays.
func (p *IPNet) readUnderlay(nodeIPs []netip.Addr) {
	if p.Dataplane == nil || p.Dataplane.Underlay == nil && !p.isVswitch() {
		return
	}
	next := &observation{nodeIPs: slices.Clone(nodeIPs)}
	before := p.observed.Load()
	read := p.Dataplane.Underlay
	if p.isVswitch() {
		read = p.vswitchUnderlay
	}
	u, err := read(nodeIPs)
	if err == nil {
		next.Underlay = u
	} else {
		next.problem = err.Error()
		if before != nil {
			next.Underlay = before.Underlay
		}
	}
	if next.problem != "" && (before == nil || before.problem != next.problem) {
		p.Log.Error("the underlay is not found", "error", err)
	}
	_, next.notes = p.podMTU(next.Underlay)
	p.observed.Store(next)
}

// podMTU returns the MTU of the pods' links, and notes on it. A configured one that does
// not fit the underlay is not used: the network would drop the largest packets.
func (p *IPNet) podMTU(u Underlay) (mtu uint32, notes []string) {
	if p.Dataplane == nil {
		return 0, nil
	}
	below, extra := u.MTU, overhead(p.Transport, u.Addresses)
	if below == 0 {
		below = unknownMTU
	}
	mtu = below - min(extra, below)
	switch configured := p.Dataplane.MTU; {
	case configured > mtu:
		notes = append(notes, fmt.Sprintf(
			"MTU %d of the configuration (cadastre.mtu) does not fit the underlay: "+
				"link %s has %d, transport %s adds %d bytes; the pods' links have %d",
			configured,
			u.Link,
			below,
			p.Transport,
			extra,
			mtu,
		))
	case configured > 0:
		mtu = configured
	}
	if six := slices.ContainsFunc(p.IPAM.Nodes(), isIPv6); six && mtu < ipv6MTU {
		notes = append(notes, fmt.Sprintf("the pods' links have MTU %d: IPv6 needs at least %d", mtu, ipv6MTU))
	}
	return mtu, notes
}

// Pending returns the reason why the transport cannot work on this node, "" if it can. Any
// goroutine may call it.
func (p *IPNet) Pending() string {
	o := p.observed.Load()
	if o == nil || o.found() || p.Transport == contivconf.TransportNone {
		return ""
	}
	return o.problem
}

// Notes returns problems that do not keep the node from working. Any goroutine may call
// it.
func (p *IPNet) Notes() []string {
	o := p.observed.Load()
	if o == nil {
		return nil
	}
	notes := slices.Clone(o.notes)
	if o.problem != "" && p.Pending() == "" {
		notes = append(notes, o.problem)
	}
	return notes
}

// UnderlayChange is the event of an underlay that is not the one in use any more.
type UnderlayChange struct{ Description string }

// GetName returns "Underlay Change".
func (ev *UnderlayChange) GetName() string { return "Underlay Change" }

func (ev *UnderlayChange) String() string { return ev.GetName() + "\n* " + ev.Description }

// Method returns Update.
func (ev *UnderlayChange) Method() controller.EventMethodType { return controller.Update }

// TransactionType returns BestEffort.
func (ev *UnderlayChange) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction returns Forward.
func (ev *UnderlayChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking returns false.
func (ev *UnderlayChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *UnderlayChange) Done(error) {}

// watchPeriod is the time between two readings of the underlay, searchPeriod while none is
// found.
const (
	watchPeriod  = 30 * time.Second
	searchPeriod = 2 * time.Second
)

// Watch reads the underlay in a slow period, measured by after, until ctx ends, and pushes
// an UnderlayChange if it differs from the one in use.
func (p *IPNet) Watch(
	ctx context.Context,
	loop controller.EventLoop,
	after func(time.Duration) <-chan time.Time,
) error {
	for {
		period := watchPeriod
		if p.Dataplane != nil && !p.observed.Load().found() {
			period = searchPeriod
		}
		select {
		case <-ctx.Done():
			return nil
		case <-after(period):
		}
		text := p.changed()
		if text == "" {
			continue
		}
		if err := loop.PushEvent(&UnderlayChange{Description: text}); err != nil && ctx.Err() == nil {
			p.Log.Warn("the change of the underlay waits for the next reading", "error", err)
		}
	}
}

// changed describes the present underlay if it differs from the one in use, otherwise it
// returns "".
func (p *IPNet) changed() string {
	used := p.observed.Load()
	if used == nil || p.isVswitch() {
		return "" // before the first resync, without a data plane, or without links of the kernel
	}
	now, err := p.Dataplane.Underlay(used.nodeIPs)
	switch {
	case err != nil && err.Error() != used.problem:
		return err.Error()
	case err == nil && (!now.equal(used.Underlay) || used.problem != ""):
		return fmt.Sprintf("addresses %v on %s, MTU %d", now.Addresses, now.Link, now.MTU)
	}
	return ""
}
