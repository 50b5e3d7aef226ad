// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
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
	body := rtnl.Message(make([]byte, generalMessage)).U32(unix.NETNSA_NSID, ^uint32(0)) // any number
	body = body.U32(unix.NETNSA_FD, uint32(fd))
	err = c.Run([]*rtnl.Request{{
		What:  "assign an ID to a network namespace",
		Kind:  unix.RTM_NEWNSID,
		Body:  body,
		Allow: []unix.Errno{unix.EEXIST}, // another process was faster
	}})
	if err != nil {
		return rtnl.Here, err
	}
	if nsid, err = c.getID(fd); err == nil && nsid < 0 {
		err = errors.New("assign an ID: the kernel did not")
	}
	return nsid, err
}

// getID returns the ID of an open namespace, negative if it has none.
func (c *conn) getID(fd int) (int32, error) {
	nsid := int32(unix.NETNSA_NSID_NOT_ASSIGNED)
	body := rtnl.Message(make([]byte, generalMessage)).U32(unix.NETNSA_FD, uint32(fd))
	err := c.Run([]*rtnl.Request{{
		What: "get the ID of a network namespace",
		Kind: unix.RTM_GETNSID,
		Body: body,
		Each: func(_ uint16, b []byte) { nsid = parseID(b) },
	}})
	if err != nil {
		return rtnl.Here, err
	}
	return nsid, nil
}

// ids returns all IDs that the socket's namespace has for other ones, sorted.
func (c *conn) ids() ([]int32, error) {
	var ids []int32
	reset := func() { ids = ids[:0] }
	err := c.Dump("the IDs of namespaces", unix.RTM_GETNSID, make([]byte, generalMessage), reset, func(b []byte) {
		if nsid := parseID(b); nsid >= 0 {
			ids = append(ids, nsid)
		}
	})
	slices.Sort(ids)
	return ids, err
}

func parseID(b []byte) int32 {
	nsid := int32(unix.NETNSA_NSID_NOT_ASSIGNED)
	if len(b) < generalMessage {
		return nsid
	}
	rtnl.Attributes(b[generalMessage:], func(kind uint16, v []byte) {
		if kind == unix.NETNSA_NSID {
			nsid = int32(rtnl.Number(v))
		}
	})
	return nsid
}
