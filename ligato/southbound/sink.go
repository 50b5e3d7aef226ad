// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	kvs "github.com/ligato/vpp-agent/plugins/kvscheduler/api"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness/kernel"
)

// Sink is a controller.Sink over a KVScheduler.
type Sink struct {
	log       *slog.Logger
	scheduler kvs.KVScheduler

	mu     sync.Mutex // protects what follows
	wanted map[string]item
	links  hostLinks
	retry  controller.Retry // of the last transaction
	unsure bool             // the outcome of a transaction is not known
}

// item holds one wanted value of ours, and what Ligato is asked for it.
type item struct {
	message proto.Message
	values  values
	pending string // the reason why there are no values yet
}

var _ controller.Sink = (*Sink)(nil)

// NewSink returns a Sink that is the only northbound of scheduler.
func NewSink(scheduler kvs.KVScheduler, log *slog.Logger) *Sink {
	return &Sink{
		log:       log,
		scheduler: scheduler,
		wanted:    map[string]item{},
		links:     hostLinks{scheduler, values{}, map[string]struct{}{}},
	}
}

// Commit applies a transaction. An update that fails is followed by a resync: with the
// values from before if the transaction is to be reverted, otherwise with the new ones.
// Ligato deletes and reverts by what it remembers, and fails on an object that is gone
// already, such as the wire of a pod whose namespace has ended; a resync looks first.
func (s *Sink) Commit(ctx context.Context, txn controller.Transaction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry = txn.Retry
	before := s.wanted
	next, failed := s.plan(txn)
	if txn.RevertOnFailure && len(failed) > 0 {
		return failed
	}
	s.wanted = next
	if txn.Method != controller.Update || s.unsure {
		return joined(failed, s.resync(ctx, txn.Description, txn.Retry))
	}
	err := s.update(ctx, before, txn)
	switch {
	case err == nil:
		return joined(failed, nil)
	case txn.RevertOnFailure:
		s.wanted = before
		if left := s.resync(ctx, "undo "+txn.Description, controller.Retry{}); left != nil {
			s.log.Error("values from before a failed transaction are not all restored", "error", left)
			for _, v := range txn.Values {
				err = errors.Join(err, &controller.RemainError{Key: v.Key, Err: left})
			}
		}
		return err
	default:
		s.log.Info("an update failed: everything is compared with the kernel", "error", err)
		return joined(failed, s.resync(ctx, txn.Description, txn.Retry))
	}
}

// plan returns the wanted values after a transaction, and the errors of those that Ligato
// cannot make.
func (s *Sink) plan(txn controller.Transaction) (map[string]item, controller.ValueErrors) {
	next, failed := map[string]item{}, controller.ValueErrors{}
	if txn.Method == controller.Update {
		maps.Copy(next, s.wanted)
	}
	for _, v := range txn.Values {
		if v.Message == nil {
			delete(next, v.Key)
			continue
		}
		it := item{message: v.Message}
		var err error
		if txn.Method != controller.Update && hasEnded(v.Message) {
			it.pending = "the network namespace of the pod has ended"
		} else if it.values, it.pending, err = s.translate(v.Key, v.Message); err != nil {
			it.values, failed[v.Key] = nil, err
		}
		if it.pending != "" && s.wanted[v.Key].pending != it.pending {
			s.log.Warn("a value is not made yet", "key", v.Key, "reason", it.pending)
		}
		next[v.Key] = it
	}
	return next, failed
}

// hasEnded reports whether m is a pod with a wire whose network namespace has ended. Its path
// may name something else since. The runtime's DEL is still to come.
func hasEnded(m proto.Message) bool {
	pod, ok := m.(*kv.PodNetwork)
	if !ok || pod.GetWire() == nil {
		return false
	}
	recorded := pod.GetWire().GetNamespace().ID()
	id, err := kernel.Identify(pod.GetWire().GetNetns(), recorded.Boot)
	return errors.Is(err, rtnl.ErrNone) || err == nil && id.IsNot(recorded)
}

