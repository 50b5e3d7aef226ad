// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// AddPod requests the addresses of one attachment. The handlers set the result: ipam the
// Addresses, ipnet Gateways and Routes. It is reverted if one of them fails.
type AddPod struct {
	Pod     kv.PodID
	UID     string
	Key     ledger.Key
	Netns   string
	NetNSID kv.NetNSID // of the namespace at Netns when the request came
	Wired   bool       // the southbound makes the wire; otherwise another plugin makes the interface
	MAC     string     // requested for the pod's end of the wire; "": derived from the key
	Pool    string
	Wanted  []netip.Addr  // exactly these addresses; nil: any
	Expires time.Time     // the time at which its producer stops waiting
	Ticket  time.Duration // the uptime at which its caller was accepted, unique; a DEL that was accepted before frees no lease of it

	Addresses  []netip.Prefix // each with the length of its block
	Gateways   []netip.Addr   // one for each address
	Routes     []Route        // one default route per family, if Pool is the pods' own
	Wire       *kv.Wire       // set by ipnet if Wired
	Fresh      bool           // this event claimed the addresses
	Generation uint64         // of that claim
	Remnant    error          // why the southbound could not take away what it has made; nil: it could

	span  trace.Span    // of the request; nil: it is not traced
	gone  func() bool   // reports whether the caller has hung up
	state atomic.Uint32 // waiting, answered or abandoned
	over  atomic.Bool
	done  chan error
	ended func(ev *AddPod, received bool) // called from Done
}

// Route is a route of a pod.
type Route struct {
	Dst netip.Prefix
	GW  netip.Addr
}

const (
	waiting uint32 = iota
	answered
	abandoned
)

// GetName returns "Add Pod".
func (ev *AddPod) GetName() string { return "Add Pod" }

func (ev *AddPod) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s\n* pod: %s\n* container: %s\n* interface: %s\n* network: %s\n* netns: %s",
		ev.GetName(), ev.Pod, ev.Key.ContainerID, ev.Key.IfName, ev.Key.Network, ev.Netns)
	if len(ev.Wanted) > 0 {
		fmt.Fprintf(&s, "\n* wanted: %v", ev.Wanted)
	}
	return s.String()
}

// Method returns Update.
func (ev *AddPod) Method() controller.EventMethodType { return controller.Update }

// TransactionType returns RevertOnFailure.
func (ev *AddPod) TransactionType() controller.UpdateTransactionType {
	return controller.RevertOnFailure
}

// Direction returns Forward.
func (ev *AddPod) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking returns true.
func (ev *AddPod) IsBlocking() bool { return true }

// GroupKey returns the attachment: the event may share its commit with those of others.
func (ev *AddPod) GroupKey() string { return ev.Key.String() }

// Class returns Urgent.
func (ev *AddPod) Class() controller.EventClass { return controller.Urgent }

// ReportsFailure says that the answer to the request is logged, once for its repetitions.
func (ev *AddPod) ReportsFailure() {}

// Remains is called before the event is reverted if a part of the wire may remain.
func (ev *AddPod) Remains(err error) { ev.Remnant = err }

// Span returns the span of the request, nil if it is not traced.
func (ev *AddPod) Span() trace.Span { return ev.span }

// Deadline returns the time at which the producer stops waiting.
func (ev *AddPod) Deadline() time.Time { return ev.Expires }

// Done answers the producer. It decides, in the loop and once, whether the producer was
// still waiting: an answer sent now counts as received.
func (ev *AddPod) Done(err error) {
	ev.over.Store(true)
	received := ev.state.CompareAndSwap(waiting, answered)
	ev.ended(ev, received && err == nil)
	if received {
		ev.done <- err
	}
}

// left reports whether no caller waits for the event any more.
func (ev *AddPod) left() bool {
	return ev.state.Load() == abandoned || ev.gone != nil && ev.gone()
}

// Over reports whether the event is done: committed or reverted. Any goroutine may call it.
func (ev *AddPod) Over() bool { return ev.over.Load() }

// DeletePod ends one attachment. Deleting a missing one succeeds.
type DeletePod struct {
	Key        ledger.Key
	Generation uint64 // not 0: only the lease of this claim
	Expires    time.Time
	Reason     string // of the release, for the ledger's history

	Freed   []netip.Addr // set by ipam
	Pod     kv.PodID     // of the lease that was freed; set by ipam
	pool    string       // likewise
	span    trace.Span   // of the request; nil: it is not traced
	wanted  func() bool  // reports whether to do it at all; nil: always
	ended   func()       // called from Done, or if the loop does not take the event; may be nil
	tidy    func()       // called from Done
	decided bool
	void    bool
	done    chan error
}

// Void reports whether the event has nothing to do. The first call, by the first handler,
// decides.
func (ev *DeletePod) Void() bool {
	if !ev.decided {
		ev.decided, ev.void = true, ev.wanted != nil && !ev.wanted()
	}
	return ev.void
}

// Release notes the leases that the event has released; none: it is repeated.
func (ev *DeletePod) Release(leases []ledger.Lease) {
	d := ledger.DecisionOn(leases, ev.Reason)
	ev.Freed, ev.pool = d.Addresses, d.Pool
	ev.Pod = kv.PodID{Namespace: d.Pod.Namespace, Name: d.Pod.Name}
}

// GetName returns "Delete Pod".
func (ev *DeletePod) GetName() string { return "Delete Pod" }

func (ev *DeletePod) String() string {
	return fmt.Sprintf("%s\n* container: %s\n* interface: %s\n* network: %s",
		ev.GetName(), ev.Key.ContainerID, ev.Key.IfName, ev.Key.Network)
}

// Method returns Update.
func (ev *DeletePod) Method() controller.EventMethodType { return controller.Update }

// TransactionType returns BestEffort: the runtime repeats a failed DEL, and a healing
// resync removes southbound values that a successful one left.
func (ev *DeletePod) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction returns Reverse.
func (ev *DeletePod) Direction() controller.UpdateDirectionType { return controller.Reverse }

// IsBlocking returns true.
func (ev *DeletePod) IsBlocking() bool { return true }

// GroupKey returns the attachment: the event may share its commit with those of others.
func (ev *DeletePod) GroupKey() string { return ev.Key.String() }

// Class returns Urgent.
func (ev *DeletePod) Class() controller.EventClass { return controller.Urgent }

// Span returns the span of the request, nil if it is not traced.
func (ev *DeletePod) Span() trace.Span { return ev.span }

// Deadline returns the time at which the producer stops waiting.
func (ev *DeletePod) Deadline() time.Time { return ev.Expires }

// Done answers the producer.
func (ev *DeletePod) Done(err error) {
	ev.tidy()
	if ev.ended != nil {
		ev.ended()
	}
	ev.done <- err
}
