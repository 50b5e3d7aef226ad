// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// AddPod asks for the addresses of one attachment. Handlers fill in what they
// decide: ipam the Addresses, ipnet Gateways and Routes. It is reverted when
// one of them fails.
type AddPod struct {
	Pod     kv.PodID
	UID     string
	Key     ledger.Key
	Netns   string
	Pool    string
	Wanted  []netip.Addr // exactly these; nil: any
	Expires time.Time    // when its producer stops waiting

	Addresses  []netip.Prefix // each with the length of its block
	Gateways   []netip.Addr   // one for each address
	Routes     []Route        // one default route per family, if Pool is the pods' own
	Fresh      bool           // the addresses were taken by this event
	Generation uint64         // of that claim

	ticket      uint64
	undelivered bool          // it was answered, but the answer did not arrive
	state       atomic.Uint32 // waiting, answered or abandoned
	over        atomic.Bool
	done        chan error
	ended       func(ev *AddPod, err error, heard bool) // called from Done
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

// GetName is "Add Pod".
func (ev *AddPod) GetName() string { return "Add Pod" }

func (ev *AddPod) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s\n* pod: %s\n* container: %s\n* interface: %s\n* network: %s\n* netns: %s", ev.GetName(), ev.Pod, ev.Key.ContainerID, ev.Key.IfName, ev.Key.Network, ev.Netns)
	if len(ev.Wanted) > 0 {
		fmt.Fprintf(&s, "\n* wanted: %v", ev.Wanted)
	}
	return s.String()
}

// Method is Update.
func (ev *AddPod) Method() controller.EventMethodType { return controller.Update }

// TransactionType is RevertOnFailure.
func (ev *AddPod) TransactionType() controller.UpdateTransactionType {
	return controller.RevertOnFailure
}

// Direction is Forward.
func (ev *AddPod) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking is true.
func (ev *AddPod) IsBlocking() bool { return true }

// Deadline is when the producer stops waiting.
func (ev *AddPod) Deadline() time.Time { return ev.Expires }

// Done answers the producer. Whether it was still there is decided here, in the
// loop, once: an answer that is given now counts as heard.
func (ev *AddPod) Done(err error) {
	ev.over.Store(true)
	heard := ev.state.CompareAndSwap(waiting, answered)
	ev.ended(ev, err, heard && err == nil)
	if heard {
		ev.done <- err
	}
}

// Over reports whether the event is done: committed or reverted. Any goroutine may call it.
func (ev *AddPod) Over() bool { return ev.over.Load() }

// DeletePod ends one attachment. Deleting what is not there succeeds.
type DeletePod struct {
	Key        ledger.Key
	Generation uint64 // not 0: only the lease of this claim
	Expires    time.Time

	Freed  []netip.Addr // filled in by ipam
	wanted func() bool  // whether it is to be done at all; nil: it is
	ended  func()       // called from Done, or where the loop does not take it; may be nil
	tidy   func()       // called from Done
	asked  bool
	void   bool
	done   chan error
}

// Void is true where, now that the event is processed, nothing is to be done.
// The first handler's question decides.
func (ev *DeletePod) Void() bool {
	if !ev.asked {
		ev.asked, ev.void = true, ev.wanted != nil && !ev.wanted()
	}
	return ev.void
}

// GetName is "Delete Pod".
func (ev *DeletePod) GetName() string { return "Delete Pod" }

func (ev *DeletePod) String() string {
	return fmt.Sprintf("%s\n* container: %s\n* interface: %s\n* network: %s", ev.GetName(), ev.Key.ContainerID, ev.Key.IfName, ev.Key.Network)
}

// Method is Update.
func (ev *DeletePod) Method() controller.EventMethodType { return controller.Update }

// TransactionType is BestEffort: the runtime repeats a DEL that failed, but what
// is left southbound of one that did not is for a healing resync.
func (ev *DeletePod) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction is Reverse.
func (ev *DeletePod) Direction() controller.UpdateDirectionType { return controller.Reverse }

// IsBlocking is true.
func (ev *DeletePod) IsBlocking() bool { return true }

// Deadline is when the producer stops waiting.
func (ev *DeletePod) Deadline() time.Time { return ev.Expires }

// Done answers the producer.
func (ev *DeletePod) Done(err error) {
	ev.tidy()
	if ev.ended != nil {
		ev.ended()
	}
	ev.done <- err
}
