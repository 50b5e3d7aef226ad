// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
)

// The second commit is applied although it returns an error.
func Example() {
	ctx, memory := context.Background(), journal.NewMemory()
	j := &journal.Faulty{Journal: memory, Plan: journal.At(2, journal.Tear)}
	for _, key := range []string{"a", "b", "c"} {
		fmt.Println(j.Commit(ctx, []kvdb.Op{kvdb.Put(key, nil)}), memory.Commits())
	}
	// Output:
	// <nil> 1
	// commit 2: injected fault 2
	// <nil> 3
}
