// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import "crypto/sha256"

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

// parse reads a UUID in the one form that the API server writes. It is most of
// what an owner costs, and so it looks digits up.
func parse(id *ID, uid string) bool {
	const pairs = "\x00\x02\x04\x06\x09\x0b\x0e\x10\x13\x15\x18\x1a\x1c\x1e\x20\x22" // where bytes begin
	if len(uid) != 36 || uid[8] != '-' || uid[13] != '-' || uid[18] != '-' || uid[23] != '-' {
		return false
	}
	bad := byte(0)
	for i := range id {
		at := pairs[i]
		high, low := digits[uid[at]], digits[uid[at+1]]
		bad |= high | low
		id[i] = high<<4 | low&15
	}
	return bad < 16
}

// digits has the value of every character that is a hexadecimal digit in small
// letters, and 255 for the others.
const (
	none   = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
	digits = none + none + none + "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\xff\xff\xff\xff\xff\xff" + none + none +
		"\xff\x0a\x0b\x0c\x0d\x0e\x0f\xff\xff\xff\xff\xff\xff\xff\xff\xff" + none +
		none + none + none + none + none + none + none + none
)