// update brings Ligato from the values of before to the wanted ones. Routes and neighbours
// go in a transaction of their own, before the interfaces: if Ligato deletes an interface
// with both families, it deletes the addresses first, with which the kernel removes the
// routes of that family, and then fails to find these routes.
func (s *Sink) update(ctx context.Context, before map[string]item, txn controller.Transaction) error {
	first, second := values{}, values{}
	for _, v := range txn.Values {
		was, is := before[v.Key].values, s.wanted[v.Key].values
		for k := range was {
			if _, stays := is[k]; !stays && isInterface(k) {
				second[k] = nil
			} else if !stays {
				first[k] = nil
			}
		}
		maps.Copy(second, is)
	}
	maps.Copy(second, s.links.known)
	ctx = kvs.WithDescription(ctx, txn.Description)
	if txn.RevertOnFailure {
		ctx = kvs.WithRevert(ctx)
	}
	for _, changes := range []values{first, second} {
		if err := s.commit(ctx, changes); err != nil {
			return err
		}
	}
	return s.verify(second)
}

// resync makes Ligato read the kernel and make exactly the wanted values true.
func (s *Sink) resync(ctx context.Context, description string, retry controller.Retry) error {
	if err := s.links.adopt(); err != nil {
		return err
	}
	all := maps.Clone(s.links.known)
	for _, it := range s.wanted {
		maps.Copy(all, it.values)
	}
	ctx = kvs.WithDescription(ctx, description)
	if retry.Enabled {
		ctx = kvs.WithRetry(ctx, retry.Delay, retry.MaxAttempts, retry.ExponentialBackoff)
	}
	s.unsure = false
	err := s.commit(kvs.WithResync(ctx, kvs.FullResync, false), all)
	if err == nil {
		err = s.removeStale(ctx, all)
	}
	if err == nil {
		err = s.verify(all)
	}
	return err
}

// commit hands a transaction to Ligato and waits for its outcome.
func (s *Sink) commit(ctx context.Context, changes values) error {
	if resync, _ := kvs.IsResync(ctx); len(changes) == 0 && resync == kvs.NotResync {
		return nil
	}
	txn := s.scheduler.StartNBTransaction()
	for k, v := range changes {
		txn.SetValue(k, v)
	}
	_, err := txn.Commit(ctx)
	if err == nil {
		return nil
	}
	failure := new(kvs.TransactionError)
	if !errors.As(err, &failure) || len(failure.GetKVErrors()) == 0 {
		s.unsure = true
		return fmt.Errorf("transaction of Ligato's scheduler: %w", err)
	}
	found := controller.ValueErrors{}
	for _, e := range failure.GetKVErrors() {
		s.blame(found, e.Key, fmt.Errorf("%s %s: %w", e.TxnOperation, e.Key, e.Error))
	}
	return found
}

// removeStale deletes the routes to other nodes that a former process has left. Ligato
// reads them, and takes them for another program's.
func (s *Sink) removeStale(ctx context.Context, wanted values) error {
	found, err := s.scheduler.DumpValuesByDescriptor(routeDescriptor, kvs.CachedView)
	if err != nil {
		return fmt.Errorf("read the routes that Ligato knows: %w", err)
	}
	stale := values{}
	for _, x := range found {
		if s.isNodeRoute(x.Value) && wanted[x.Key] == nil {
			stale[x.Key] = nil
		}
	}
	return s.commit(ctx, stale)
}

// Dump returns the wanted values that Ligato has made. Any goroutine may call it.
func (s *Sink) Dump(context.Context) (map[string]proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]proto.Message{}
	for key, it := range s.wanted {
		if it.pending == "" && s.verify(it.values) == nil {
			all[key] = it.message
		}
	}
	return all, nil
}

// Close does nothing: the scheduler belongs to its plugin, and what was made stays.
func (s *Sink) Close() error { return nil }
