// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller_test

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cadastre/cadastre/controller"
)

// Rename is an event: a producer wants another name for the host.
type Rename struct {
	Name string
	done chan error
}

func (ev *Rename) GetName() string                           { return "Rename" }
func (ev *Rename) String() string                            { return "Rename to " + ev.Name }
func (ev *Rename) Method() controller.EventMethodType        { return controller.Update }
func (ev *Rename) IsBlocking() bool                          { return true }
func (ev *Rename) Done(err error)                            { ev.done <- err }
func (ev *Rename) Direction() controller.UpdateDirectionType { return controller.Forward }
func (ev *Rename) TransactionType() controller.UpdateTransactionType {
	return controller.RevertOnFailure
}

// Namer is a plugin that keeps the name of the host. Only the loop calls it, so it
// has no lock.
type Namer struct{ name, before string }

func (n *Namer) String() string { return "namer" }

func (n *Namer) HandlesEvent(ev controller.Event) bool {
	_, rename := ev.(*Rename)
	return rename || ev.Method() != controller.Update
}

// Resync puts the whole state into the transaction.
func (n *Namer) Resync(_ controller.Event, _ controller.KubeStateData, _ int, txn controller.ResyncOperations) error {
	txn.Put("host/name", wrapperspb.String(n.name))
	return nil
}

// Update puts the change into the transaction.
func (n *Namer) Update(ev controller.Event, txn controller.UpdateOperations) (string, error) {
	n.before, n.name = n.name, ev.(*Rename).Name
	txn.Put("host/name", wrapperspb.String(n.name))
	return n.before + " -> " + n.name, nil
}

// Revert undoes Update after a later handler or the southbound has failed.
func (n *Namer) Revert(controller.Event) error {
	n.name = n.before
	return nil
}

// A program runs a loop with one plugin, pushes one event and waits for its outcome.
func Example() {
	sink := &controller.MemorySink{}
	loop := controller.New(controller.DefaultConfig(), controller.Deps{
		Handlers: []controller.EventHandler{&Namer{name: "alpha"}},
		Sink:     sink,
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- loop.Run(ctx) }()

	// The first event of a loop is a snapshot of the cluster's state, here an empty one.
	fmt.Println("snapshot:", loop.PushEvent(&controller.DBResync{}))

	rename := &Rename{Name: "beta", done: make(chan error, 1)}
	fmt.Println("queued:", loop.PushEventWait(ctx, rename))
	fmt.Println("done:", <-rename.done)

	values, _ := sink.Dump(ctx)
	fmt.Println("southbound:", values["host/name"].(*wrapperspb.StringValue).Value)
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// snapshot: <nil>
	// queued: <nil>
	// done: <nil>
	// southbound: beta
	// ended: <nil>
}
