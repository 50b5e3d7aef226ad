// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/bbolt"
)

// Sizes and flags of bbolt's file format: a page begins with its number (8 bytes),
// flags (2), the count of its elements (2) and the number of pages that it goes on
// for (4). Positions of keys and values count from the beginning of their element.
const (
	pageHeader, pageElement, bucketHeader = 16, 16, 16
	branchPage, leafPage                  = 0x01, 0x02
	bucketElement                         = 0x01
)

// bounds walks through the pages of a file that are in use. It reads them from the
// file, not from the mapping, so that nothing it finds there can end the process.
type bounds struct {
	file     io.ReaderAt
	pageSize uint64
	pages    uint64 // number of pages of the database
	seen     map[uint64]struct{}
}

// checkBounds returns an error if a page in use has a key, a value or a further page
// outside of the page or the database. bbolt does not look at that, and would read
// beyond the end of the mapping.
func (f *File) checkBounds(tx *bbolt.Tx) error {
	size := uint64(f.db.Info().PageSize)
	b := bounds{file: f.handle, pageSize: size, pages: uint64(tx.Size()) / size, seen: map[uint64]struct{}{}}
	return b.page(uint64(tx.Cursor().Bucket().Root()))
}

func (b *bounds) page(id uint64) error {
	if _, twice := b.seen[id]; twice || id >= b.pages {
		return fmt.Errorf("page %d is used twice, or is not one of %d pages", id, b.pages)
	}
	b.seen[id] = struct{}{}
	data := make([]byte, b.pageSize)
	if _, err := b.file.ReadAt(data, int64(id*b.pageSize)); err != nil {
		return fmt.Errorf("read page %d: %w", id, err)
	}
	more := uint64(binary.NativeEndian.Uint32(data[12:]))
	if id+more >= b.pages {
		return fmt.Errorf("page %d goes on for %d pages, and the last page is %d", id, more, b.pages-1)
	}
	if more > 0 {
		data = make([]byte, (more+1)*b.pageSize)
		if _, err := b.file.ReadAt(data, int64(id*b.pageSize)); err != nil {
			return fmt.Errorf("read page %d: %w", id, err)
		}
	}
	if err := b.elements(data); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

var errBounds = errors.New("an element lies outside of its page")

func (b *bounds) elements(data []byte) error {
	flags, count := binary.NativeEndian.Uint16(data[8:]), int(binary.NativeEndian.Uint16(data[10:]))
	if flags != branchPage && flags != leafPage {
		return fmt.Errorf("its flags are %#x: want %#x or %#x", flags, branchPage, leafPage)
	}
	if pageHeader+count*pageElement > len(data) {
		return errBounds
	}
	for i := range count {
		at := pageHeader + i*pageElement
		var err error
		if e := data[at:]; flags == branchPage {
			err = b.branch(e)
		} else {
			err = b.leaf(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// branch checks the element at the beginning of e, which reaches to the end of its page.
func (b *bounds) branch(e []byte) error {
	pos, key := uint64(binary.NativeEndian.Uint32(e)), uint64(binary.NativeEndian.Uint32(e[4:]))
	if pos+key > uint64(len(e)) {
		return errBounds
	}
	return b.page(binary.NativeEndian.Uint64(e[8:]))
}

// leaf is branch for a key with its value, which may be a bucket.
func (b *bounds) leaf(e []byte) error {
	flags, pos := binary.NativeEndian.Uint32(e), uint64(binary.NativeEndian.Uint32(e[4:]))
	key, value := uint64(binary.NativeEndian.Uint32(e[8:])), uint64(binary.NativeEndian.Uint32(e[12:]))
	if pos+key+value > uint64(len(e)) {
		return errBounds
	}
	if flags&bucketElement == 0 {
		return nil
	}
	bucket := e[pos+key : pos+key+value]
	if len(bucket) < bucketHeader {
		return errBounds
	}
	if root := binary.NativeEndian.Uint64(bucket); root != 0 {
		return b.page(root)
	}
	if len(bucket) < bucketHeader+pageHeader { // a small bucket is a page within the value
		return errBounds
	}
	return b.elements(bucket[bucketHeader:])
}
