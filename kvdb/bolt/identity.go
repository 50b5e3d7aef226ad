// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// Records of the meta bucket that identify a commit.
const (
	lineageKey = "lineage"
	commitKey  = "commit"
)

// identity is a random number of 16 bytes.
type identity [16]byte

func (x identity) String() string { return hex.EncodeToString(x[:]) }

// MarshalText writes the number in hex.
func (x identity) MarshalText() ([]byte, error) { return []byte(x.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (x *identity) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(x) {
		return fmt.Errorf("identity %q: want %d hex digits", text, 2*len(x))
	}
	_, err := hex.Decode(x[:], text)
	return err
}

// commitID identifies one state of a database. Databases of one lineage come from
// one creation, or from one acceptance of a database in doubt. The zero value is an
// empty database.
type commitID struct {
	lineage  identity
	sequence uint64
	id       identity
	previous identity // id of the commit before
	at       int64    // Unix time in ns
}

func (c commitID) time() time.Time { return time.Unix(0, c.at).UTC() }

const commitLen = 8 + 16 + 16 + 8

// readCommit returns the commit that a transaction sees.
func readCommit(tx *bbolt.Tx) (c commitID, err error) {
	meta := tx.Bucket([]byte(metaBucket))
	if meta == nil {
		return c, nil
	}
	lineage, commit := meta.Get([]byte(lineageKey)), meta.Get([]byte(commitKey))
	if lineage == nil && commit == nil {
		return c, nil
	}
	if lineage, err = unseal(metaBucket, []byte(lineageKey), lineage); err != nil {
		return c, err
	}
	if commit, err = unseal(metaBucket, []byte(commitKey), commit); err != nil {
		return c, err
	}
	if len(lineage) != len(c.lineage) || len(commit) != commitLen {
		return c, damaged(
			fmt.Errorf(
				"records %q and %q of bucket %s have %d and %d bytes",
				lineageKey,
				commitKey,
				metaBucket,
				len(lineage),
				len(commit),
			),
		)
	}
	c.lineage, c.id, c.previous = identity(lineage), identity(commit[8:24]), identity(commit[24:40])
	c.sequence, c.at = binary.BigEndian.Uint64(commit), int64(binary.BigEndian.Uint64(commit[40:]))
	return c, nil
}

// write makes c the commit of a transaction.
func (c commitID) write(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
	if err != nil {
		return err
	}
	v := binary.BigEndian.AppendUint64(make([]byte, 0, commitLen), c.sequence)
	v = append(append(v, c.id[:]...), c.previous[:]...)
	v = binary.BigEndian.AppendUint64(v, uint64(c.at))
	if err := meta.Put([]byte(commitKey), seal([]byte(commitKey), v)); err != nil {
		return err
	}
	return meta.Put([]byte(lineageKey), seal([]byte(lineageKey), c.lineage[:]))
}
