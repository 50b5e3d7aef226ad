// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/southbound/linux/rtnl"
)

const (
	// sweepBatch limits the links that one request removes: the kernel serves no other
	// request meanwhile.
	sweepBatch = 20
	// sweepPause is the time without a change that Sweep waits for, so that the wires of a
	// burst are removed together and behind it.
	sweepPause = 50 * time.Millisecond
	// sweepPatience limits the number of pauses that a change cuts short.
	sweepPatience = 20
)

// Sweep waits until no wire is made or detached for a moment, and removes a batch of
// detached links. The kernel waits about 20 ms for each request that removes links, and
// little more for twenty than for one.
func (w *Wires) Sweep(ctx context.Context) (more bool, err error) {
	all, err := w.detachedLinks()
	if err != nil || len(all) == 0 {
		return false, err
	}
	if err := w.pause(ctx); err != nil {
		return true, err
	}
	w.changing.Lock()
	defer w.changing.Unlock()
	if all, err = w.detachedLinks(); err != nil || len(all) == 0 { // Create may have revived some
		return false, err
	}
	rest := all[min(len(all), sweepBatch):]
	var marks []*rtnl.Request
	for _, l := range all[:len(all)-len(rest)] {
		group := rtnl.Message(nil).U32(unix.IFLA_GROUP, sweptGroup)
		mark := changeLink("mark link "+l.name, l.index, 0, 0, group)
		mark.Allow = []unix.Errno{unix.ENODEV} // it ended with the pod's namespace
		marks = append(marks, mark)
	}
	if err := w.sweeper.Run(marks); err != nil {
		return len(rest) > 0, err
	}
	return len(rest) > 0, w.sweeper.Run([]*rtnl.Request{{
		What:  fmt.Sprintf("remove %d detached links", len(marks)),
		Kind:  unix.RTM_DELLINK,
		Body:  ifinfo(0, 0, 0).U32(unix.IFLA_GROUP, sweptGroup),
		Allow: []unix.Errno{unix.ENODEV},
	}})
}

// detachedLinks returns the detached links. It is an error if another program has put a
// link of its own into the group that is removed.
func (w *Wires) detachedLinks() (detached []hostLink, err error) {
	all, err := listLinks(w.sweeper)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		switch {
		case l.detached() && l.key() != "":
			detached = append(detached, l)
		}
	}
	return detached, nil
}

// pause waits until nothing has changed for sweepPause.
func (w *Wires) pause(ctx context.Context) error {
	for range sweepPatience {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.changed:
		case <-w.opt.After(sweepPause):
			return nil
		}
	}
	return nil
}
