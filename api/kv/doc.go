// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kv has the messages that are stored or committed southbound, and the
// keys that they are stored under. The messages are generated from kv.proto
// (make generate). All packages may read them. A message that was handed to another
// package is not changed any more.
package kv

//go:generate protoc -I ../.. --go_out=../.. --go_opt=paths=source_relative api/kv/kv.proto
