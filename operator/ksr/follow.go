// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// maxBytes bounds the values of one transaction.
const maxBytes = 512 << 10

// listTimeouts multiplies the limit of a request for a List, because it
// returns many keys.
const listTimeouts = 6

// scopes returns the prefixes of all reflected keys. NodePrefix of any node begins
// with the second.
func scopes() (cluster, nodes string) {
	return kv.ClusterPrefix, strings.TrimSuffix(kv.NodePrefix(""), "/")
}

// enqueue queues keys to be compared; an empty one stands for an object without a key.
func (r *Reflector) enqueue(keys ...string) {
	for _, key := range keys {
		if key != "" {
			r.queue.Add(key, "", 0)
		}
	}
}

// feedOf returns the feed of a key's kind, nil for a key that is not reflected.
func (r *Reflector) feedOf(key string) *feed {
	resource, ok := kv.ResourceOf(key)
	if !ok {
		return nil
	}
	for _, f := range r.feeds {
		if f.kind.resource == resource.Name {
			return f
		}
	}
	return nil
}

// follow compares all keys, and then those that change. It returns nil when all
// keys are to be compared again.
func (r *Reflector) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-r.changed: // mark queues what is known
	default:
	}
	cluster, nodes := scopes()
	kvs, rev, err := r.list(ctx, cluster, nodes)
	if err != nil {
		return err
	}
	watches := make([]kvdb.Watcher, 2)
	for i, prefix := range []string{cluster, nodes} {
		if watches[i], err = r.watch(ctx, prefix, rev+1); err != nil {
			return fmt.Errorf("watch the store: %w", err)
		}
		defer watches[i].Close()
	}
	r.mark(kvs, rev)
	probe, sweep := time.NewTicker(r.settings.probe), time.NewTimer(r.settings.sweep)
	defer probe.Stop()
	defer sweep.Stop()
	for swept := false; ; {
		if !swept && r.queue.Len() == 0 {
			swept = true
			r.swept()
		}
		var batch []kvdb.Event
		var open bool
		var watch kvdb.Watcher
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			return nil
		case <-r.changed:
			return nil
		case <-r.queue.Ready():
			if err := r.write(ctx); err != nil {
				return err
			}
			continue
		case <-probe.C:
			clear(r.conflicts)
			if err := r.probe(ctx); err != nil {
				return err
			}
			continue
		case batch, open = <-watches[0].Events():
			watch = watches[0]
		case batch, open = <-watches[1].Events():
			watch = watches[1]
		}
		if !open {
			return ended(watch)
		}
		r.observe(batch)
		if err := r.checkContention(); err != nil {
			return err
		}
	}
}

// maxConflicts limits the repairs of one key between two probes. A process that
// writes the key again each time reads another API server, or also leads.
const maxConflicts = 50

// checkContention fails if another process writes a key again and again. This
// process then waits before it writes again.
func (r *Reflector) checkContention() error {
	for key, n := range r.conflicts {
		if n > maxConflicts {
			clear(r.conflicts)
			return fmt.Errorf("%w: %s was written %d times", errContended, key, n)
		}
	}
	return nil
}

// watch opens a watch that ends with ctx at the latest.
func (r *Reflector) watch(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(r.settings.callTimeout, func() { cancel(context.DeadlineExceeded) })
	w, err := r.deps.Store.Watch(ctx, prefix, from)
	if !late.Stop() && err == nil {
		w.Close()
		err = context.DeadlineExceeded
	}
	return w, err
}

// ended returns why a watch has ended.
func ended(w kvdb.Watcher) error {
	err := w.Err()
	if err == nil {
		err = errEnded
	}
	return fmt.Errorf("watch the store: %w", err)
}

func (r *Reflector) list(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeouts*r.settings.callTimeout)
	defer cancel()
	kvs, rev, err := r.deps.Store.List(ctx, prefixes...)
	if err != nil {
		return nil, 0, fmt.Errorf("list the store: %w", err)
	}
	return kvs, rev, nil
}

// probe reads the store's revision.
func (r *Reflector) probe(ctx context.Context) error {
	_, rev, err := r.list(ctx)
	if err != nil {
		return err
	}
	return r.advance(rev)
}

// advance records a revision. It fails if the revision goes back, because the
// store was replaced.
func (r *Reflector) advance(rev int64) error {
	if rev < r.rev {
		return fmt.Errorf("%w: revision %d was seen before, now it is %d", errOlder, r.rev, rev)
	}
	r.rev = rev
	return nil
}

