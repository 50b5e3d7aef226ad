// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"

	"github.com/cadastre/cadastre/operator/blocks"
)

// Bench is a bench for package nodeipam_test, which can import memcloud.
type Bench struct{ *bench }

// NewBench is an Allocator over a server that has no nodes.
func NewBench(t testing.TB, settings Settings, change ...func(*Deps)) Bench {
	t.Helper()
	if settings.FirstRetry == 0 {
		settings.FirstRetry, settings.MaxRetry, settings.Workers = time.Millisecond, 10*time.Millisecond, 2
	}
	return Bench{newBench(t, newServer(), settings, change...)}
}

// Another is an Allocator of another process over the same server.
func (b Bench) Another(t testing.TB, change ...func(*Deps)) Bench {
	t.Helper()
	return Bench{newBench(t, b.server, b.settings, change...)}
}

// RangesOf are settings of a type.
func RangesOf(kind CIDRAllocatorType, texts ...string) Settings {
	s := ranges(texts...)
	s.Type = kind
	return s
}

func (b Bench) Look(ctx context.Context, names ...string) error { return b.look(ctx, names...) }
func (b Bench) Held() map[string][]string                       { return b.held() }
func (b Bench) CIDRs() map[string][]string                      { return b.server.cidrs() }
func (b Bench) Put(name string, cidrs ...string) *v1.Node {
	return b.server.put(name, with(cidrs...), func(n *v1.Node) { n.Spec.ProviderID = "mem://" + name })
}
func (b Bench) Edit(name string, change func(*v1.Node)) { b.server.edit(name, change) }
func (b Bench) Remove(name string)                      { b.server.remove(name) }
func (b Bench) Node(name string) *v1.Node               { return b.server.node(name) }
func (b Bench) Events(reason string) []string           { return b.events.of(reason) }
func (b Bench) AllEvents() []string                     { return b.events.events }

// Condition is the state and the reason of a condition.
func (b Bench) Condition(name string, kind v1.NodeConditionType) string {
	c := conditionOf(b.server.node(name), kind)
	return string(c.Status) + " " + c.Reason
}

// Calls are all requests so far.
func (b Bench) Calls() int {
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	return b.server.calls
}

// FaultAt lets a request fail in the way that a number stands for. What is
// delayed arrives so many requests later.
func (b Bench) FaultAt(n, kind, lag int) {
	b.plan(at(n, fault(kind)), lag)
}

// FaultsFrom asks plan, which is told what is requested, about every request.
func (b Bench) FaultsFrom(plan func(what string) int, lag int) {
	b.plan(func(c call) fault { return fault(plan(c.what)) }, lag)
}

// NoFaults ends all faults. What was delayed is still under way.
func (b Bench) NoFaults() { b.plan(nil, 0) }

// FaultsOf lets all requests of a kind fail.
func (b Bench) FaultsOf(what string, kind int) {
	b.plan(func(c call) fault {
		if c.what == what {
			return fault(kind)
		}
		return none
	}, 0)
}

func (b Bench) plan(f func(call) fault, lag int) {
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	b.server.fault, b.server.lag = f, lag
}

// The kinds of faults.
const (
	NoFault      = int(none)
	FailRequest  = int(fail)
	TearRequest  = int(tear)
	DelayRequest = int(delay)
	FaultKinds   = int(delay) + 1
)

// Leaked returns an error if blocks are in use after all nodes are gone.
func Leaked(stat blocks.Stat) error { return leaked(stat) }

// Arrive lets what was delayed arrive.
func (b Bench) Arrive() { b.server.arrive() }

// Forget begins again, as a new process with the same name would.
func (b Bench) Forget() { b.loaded = false }

// LookUntilItWorks reads the nodes, if that has not been done, and looks at all.
func (b Bench) LookUntilItWorks(ctx context.Context) error { return b.lookUntilItWorks(ctx) }

// WatchOverlaps calls f at every write after which two nodes share a CIDR.
func (b Bench) WatchOverlaps(f func(error)) {
	b.server.watch = func(s *server) {
		if err := s.overlaps(); err != nil {
			f(fmt.Errorf("after call %d: %w", s.calls, err))
		}
	}
}

// Program returns the dependencies of a program over the server, and informers that run
// until stop is closed.
func (b Bench) Program(stop <-chan struct{}) (Deps, informers.SharedInformerFactory) {
	client := b.server.clientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes()
	nodes.Informer()
	factory.Start(stop)
	return Deps{Client: client, Nodes: nodes, Events: b.events, Log: quiet()}, factory
}

// WatchWrites calls f after every write to a node.
func (b Bench) WatchWrites(f func()) { b.server.watch = func(*server) { f() } }

// NodesWithPodCIDRs are the podCIDRs of the nodes that have some, for f of WatchWrites.
func (b Bench) NodesWithPodCIDRs() map[string][]string {
	all := map[string][]string{}
	for name, n := range b.server.nodes {
		if hasPodCIDRs(n) {
			all[name] = podCIDRTexts(n)
		}
	}
	return all
}

// Offered returns the blocks that are recorded for the present Node object.
func (b Bench) Offered(name string) []netip.Prefix {
	blocks, _ := b.assigned.blocks(ownerOf(b.server.node(name)))
	return blocks
}
