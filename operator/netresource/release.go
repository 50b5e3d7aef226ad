// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// releases holds the operator's state of the releases of addresses and blocks. The truth
// is in the status; after a restart the rest is decided again.
type releases struct {
	excess excess                    // how long the node has had which excess
	gone   map[string]time.Time      // when the provider confirmed the release
	back   map[string]bool           // of these, those that it shows again long after
	want   map[string]handshake.Want // decisions of the last plan
	hold   bool                      // the last plan leaves all as they are
	v6     bool                      // the node's level counts IPv6 addresses
	old    map[string]bool           // ready in the first version that was seen
}

// doubt records the entries that are ready in the first version that is seen. The API
// server may have come back older, and the agent may have allocated from them since: the
// agent is asked once more.
func (r *releases) doubt(entries map[string]handshake.State) {
	r.old = map[string]bool{}
	for key, state := range entries {
		if state == handshake.Ready {
			r.old[key] = true
		}
	}
}

// seen receives every later version: the agent was asked again about entries that are
// not ready any more.
func (r *releases) seen(entries map[string]handshake.State) {
	maps.DeleteFunc(r.old, func(key string, _ bool) bool { return entries[key] != handshake.Ready })
}

func (r *releases) reset() {
	r.excess = nil
	clear(r.gone)
	clear(r.back)
	clear(r.want)
}

// read compares released addresses with a reading of the provider.
func (r *releases) read(begun time.Time, consistency time.Duration, available v1alpha1.AllocationMap) {
	r.back = map[string]bool{}
	for key, at := range r.gone {
		if _, there := available[key]; there && begun.Sub(at) > consistency {
			r.back[key] = true
		}
	}
}

// begin makes the plan in which all releases go on as they are.
func (r *releases) begin(entries map[string]handshake.State, available v1alpha1.AllocationMap) {
	clear(r.want)
	for key := range entries {
		_, gone := r.gone[key]
		r.want[key] = handshake.Want{Gone: gone, Back: r.back[key]}
	}
	for key := range r.gone {
		if _, open := entries[key]; open {
			continue
		}
		// The agent has taken the entry away.
		if _, there := available[key]; !there || r.back[key] {
			delete(r.gone, key)
			delete(r.back, key)
		}
	}
}

// countedSize returns the number of addresses of a key that the node's level counts.
func (r *releases) countedSize(key string) int {
	size, v6 := sizeOf(key)
	if v6 != r.v6 {
		return 0
	}
	return size
}

// abort cancels the release of as many addresses as are needed, those first that the
// agent has not answered yet. With them it cancels that of all addresses of the
// family that is not counted.
func (r *releases) abort(entries map[string]handshake.State, needed int) {
	r.excess = nil
	keys := slices.SortedFunc(maps.Keys(entries), func(a, b string) int {
		return cmp.Or(cmp.Compare(entries[a], entries[b]), cmp.Compare(a, b))
	})
	for _, key := range keys {
		state, size := entries[key], r.countedSize(key)
		if needed <= 0 && size > 0 || state != handshake.Marked && state != handshake.Ready {
			continue
		}
		needed -= size
		w := r.want[key]
		w.Needed = true
		r.want[key] = w
	}
}

// choose plans to mark those of chosen that no release has yet, at most so many addresses
// of the family that is counted.
func (r *releases) choose(chosen []string, most int, entries map[string]handshake.State) {
	for _, key := range chosen {
		_, open := entries[key]
		_, gone := r.gone[key]
		size := r.countedSize(key)
		if open || gone || size > most {
			continue
		}
		most -= size
		r.want[key] = handshake.Want{Excess: true}
	}
}

// PopulateIPReleaseStatus sets the entries of the handshake as the node's last plan
// decides.
func (n *NetResource) PopulateIPReleaseStatus(node *v1alpha1.NetResourceSet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.release.hold {
		return
	}
	entries := node.Status.IPAM.ReleaseIPs
	next := map[string]handshake.State{}
	for key, want := range n.release.want {
		if _, open := entries[key]; !open && !want.Excess {
			continue // the agent has taken it away
		}
		s := handshake.Decide(entries[key], want)
		if s == handshake.Released && n.release.old[key] {
			s = handshake.Marked
		}
		if s != handshake.None {
			next[key] = s
		}
	}
	for key, state := range entries {
		if _, planned := n.release.want[key]; !planned {
			next[key] = state
		}
	}
	node.Status.IPAM.ReleaseIPs = next
}

// releaseAccepted writes the entries as the plan decides, and then calls the provider for
// those that the API server has accepted as released.
func (n *NetResource) releaseAccepted(ctx context.Context) (mutated bool, err error) {
	if err := n.writeStatus(ctx); err != nil {
		return false, err
	}
	var failed []error
	for _, a := range n.released() {
		if err := n.manager.checkFence(ctx); err != nil {
			return mutated, errors.Join(append(failed, err)...)
		}
		err := n.releaseIPs(ctx, a)
		if err == nil {
			mutated = true
			n.manager.config.Metrics.AddIPRelease(string(a.PoolID), int64(len(a.IPsToRelease)))
			n.log.Info("addresses of the node are released", "pool", a.PoolID, "interface", a.InterfaceID,
				"addresses", len(a.IPsToRelease))
			continue
		}
		failed = append(failed, fmt.Errorf("release %d addresses of pool %q on interface %q: %w",
			len(a.IPsToRelease), a.PoolID, a.InterfaceID, err))
		if errors.Is(err, ErrUnderWay) {
			break
		}
		if mutated = true; errors.Is(err, ErrUnknownOutcome) {
			break
		}
	}
	return mutated, errors.Join(failed...)
}

// releaseIPs releases addresses, and records that they are gone.
func (n *NetResource) releaseIPs(ctx context.Context, a *ReleaseAction) error {
	set := n.newest()
	_, err := nodeCall(ctx, n, "Release", func(ctx context.Context) (struct{}, error) {
		return struct{}{}, n.manager.provider.Release(ctx, set, a)
	})
	if err == nil {
		n.manager.released(n.name, a.IPsToRelease)
	}
	return err
}

// released returns the calls to make, one for each interface and pool.
func (n *NetResource) released() []*ReleaseAction {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.manager.config.Now()
	byPlace := map[[2]string]*ReleaseAction{}
	intent := IntentOf(n.resource)
	for key, state := range n.resource.Status.IPAM.ReleaseIPs {
		_, gone := n.release.gone[key]
		if !handshake.Call(state, handshake.Want{Gone: gone}) {
			continue
		}
		if slices.Contains(intent, key) { // the next manager would take it for the node's
			continue
		}
		at, ok := n.state.Available[key]
		if !ok {
			at, ok = n.resource.Spec.IPAM.Pool[key]
		}
		if !ok {
			n.release.gone[key] = now // neither the provider nor the pool has it any more
			continue
		}
		place := [2]string{at.Resource, at.SubnetID}
		if byPlace[place] == nil {
			byPlace[place] = &ReleaseAction{InterfaceID: at.Resource, PoolID: v1alpha1.PoolID(at.SubnetID)}
		}
		byPlace[place].IPsToRelease = append(byPlace[place].IPsToRelease, key)
	}
	var all []*ReleaseAction
	for _, place := range slices.SortedFunc(maps.Keys(byPlace), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		slices.Sort(byPlace[place].IPsToRelease)
		all = append(all, byPlace[place])
	}
	return all
}
