// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"testing"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// A test of an implementation runs the whole suite.
func ExampleRun() {
	testContract := func(t *testing.T) {
		kvdbtest.Run(t, func(*testing.T) kvdb.Store { return mem.New() })
	}
	_ = testContract
}
