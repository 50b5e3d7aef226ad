// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cidrset

import (
	"crypto/sha256"
	"encoding/hex"
)

// Owner is a Node object. Owners are told apart by their IDs; names are for people.
type Owner struct {
	Name string
	ID   ID
}

// ID is the UID of a Node object in 16 bytes: what it is made of where it is a
// UUID, as the API server makes them, and else a hash.
type ID [16]byte

// NewOwner is the Node object of this name and UID. Without a UID the name alone
// tells owners apart.
func NewOwner(name, uid string) Owner {
	o := Owner{Name: name}
	if parse(&o.ID, uid) {
		return o
	}
	if uid == "" {
		uid = "name/" + name
	}
	sum := sha256.Sum256([]byte(uid))
	copy(o.ID[:], sum[:])
	return o
}

// parse reads a UUID in the one form that the API server writes.
func parse(id *ID, uid string) bool {
	const form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
	if len(uid) != len(form) {
		return false
	}
	var digits [32]byte
	n := 0
	for i := range len(form) {
		switch c := uid[i]; {
		case form[i] == '-' && c != '-', form[i] == 'x' && (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		case c != '-':
			digits[n] = c
			n++
		}
	}
	_, err := hex.Decode(id[:], digits[:])
	return err == nil
}
