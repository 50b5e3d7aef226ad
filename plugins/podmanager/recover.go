// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// Recover applies the DELs that found no agent. It is called after the start of the loop
// and before the agent serves requests. It sets a file that is not such a DEL aside, logs
// it, and goes on.
func (p *PodManager) Recover(ctx context.Context) error {
	intents, refused, err := cni.ReadIntents(p.IntentDir, p.UID)
	if err != nil {
		p.Log.Error("the DELs that wait for the agent cannot be read", "error", err)
	}
	for _, r := range refused {
		aside, err := cni.SetAside(p.IntentDir, r.Name)
		if err != nil {
			p.Log.Error("a file among the DELs that wait is refused, and stays", "reason", r.Err, "error", err)
			continue
		}
		p.Log.Error("a file among the DELs that wait is refused: find out its origin, then remove it",
			"reason", r.Err, "setAside", aside)
	}
	for _, in := range intents {
		if err := p.applyIntent(ctx, in, p.seq.ticket()); err != nil {
			return fmt.Errorf("apply the DELs that waited: %w", err)
		}
	}
	if len(intents) > 0 {
		p.Log.Info("DELs that waited for the agent are applied", "count", len(intents))
	}
	return nil
}

// applyIntent applies a waiting intent and removes its file. An intent without a time has
// the ticket found. Calls exclude each other: the file must be removed before an ADD of the
// same attachment goes on.
func (p *PodManager) applyIntent(ctx context.Context, in cni.Intent, found time.Duration) error {
	if !in.Waiting(p.IntentDir) {
		return nil // as nearly always
	}
	select {
	case p.applying <- struct{}{}:
		defer func() { <-p.applying }()
	case <-ctx.Done():
		return fmt.Errorf("apply a DEL that waits: %w", context.Cause(ctx))
	}
	in, waits, err := in.Read(p.IntentDir, p.UID)
	if err != nil || !waits {
		return err
	}
	key := ledger.Key{Network: in.Network, ContainerID: in.ContainerID, IfName: in.IfName}
	if err := p.remove(ctx, key, p.began(in.Began, found)); err != nil {
		return err
	}
	return in.Remove(p.IntentDir)
}

// beforeBoot is the ticket of a DEL of an earlier boot: older than all of this one.
const beforeBoot = time.Duration(1)

// began returns the ticket of a DEL; unknown is that of one without a time.
func (p *PodManager) began(at cni.Began, unknown time.Duration) time.Duration {
	switch {
	case at == (cni.Began{}):
		return unknown
	case at.BootID != p.Ledger.BootID():
		return beforeBoot
	}
	return min(at.Uptime, p.seq.ticket())
}

// orphans holds the ADDs whose callers are gone and whose leases must be released.
type orphans struct {
	mu     sync.Mutex
	events []*AddPod
	signal chan struct{}
}

// addEnded is called from the loop when an ADD is done. received reports that its caller
// received a success. A lease that no caller received is released, also that of an ADD
// that failed and could not be reverted.
func (p *PodManager) addEnded(ev *AddPod, received bool) {
	p.tidy(ev.Key)
	if p.seq.addDone(ev.Key, ev.Ticket, p.holds(ev.Key, ev.Generation), received) {
		p.orphans.put(ev)
	}
}

// holds reports whether key has the lease of a claim.
func (p *PodManager) holds(key ledger.Key, generation uint64) bool {
	leases := p.Ledger.ByKey(key)
	return generation != 0 && len(leases) > 0 && leases[0].Generation == generation
}

func (o *orphans) put(events ...*AddPod) {
	o.mu.Lock()
	o.events = append(o.events, events...)
	o.mu.Unlock()
	select {
	case o.signal <- struct{}{}:
	default:
	}
}

// sweep is the period in which Run applies DELs that wait although the agent runs. Such a
// DEL was not answered in time, or the agent has come back while it was written down.
const sweep = 5 * time.Second

// Run releases the leases of abandoned ADDs and applies waiting DELs until ctx ends. It
// repeats failed ones. After its end the runtime's next DEL or GC does the rest.
func (p *PodManager) Run(ctx context.Context) error {
	ticker := time.NewTicker(sweep)
	defer ticker.Stop()
	var again []*AddPod // their releases failed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := p.Recover(ctx); err != nil && ctx.Err() == nil {
				p.Log.Warn("DELs that wait for the agent cannot be applied yet", "error", err)
			}
			p.orphans.put(again...)
			again = nil
			continue
		case <-p.orphans.signal:
		}
		p.orphans.mu.Lock()
		events := p.orphans.events
		p.orphans.events = nil
		p.orphans.mu.Unlock()
		for _, ev := range events {
			p.Log.Info("the caller of an ADD is gone, its addresses are released",
				"key", ev.Key.String(), "addresses", ev.Addresses)
			if err := p.releaseOrphan(ctx, ev); err != nil && ctx.Err() == nil {
				p.Log.Warn("the addresses of an abandoned ADD could not be released yet",
					"key", ev.Key.String(), "error", err)
				again = append(again, ev)
			}
		}
	}
}

// releaseOrphan releases the lease of ev's key, unless a newer ADD wants it when the loop
// processes the release. After an error it must be called again.
func (p *PodManager) releaseOrphan(ctx context.Context, ev *AddPod) error {
	del := &DeletePod{
		Key:    ev.Key,
		Reason: "the caller of the ADD had gone",
		wanted: func() bool { return p.seq.mayRelease(ev.Key) },
	}
	del.ended = func() {
		if len(p.Ledger.ByKey(ev.Key)) == 0 {
			p.seq.released(ev.Key)
		}
	}
	err := p.push(ctx, del)
	if err == nil {
		p.seq.delDone(ev.Key)
	}
	return err
}
