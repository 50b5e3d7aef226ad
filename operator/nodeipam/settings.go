// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	informers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/operator/blocks"
)

// Settings say how blocks are given. What is zero has the default that its
// comment names.
type Settings struct {
	Type     CIDRAllocatorType // RangeAllocator
	Ranges   []blocks.Range    // a node gets one block of every pool
	Reserved []netip.Prefix    // never given: service ranges, exclusions
	Policy   blocks.Policy

	Workers     int           // nodes that are worked on at the same time: 16
	Audit       time.Duration // how often all is looked at, whatever was missed: 5 minutes
	CallTimeout time.Duration // of one request to the API server or the cloud: 30 s
	FirstRetry  time.Duration // after an error: 250 ms, then twice as long
	MaxRetry    time.Duration // at most: 30 s (RangeAllocator)
	Sync        Config        // of the IPAMFrom modes: 30 s, 10 s, 250 ms

	// SizeLimits allow nodes to ask for blocks of other lengths than their
	// range's. A range without an entry gives blocks of its own length only.
	SizeLimits []SizeLimit
	// SizeOf returns the prefix lengths that a node wants, by pool, 0 for the
	// range's. By default they are read from its labels and annotations
	// (SizeIPv4, SizeIPv6), for families that SizeLimits has. SizeLimits limits
	// the result, also that of another function.
	SizeOf func(node *v1.Node, pools []netip.Prefix) ([]int, error)
}

// SizeLimit allows nodes to ask for blocks of a range with prefix lengths from
// Min to Max.
type SizeLimit struct {
	Range    netip.Prefix
	Min, Max int
}

// String returns the limit as the flag has it.
func (l SizeLimit) String() string { return fmt.Sprintf("%s=%d-%d", l.Range, l.Min, l.Max) }

// EventRecorder is the part of client-go's record.EventRecorder that the allocator uses.
type EventRecorder interface {
	Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any)
}

// Deps holds the dependencies of an Allocator. Nodes is needed for Run only, and
// NewAllocator registers its informer; Cloud is needed by the cloud types only. All others that are
// missing have defaults.
type Deps struct {
	Client   clientset.Interface
	Nodes    informers.NodeInformer
	Cloud    Cloud
	Claims   Claims           // of the agents; none: a block is free as soon as no Node object has it
	Fence    Fence            // nil: no other process writes podCIDRs, and none has patches under way
	Events   EventRecorder    // Run makes one that writes to the API server
	Log      *slog.Logger     // slog's default
	Now      func() time.Time // time.Now
	Random   func() float64   // in [0, 1)
	Instance string           // names this process; a UUID
}

func (s Settings) withDefaults() Settings {
	s.Type = cmp.Or(s.Type, RangeAllocatorType)
	s.Workers = cmp.Or(s.Workers, 16)
	s.Audit = cmp.Or(s.Audit, 5*time.Minute)
	s.CallTimeout = cmp.Or(s.CallTimeout, 30*time.Second)
	s.FirstRetry = cmp.Or(s.FirstRetry, 250*time.Millisecond)
	s.MaxRetry = cmp.Or(s.MaxRetry, 30*time.Second)
	s.Sync.Resync = cmp.Or(s.Sync.Resync, 30*time.Second)
	s.Sync.MaxBackoff = cmp.Or(s.Sync.MaxBackoff, 10*time.Second)
	s.Sync.InitialRetry = cmp.Or(s.Sync.InitialRetry, 250*time.Millisecond)
	if s.SizeOf == nil {
		s.SizeOf = s.sizesOf
	}
	return s
}

func (d Deps) withDefaults() Deps {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Random == nil {
		d.Random = rand.Float64
	}
	if d.Instance == "" {
		d.Instance = string(uuid.NewUUID())
	}
	return d
}

// newSet returns a Set with the ranges of the settings, or an error if they are not valid.
func (s Settings) newSet() (*blocks.Set, error) {
	set := blocks.New(s.Policy)
	for _, r := range s.Ranges {
		if err := set.AddRange(r); err != nil {
			return nil, err
		}
	}
	for _, p := range s.Reserved {
		set.Reserve(p)
	}
	for _, r := range set.Stat(time.Time{}).Ranges {
		if r.Free() == 0 {
			return nil, fmt.Errorf(
				"range %s: %w: all of it is reserved (%v)",
				r.Prefix,
				blocks.ErrExhausted,
				s.Reserved,
			)
		}
	}
	return set, nil
}
