// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vppmodel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"go.fd.io/govpp/adapter"
	"go.fd.io/govpp/adapter/mock"
	"go.fd.io/govpp/api"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/codec"
)

// errDown is the error of a request to a VPP that has ended.
var errDown = errors.New("the model of VPP is down")

// Adapter is the transport of one connection. Numbers of messages are those of govpp's mock
// adapter.
type Adapter struct {
	*mock.VppAdapter
	model       *Model
	types       map[string]reflect.Type // by name of the message
	wantsEvents bool                    // with model.mu

	mu       sync.Mutex
	callback adapter.MsgCallback
	queue    [][]byte
	numbers  []uint16
	wake     chan struct{}
	running  sync.WaitGroup
	lost     chan struct{}
	broken   bool
}

// Lost returns a channel that is closed when the connection has broken.
func (a *Adapter) Lost() <-chan struct{} { return a.lost }

// SetMsgCallback sets the function that takes replies.
func (a *Adapter) SetMsgCallback(callback adapter.MsgCallback) { a.callback = callback }

// Connect opens the connection.
func (a *Adapter) Connect() error {
	a.types = map[string]reflect.Type{}
	for _, messages := range api.GetRegisteredMessages() {
		for _, m := range messages {
			a.types[m.GetMessageName()] = reflect.TypeOf(m).Elem()
		}
	}
	m := a.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errDown
	}
	m.adapters[a] = true
	a.wake = make(chan struct{}, 1)
	a.running.Go(a.run)
	return nil
}

// Disconnect closes the connection.
func (a *Adapter) Disconnect() error {
	a.model.mu.Lock()
	delete(a.model.adapters, a)
	a.breakOff()
	a.model.mu.Unlock()
	a.running.Wait()
	return nil
}

// breakOff ends the connection; model.mu is locked.
func (a *Adapter) breakOff() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.broken {
		a.broken = true
		close(a.lost)
	}
}

// run passes replies on, as the reader of a socket does, until the connection ends.
func (a *Adapter) run() {
	for {
		select {
		case <-a.lost:
			return
		case <-a.wake:
		}
		for {
			a.mu.Lock()
			if len(a.queue) == 0 || a.broken {
				a.mu.Unlock()
				break
			}
			data, number := a.queue[0], a.numbers[0]
			a.queue, a.numbers = a.queue[1:], a.numbers[1:]
			a.mu.Unlock()
			a.callback(number, data)
		}
	}
}

// GetMsgID returns the number of a message, if the VPP has it.
func (a *Adapter) GetMsgID(name, crc string) (uint16, error) {
	a.model.mu.Lock()
	lacks := a.model.lacks[name]
	a.model.mu.Unlock()
	if lacks {
		return 0, &adapter.UnknownMsgError{MsgName: name, MsgCrc: crc}
	}
	return a.VppAdapter.GetMsgID(name, crc)
}

// SendMsg executes a request.
func (a *Adapter) SendMsg(context uint32, data []byte) error {
	name, found := a.GetMsgNameByID(binary.BigEndian.Uint16(data))
	if !found || a.types[name] == nil {
		return fmt.Errorf("the model of VPP does not know message %q", name)
	}
	request, ok := reflect.New(a.types[name]).Interface().(api.Message)
	if !ok {
		return fmt.Errorf("%q is not a message", name)
	}
	if err := codec.DefaultCodec.DecodeMsg(data, request); err != nil {
		return err
	}
	if want, ok := request.(*interfaces.WantInterfaceEvents); ok {
		a.model.mu.Lock()
		a.wantsEvents = want.EnableDisable != 0
		a.model.mu.Unlock()
	}
	replies, ok := a.model.handle(a, request)
	if !ok {
		return nil // as with a socket, the request is lost without an error
	}
	for _, r := range replies {
		a.deliver(context, r)
	}
	return nil
}

// deliver queues a message for the callback.
func (a *Adapter) deliver(context uint32, m api.Message) {
	number, err := a.VppAdapter.GetMsgID(m.GetMessageName(), m.GetCrcString())
	if err != nil {
		panic(err) // the mock adapter knows each message
	}
	data, err := codec.DefaultCodec.EncodeMsg(m, number)
	if err != nil {
		panic(err) // a message of the model itself
	}
	if context != 0 {
		binary.BigEndian.PutUint32(data[2:6], context)
	}
	a.mu.Lock()
	a.queue, a.numbers = append(a.queue, data), append(a.numbers, number)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
