// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// eventLoop passes each event to its reader.
type eventLoop chan controller.Event

func (l eventLoop) PushEvent(ev controller.Event) error {
	return l.PushEventWait(context.Background(), ev)
}

func (l eventLoop) PushEventWait(ctx context.Context, ev controller.Event) error {
	select {
	case l <- ev:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The first event has the state of the store, the next ones its changes.
func ExampleSource() {
	store := mem.New()
	put := func(name string) {
		value, err := proto.Marshal(&kv.Pool{Name: name, Network: name, Generation: 1})
		if err != nil {
			panic(err)
		}
		if _, err := store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(kv.PoolKey(name), value)}); err != nil {
			panic(err)
		}
	}
	put("default")
	loop := make(eventLoop)
	source := kubestate.New(kubestate.Deps{
		Log:       slog.New(slog.DiscardHandler),
		Node:      "node-a",
		Store:     store,
		EventLoop: loop,
	})
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := source.Run(ctx); err != nil {
			panic(err)
		}
	})
	first := (<-loop).(*controller.DBResync)
	fmt.Println(first.GetName(), len(first.KubeState[kubestate.Pools]))
	put("blue")
	change := (<-loop).(*controller.KubeStateChange)
	fmt.Println(change.GetName(), change.Key)
	stop()
	work.Wait()
	// Output:
	// Database Resync 1
	// Kubernetes State Change cluster/pool/blue
}
