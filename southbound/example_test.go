// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// printed makes values by printing them.
type printed struct{ prefix string }

func (p printed) Name() string                         { return p.prefix }
func (p printed) Handles(key string) bool              { return strings.HasPrefix(key, p.prefix) }
func (p printed) Validate(string, proto.Message) error { return nil }

// Dependencies returns the tunnel that a route needs.
func (p printed) Dependencies(_ string, m proto.Message) []string {
	if r, ok := m.(*kv.NodeRoute); ok {
		return []string{fmt.Sprint(kv.SinkTunnelPrefix, r.NodeId)}
	}
	return nil
}

func (p printed) Create(_ context.Context, key string, m proto.Message) error {
	if r, ok := m.(*kv.NodeRoute); ok && r.Gateway == "" {
		return errors.New("no gateway")
	}
	fmt.Println("create", key)
	return nil
}

func (p printed) Update(_ context.Context, key string, _, _ proto.Message) error {
	fmt.Println("update", key)
	return nil
}

func (p printed) Delete(_ context.Context, key string, _ proto.Message) error {
	fmt.Println("delete", key)
	return nil
}

func (p printed) Retrieve(context.Context, []controller.Value) ([]controller.Value, error) {
	return nil, nil
}

// A route waits for its tunnel. A transaction that reverts on failure leaves nothing.
func ExampleNew() {
	s := southbound.New(southbound.Options{}, printed{kv.SinkTunnelPrefix}, printed{kv.SinkRoutePrefix})
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