// mark records what the store has, and queues all keys: those that are stored,
// and those that should be.
func (r *Reflector) mark(kvs []kvdb.KeyValue, rev int64) {
	clear(r.stored)
	r.rev = rev
	counts := map[string]int{}
	for _, x := range kvs {
		if f := r.feedOf(x.Key); f != nil {
			r.stored[x.Key] = stored{value: x.Value, rev: x.ModRevision}
			counts[f.kind.resource]++
			r.enqueue(x.Key)
		}
	}
	for _, f := range r.feeds {
		if objects := f.known(); objects != nil {
			r.enqueue(objects.ListIndexFuncValues(byKey)...)
		}
	}
	r.mu.Lock()
	r.counts = counts
	r.mu.Unlock()
}

// swept records that all keys have been compared.
func (r *Reflector) swept() {
	r.setStatus(func(s *Status) {
		*s = Status{Synced: true, Connected: true, lastSweep: r.deps.Now()}
	})
	r.metrics.sweeps.Inc()
	r.log.Debug("the cluster store matches the API server", "revision", r.rev)
}

// observe records what one transaction of the store has changed. The
// Reflector's own transactions are known already.
func (r *Reflector) observe(batch []kvdb.Event) {
	for _, ev := range batch {
		r.rev = max(r.rev, ev.ModRevision)
		if r.feedOf(ev.Key) == nil {
			continue
		}
		s, found := r.stored[ev.Key]
		switch {
		case found && ev.ModRevision < s.rev:
		case found && ev.ModRevision == s.rev:
			if s.gone {
				delete(r.stored, ev.Key)
			}
		default:
			r.put(ev.Key, stored{value: ev.Value, rev: ev.ModRevision, gone: ev.Deleted})
			if ev.Deleted {
				delete(r.stored, ev.Key)
			}
			r.conflicts[ev.Key]++
			r.enqueue(ev.Key)
		}
	}
}

// put records what is stored under a key.
func (r *Reflector) put(key string, s stored) {
	was, found := r.stored[key]
	r.stored[key] = s
	resource, _ := kv.ResourceOf(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if found && !was.gone {
		r.counts[resource.Name]--
	}
	if !s.gone {
		r.counts[resource.Name]++
	}
}

// write compares keys until one transaction is full or the queue is empty, and
// commits the difference.
func (r *Reflector) write(ctx context.Context) error {
	ops := r.batch()
	if len(ops) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.settings.callTimeout)
	defer cancel()
	if err := r.gate.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", errFence, err)
	}
	rev, err := r.deps.Store.Txn(ctx, nil, ops)
	if err != nil {
		return fmt.Errorf("write to the store: %w", err)
	}
	if err := r.advance(rev); err != nil {
		return err
	}
	for _, op := range ops {
		r.put(op.Key, stored{value: op.Value, rev: rev, gone: op.Delete})
		r.metrics.wrote(op)
	}
	return nil
}

// batch returns the operations of one transaction. A key that changes again in
// the meantime is taken twice: the later comparison counts.
func (r *Reflector) batch() (ops []kvdb.Op) {
	size := 0
	for len(ops) < kvdb.MaxOps && size < maxBytes-maxValue {
		key, ok := r.queue.Take()
		if !ok {
			break
		}
		ops = slices.DeleteFunc(ops, func(op kvdb.Op) bool { return op.Key == key })
		if op, needed := r.compare(key); needed {
			ops = append(ops, op)
			size += len(op.Key) + len(op.Value)
		}
	}
	return ops
}

// compare returns the operation that makes the store equal to the caches for one
// key; needed is false if they are equal.
func (r *Reflector) compare(key string) (op kvdb.Op, needed bool) {
	f := r.feedOf(key)
	if f == nil {
		return op, false
	}
	objects := f.known()
	if objects == nil {
		return op, false // the objects have not been read
	}
	found, err := objects.ByIndex(byKey, key)
	if err != nil {
		r.report(key, err)
		return op, false
	}
	s, have := r.stored[key]
	have = have && !s.gone
	if len(found) == 0 {
		r.report(key, nil)
		return kvdb.Delete(key), have
	}
	o, ok := found[0].(*object)
	if !ok {
		return op, false
	}
	r.report(key, o.err)
	return kvdb.Put(key, o.value), o.err == nil && (!have || !bytes.Equal(s.value, o.value))
}

// report logs, once, that an object cannot be stored, and clears that when it can.
func (r *Reflector) report(key string, err error) {
	r.mu.Lock()
	was := r.bad[key]
	if err != nil {
		r.bad[key] = err
	} else {
		delete(r.bad, key)
	}
	r.mu.Unlock()
	if err != nil && fmt.Sprint(was) != fmt.Sprint(err) {
		r.metrics.errors.WithLabelValues("object").Inc()
		r.log.Error("an object of the API server cannot be stored, and is skipped", "key", key, "error", err)
	}
}
