// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Unreadable is a node record that cannot be read. Its ID counts as taken, and no
// other node is affected by it.
type Unreadable struct {
	ID  uint32
	Err error
}

// readRecord reads the node record that is stored at a key. With an error it
// returns a record of the ID that the key tells, and of no node. It returns nil
// for a key that tells no ID.
func readRecord(x kvdb.KeyValue) (*kv.NodeRecord, error) {
	id, m := kv.NodeRecordID(x.Key), &kv.NodeRecord{}
	if id == 0 {
		return nil, fmt.Errorf("key %s has no node ID", x.Key)
	}
	err := proto.Unmarshal(x.Value, m)
	if err == nil && m.Id != id {
		err = fmt.Errorf("it is the record of node ID %d", m.Id)
	}
	if err != nil {
		return &kv.NodeRecord{Id: id}, fmt.Errorf("the value of %s cannot be read: %w", x.Key, err)
	}
	return m, nil
}

// isOwn reports whether a record that cannot be read is this node's, which may then write
// it again. It is this node's if the node's disk remembers a claim of the ID, and the last
// claim under its name was of this instance and this ID.
func (c claim) isOwn(who Identity, id uint32) bool {
	return c.want.ID == id && c.want.Generation > 0 && c.name.Id == id && c.name.Instance == who.Instance
}
