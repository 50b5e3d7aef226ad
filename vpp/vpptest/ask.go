// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"context"
	"fmt"
	"reflect"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/memclnt"
	"go.fd.io/govpp/core"
)

// Ask sends a request, and returns the reply and the number in it.
func Ask(ctx context.Context, conn api.Connection, request api.Message) (reply api.Message, number int32, err error) {
	for _, messages := range api.GetRegisteredMessages() {
		for _, m := range messages {
			if m.GetMessageName() == request.GetMessageName()+"_reply" {
				reply = reflect.New(reflect.TypeOf(m).Elem()).Interface().(api.Message)
			}
		}
	}
	if reply == nil {
		return nil, 0, fmt.Errorf("%s: no type of a reply is known", request.GetMessageName())
	}
	if err := conn.Invoke(ctx, request, reply); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", request.GetMessageName(), err)
	}
	return reply, int32(reflect.ValueOf(reply).Elem().FieldByName("Retval").Int()), nil
}

// details sends a request for details, and returns those of one type.
func details[T api.Message](conn api.Connection, request api.Message) (all []T, err error) {
	stream, err := conn.NewStream(context.Background(),
		core.WithReplySize(1<<14), core.WithReplyTimeout(answerTime))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }() // it is open
	for _, m := range []api.Message{request, &memclnt.ControlPing{}} {
		if err := stream.SendMsg(m); err != nil {
			return nil, fmt.Errorf("%s: %w", m.GetMessageName(), err)
		}
	}
	for {
		reply, err := stream.RecvMsg()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", request.GetMessageName(), err)
		}
		switch m := reply.(type) {
		case *memclnt.ControlPingReply:
			return all, nil
		case T:
			all = append(all, m)
		}
	}
}
