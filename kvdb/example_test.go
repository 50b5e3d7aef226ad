// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdb_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// A node claims ID 5 if no other node holds it.
func Example() {
	store := mem.New()
	defer func() { _ = store.Close() }()
	claim := func(node string) {
		_, err := store.Txn(context.Background(),
			[]kvdb.Cond{kvdb.Absent("nodes/5")},
			[]kvdb.Op{kvdb.Put("nodes/5", []byte(node))})
		fmt.Println(node, "was too late:", errors.Is(err, kvdb.ErrConditions))
	}
	claim("node-a")
	claim("node-b")
	// Output:
	// node-a was too late: false
	// node-b was too late: true
}
