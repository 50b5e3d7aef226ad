// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// generalMessage is the size of rtgenmsg, with its padding.
const generalMessage = 4

// id returns the ID that the socket's namespace has for an open one. The kernel assigns
// one when a link leads to the other namespace, or on request; the ID does not keep the
// other namespace alive, and ends with it.
func (c *conn) id(fd int) (int32, error) {
	nsid, err := c.getID(fd)
	if err != nil || nsid >= 0 {
		return nsid, err
	}
	body := appendAttr(make([]byte, generalMessage), unix.NETNSA_NSID, ^uint32(0)) // any number
	body = appendAttr(body, unix.NETNSA_FD, uint32(fd))
	err = c.call(unix.RTM_NEWNSID, body, func([]byte) error { return nil })
	if err != nil && !errors.Is(err, unix.EEXIST) { // another process was faster
		return here, fmt.Errorf("assign an ID: %w", err)
	}
	if nsid, err = c.getID(fd); err == nil && nsid < 0 {
		err = errors.New("assign an ID: the kernel did not")
	}
	return nsid, err
}

// getID returns the ID of an open namespace, negative if it has none.
func (c *conn) getID(fd int) (int32, error) {
	nsid := int32(unix.NETNSA_NSID_NOT_ASSIGNED)
	body := appendAttr(make([]byte, generalMessage), unix.NETNSA_FD, uint32(fd))
	err := c.call(unix.RTM_GETNSID, body, func(b []byte) error {
		nsid = parseID(b)
		return nil
	})
	if err != nil {
		return here, fmt.Errorf("get the ID: %w", err)
	}
	return nsid, nil
}

// ids returns all IDs that the socket's namespace has for other ones, sorted.
func (c *conn) ids() ([]int32, error) {
	var ids []int32
	err := c.dump(unix.RTM_GETNSID, make([]byte, generalMessage), func() { ids = ids[:0] }, func(b []byte) error {
		if nsid := parseID(b); nsid >= 0 {
			ids = append(ids, nsid)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the IDs of namespaces: %w", err)
	}
	slices.Sort(ids)
	return ids, nil
}

func parseID(b []byte) int32 {
	nsid := int32(unix.NETNSA_NSID_NOT_ASSIGNED)
	if len(b) < generalMessage {
		return nsid
	}
	attributes(b[generalMessage:], func(kind uint16, v []byte) {
		if kind == unix.NETNSA_NSID {
			nsid = number(v)
		}
	})
	return nsid
}
