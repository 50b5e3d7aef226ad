// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package vppmodel is a model of VPP 25.10 behind the mock adapter of govpp: it keeps the
// objects that package vpp makes, answers its messages, and refuses what VPP refuses with the
// same number. It forwards no packets.
package vppmodel

import (
	"sync"

	"go.fd.io/govpp/adapter/mock"
)

// Model is one VPP. Any goroutine may call it.
type Model struct {
	mu sync.Mutex
}

// New returns a VPP without objects but local0.
func New() *Model { return &Model{} }

// Adapter returns a transport to the model, for one connection.
func (m *Model) Adapter() *Adapter {
	return &Adapter{VppAdapter: mock.NewVppAdapter(), model: m, lost: make(chan struct{})}
}

// Adapter is the transport of one connection.
type Adapter struct {
	*mock.VppAdapter
	model *Model
	lost  chan struct{}
}

// Lost returns a channel that is closed when the connection has broken.
func (a *Adapter) Lost() <-chan struct{} { return a.lost }

// Restart ends the VPP and starts another one: all objects are gone, connections are broken.
func (m *Model) Restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
}
