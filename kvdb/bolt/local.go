// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"fmt"

	"go.etcd.io/bbolt"
)

// Local returns what the node remembers of itself under a name, "" for nothing.
func (f *File) Local(name string) (value string, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		v, err := openTable(tx, nodeBucket).get(name)
		value = string(v)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("database %s: %w", f.path, err)
	}
	return value, nil
}

// SetLocal stores value under a name; it is durable when it returns.
func (f *File) SetLocal(name, value string) error {
	err := f.commits.commit(context.Background(), func(tx *bbolt.Tx) (bool, error) {
		t, err := createTable(tx, nodeBucket)
		if err != nil {
			return true, err
		}
		return true, t.put(name, []byte(value))
	})
	if err != nil {
		return fmt.Errorf("database %s: remember %s: %w", f.path, name, err)
	}
	return nil
}
