// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

const (
	// sweepBatch limits the links that one request removes: the kernel serves no other
	// request meanwhile.
	sweepBatch = 20
	// sweepPause is the time without a change that Sweep waits for, so that the wires of a
	// burst are removed together and behind it.
	sweepPause = 50 * time.Millisecond
	// sweepPatience limits the wait for such a pause.
	sweepPatience = time.Second
)

// sweep removes the tracked connections that Delete has left, in one go. It waits until no
// wire is made or detached for a moment, and removes a batch of
// detached links. The kernel waits about 20 ms for each request that removes links, and
// little more for twenty than for one.
func (w *wires) sweep(ctx context.Context) (more bool, err error) {
	links, err := listLinks(w.sweeper, vethKind)
	all := detachedLinks(links)
	if err == nil && len(all) > 0 {
		err = w.pause(ctx)
	}
	if err == nil {
		w.conntrack.test()
		err = w.conntrack.removePending()
	}
	if err != nil {
		return len(all) > 0, err
	}
	w.changing.Lock()
	defer w.changing.Unlock()
	links, err = listLinks(w.sweeper, "")
	if err != nil {
		return true, err
	}
	all = detachedLinks(links) // Create may have revived some
	part := all[:min(len(all), sweepBatch)]
	return len(all) > len(part), removeBatch(w.sweeper, part, links)
}

// detachedLinks returns the detached ones of links.
func detachedLinks(links []hostLink) (detached []hostLink) {
	for _, l := range links {
		if l.detached() && l.key() != "" {
			detached = append(detached, l)
		}
	}
	return detached
}

// removeBatch removes a part of all links with one request: all those of a group. If a link
// of another program is in that group, the links are removed one by one.
func removeBatch(s *rtnl.Socket, part, all []hostLink) error {
	if len(part) == 0 {
		return nil
	}
	foreign := func(l hostLink) bool {
		return l.group == sweptGroup && !strings.HasPrefix(l.alias, aliasPrefix)
	}
	alone := slices.ContainsFunc(all, foreign)
	var requests []*rtnl.Request
	for _, l := range part {
		r := changeLink("mark link "+l.name, l.index, 0, 0, rtnl.Message(nil).U32(unix.IFLA_GROUP, sweptGroup))
		if alone {
			r = &rtnl.Request{What: "remove link " + l.name, Kind: unix.RTM_DELLINK, Body: ifinfo(l.index, 0, 0)}
		}
		r.Allow = []unix.Errno{unix.ENODEV} // it ended with the pod's namespace
		requests = append(requests, r)
	}
	if err := s.Run(requests); err != nil || alone {
		return err
	}
	return s.Run([]*rtnl.Request{{
		What:  fmt.Sprintf("remove %d links", len(part)),
		Kind:  unix.RTM_DELLINK,
		Body:  ifinfo(0, 0, 0).U32(unix.IFLA_GROUP, sweptGroup),
		Allow: []unix.Errno{unix.ENODEV},
	}})
}

// pause waits until nothing has changed for sweepPause, or for sweepPatience.
func (w *wires) pause(ctx context.Context) error {
	enough := w.opt.After(sweepPatience)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-enough:
			return nil
		case <-w.opt.After(sweepPause):
			return nil
		case <-w.changed:
		}
	}
}
