// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/bbolt"
)

// Sizes and flags of bbolt's file format. A page begins with its number (8 bytes),
// flags (2), the count of its elements (2) and the number of pages that it goes on for
// (4). Positions of keys and values count from the beginning of their element.
const (
	pageHeader, pageElement, bucketHeader = 16, 16, 16
	branchPage, leafPage, freePage        = 0x01, 0x02, 0x10
	bucketElement                         = 0x01

	metaFreelist = 48         // position of the number of the list of free pages in a meta page
	longList     = 0xffff     // the count of a list whose first number is its count
	noFreelist   = ^uint64(0) // the list is not in the file
)

// pages checks the pages of a file. It reads them from the file, not from the
// mapping, so that nothing it finds there can end the process. bbolt's own check
// (Tx.Check) is for whole files: it follows positions and lengths wherever they
// lead, in a goroutine of its own, in which a fault cannot be caught.
type pages struct {
	file  io.ReaderAt
	size  uint64
	count uint64              // number of pages of the database
	free  map[uint64]struct{} // pages that the next transactions overwrite
	used  map[uint64]struct{}

	unlisted bool // the file has no list of free pages
}

// checkPages returns an error if a page in use is on the list of free pages or is used twice.
// The same holds if a page is neither in use nor free, or if keys are out of order, so that a
// record could not be found. It also returns one if a key, a value or a further page lies
// outside of its page or of the database.
func (f *File) checkPages(tx *bbolt.Tx) error {
	size := uint64(f.db.Info().PageSize)
	p := pages{
		file:  f.handle,
		size:  size,
		count: uint64(tx.Size()) / size,
		free:  map[uint64]struct{}{},
		used:  map[uint64]struct{}{0: {}, 1: {}},
	}
	if err := p.readFree(uint64(tx.ID()) % 2); err != nil {
		return err
	}
	if err := p.tree(uint64(tx.Cursor().Bucket().Root()), nil, nil); err != nil {
		return err
	}
	return p.all()
}

// all compares the number of pages with those that are in use or free: the list of free
// pages has no checksum.
func (p *pages) all() error {
	if n := uint64(len(p.used) + len(p.free)); !p.unlisted && n != p.count {
		return fmt.Errorf("%d pages are in use and %d are free: want %d together", len(p.used), len(p.free), p.count)
	}
	return nil
}

// readFree reads the list of free pages that a meta page names.
func (p *pages) readFree(meta uint64) error {
	data := make([]byte, metaFreelist+8)
	if _, err := p.file.ReadAt(data, int64(meta*p.size)); err != nil {
		return fmt.Errorf("read page %d: %w", meta, err)
	}
	id := binary.NativeEndian.Uint64(data[metaFreelist:])
	if id == noFreelist {
		p.unlisted = true
		return nil
	}
	data, err := p.take(id)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	list, n := data[pageHeader:], uint64(binary.NativeEndian.Uint16(data[10:]))
	if n == longList {
		n, list = binary.NativeEndian.Uint64(list), list[8:]
	}
	if flags := binary.NativeEndian.Uint16(data[8:]); flags != freePage || n > uint64(len(list))/8 {
		return fmt.Errorf(
			"list of free pages on page %d: its flags are %#x and its count is %d: want %#x and at most %d",
			id,
			flags,
			n,
			freePage,
			len(list)/8,
		)
	}
	for last := uint64(1); n > 0; n, list = n-1, list[8:] {
		free := binary.NativeEndian.Uint64(list)
		if free <= last || free >= p.count {
			return fmt.Errorf(
				"list of free pages on page %d: page %d follows page %d of %d: want ascending numbers",
				id,
				free,
				last,
				p.count,
			)
		}
		p.free[free] = struct{}{}
		last = free
	}
	return nil
}

// take reads a page with those that it goes on for, and notes that they are in use.
func (p *pages) take(id uint64) ([]byte, error) {
	if id >= p.count {
		return nil, fmt.Errorf("page %d is used: the last page is %d", id, p.count-1)
	}
	data := make([]byte, p.size)
	if _, err := p.file.ReadAt(data, int64(id*p.size)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	more := uint64(binary.NativeEndian.Uint32(data[12:]))
	if id+more >= p.count {
		return nil, fmt.Errorf("page %d goes on for %d pages: the last page is %d", id, more, p.count-1)
	}
	for i := id; i <= id+more; i++ {
		if _, twice := p.used[i]; twice {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		if _, free := p.free[i]; free {
			return nil, fmt.Errorf("page %d is used, and on the list of free pages", i)
		}
		p.used[i] = struct{}{}
	}
	if more == 0 {
		return data, nil
	}
	data = make([]byte, (more+1)*p.size)
	if _, err := p.file.ReadAt(data, int64(id*p.size)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return data, nil
}

// tree checks a page and all below it, whose keys are from least on and before end;
// nil sets no limit.
func (p *pages) tree(id uint64, least, end []byte) error {
	data, err := p.take(id)
	if err == nil {
		err = p.elements(data, least, end)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

var (
	errOutside = errors.New("an element lies outside of its page")
	errOrder   = errors.New("its keys are out of order")
)

// element is a key of a page with what it leads to.
type element struct {
	key    []byte
	child  uint64 // of a branch
	value  []byte // of a leaf
	bucket bool
}

func (p *pages) elements(data, least, end []byte) error {
	all, err := elementsOf(data)
	if err != nil {
		return err
	}
	for i, e := range all {
		if i > 0 && bytes.Compare(all[i-1].key, e.key) >= 0 || bytes.Compare(least, e.key) > 0 ||
			end != nil && bytes.Compare(e.key, end) >= 0 {
			return errOrder
		}
		switch {
		case e.bucket:
			err = p.bucket(e.value)
		case e.value == nil:
			next := end
			if i+1 < len(all) {
				next = all[i+1].key
			}
			err = p.tree(e.child, e.key, next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket checks a bucket within another one. A small one is a page within the value.
func (p *pages) bucket(value []byte) error {
	if len(value) < bucketHeader {
		return errOutside
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.tree(root, nil, nil)
	}
	if len(value) < bucketHeader+pageHeader {
		return errOutside
	}
	return p.elements(value[bucketHeader:], nil, nil)
}

// elementsOf returns the elements of a page, none of which lies outside of it.
func elementsOf(data []byte) (all []element, err error) {
	flags, count := binary.NativeEndian.Uint16(data[8:]), int(binary.NativeEndian.Uint16(data[10:]))
	switch {
	case flags != branchPage && flags != leafPage:
		return nil, fmt.Errorf("its flags are %#x: want %#x or %#x", flags, branchPage, leafPage)
	case pageHeader+count*pageElement > len(data):
		return nil, errOutside
	case flags == branchPage && count == 0:
		return nil, errors.New("it has no elements, and is a branch")
	}
	for i := range count {
		e := data[pageHeader+i*pageElement:]
		number := func(at int) uint64 { return uint64(binary.NativeEndian.Uint32(e[at:])) }
		if flags == branchPage {
			pos, key := number(0), number(4)
			if pos+key > uint64(len(e)) {
				return nil, errOutside
			}
			all = append(all, element{key: e[pos : pos+key], child: binary.NativeEndian.Uint64(e[8:])})
			continue
		}
		pos, key, value := number(4), number(8), number(12)
		if pos+key+value > uint64(len(e)) {
			return nil, errOutside
		}
		at := pos + key
		all = append(
			all,
			element{key: e[pos:at], value: e[at : at+value : at+value], bucket: number(0)&bucketElement != 0},
		)
	}
	return all, nil
}
