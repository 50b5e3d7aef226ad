// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package watchlog_test

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/watchlog"
)

// A store appends the events of each commit; a watch reads those below its prefix.
func Example() {
	log := watchlog.New(1000, 7) // the store's revision
	defer log.Close()            // ends and awaits all watchers
	w, err := log.Watch(context.Background(), "nodes/", 8)
	if err != nil {
		fmt.Println(err)
		return
	}
	log.Append(8, []kvdb.Event{{KeyValue: kvdb.KeyValue{Key: "nodes/5", ModRevision: 8}}})
	batch := <-w.Events()
	fmt.Println(batch[0].Key, batch[0].ModRevision)
	// Output: nodes/5 8
}
