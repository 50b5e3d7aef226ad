// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package mem_test

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

func Example() {
	store := mem.New(mem.History(100))
	defer func() { _ = store.Close() }()
	rev, err := store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put("nodes/5", []byte("record"))})
	fmt.Println(rev, err)
	// Output: 1 <nil>
}
