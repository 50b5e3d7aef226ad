// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound_test

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// printed makes values by printing them. Its plans are the messages.
func printed[M proto.Message](prefix string) southbound.Kind[M] {
	say := func(what, key string) error {
		_, err := fmt.Println(what, key)
		return err
	}
	return southbound.Kind[M]{
		Name:   prefix,
		Prefix: prefix,
		Read: func(_ string, m proto.Message) (M, error) {
			want, ok := m.(M)
			if !ok {
				return want, fmt.Errorf("it is a %T, not a %T", m, want)
			}
			return want, nil
		},
		Create: func(_ context.Context, key string, _ M) error { return say("create", key) },
		Delete: func(_ context.Context, key string, _ southbound.Made[M]) error { return say("delete", key) },
		Retrieve: func(context.Context, []southbound.Wanted[M]) ([]controller.Value, error) {
			return nil, nil
		},
	}
}

// A route waits for its tunnel. A transaction that reverts on failure leaves nothing.
func ExampleNew() {
	tunnels, routes := printed[*kv.NodeTunnel](kv.SinkTunnelPrefix), printed[*kv.NodeRoute](kv.SinkRoutePrefix)
	routes.Needs = func(r *kv.NodeRoute) []string { return []string{fmt.Sprint(kv.SinkTunnelPrefix, r.NodeId)} }
	create := routes.Create
	routes.Create = func(ctx context.Context, key string, r *kv.NodeRoute) error {
		if r.Gateway == "" {
			return errors.New("no gateway")
		}
		return create(ctx, key, r)
	}
	s := southbound.New(southbound.Options{}, tunnels.Descriptor(), routes.Descriptor())
	defer s.Close()
	commit := func(reverts bool, values ...controller.Value) {
		err := s.Commit(context.Background(), controller.Transaction{
			Method:          controller.Update,
			Values:          values,
			RevertOnFailure: reverts,
		})
		fmt.Println("error:", err)
	}
	route := &kv.NodeRoute{Dst: "10.1.7.0/24", Gateway: "192.168.30.7", NodeId: 7}
	commit(false, controller.Value{Key: "route/10.1.7.0/24", Message: route})
	fmt.Println("pending:", s.Status().Pending)
	commit(false, controller.Value{Key: "tunnel/7", Message: &kv.NodeTunnel{NodeId: 7}})
	commit(false, controller.Value{Key: "tunnel/7"})
	commit(true,
		controller.Value{Key: "tunnel/8", Message: &kv.NodeTunnel{NodeId: 8}},
		controller.Value{Key: "route/10.1.8.0/24", Message: &kv.NodeRoute{Dst: "10.1.8.0/24", NodeId: 8}})
	// Output:
	// error: <nil>
	// pending: [{route/10.1.7.0/24 [tunnel/7]}]
	// create tunnel/7
	// create route/10.1.7.0/24
	// error: <nil>
	// delete route/10.1.7.0/24
	// delete tunnel/7
	// error: <nil>
	// create tunnel/8
	// delete route/10.1.8.0/24
	// delete tunnel/8
	// error: route/10.1.8.0/24: no gateway
}
