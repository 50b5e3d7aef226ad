// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
)

// TestWiresThatAreDamagedWhileTheyAreMadeAreComplete removes the pair of links, or the
// address, as soon as Create waits for the kernel: the wire is made again at once.
func TestWiresThatAreDamagedWhileTheyAreMadeAreComplete(t *testing.T) {
	for what, harm := range map[string]func(*labPod) error{
		"the pair is removed": func(p *labPod) error { return podEnd(p, netlink.LinkDel)() },
		"the address is removed": func(p *labPod) error {
			return podEnd(p, func(link netlink.Link) error {
				if _, err := netlink.RouteGet(p.ip[1].AsSlice()); err == nil {
					return errors.New("Create does not wait for this address any more")
				}
				return deleteAddress(p.ip[1].String() + "/128")(link)
			})()
		},
	} {
		t.Run(what, func(t *testing.T) {
			var p *labPod
			harmed := false
			l := newWireLab(t, Options{After: func(wait time.Duration) <-chan time.Time {
				if !harmed && harm(p) == nil {
					harmed = true
				}
				return time.After(wait)
			}})
			for range 200 { // the kernel is mostly, but not always, slower than the first look
				p = l.pod()
				l.Expect(l.wires.Create(context.Background(), p.key, p.value)).To(Succeed(), what)
				l.complete(p)
				l.delete(p)
				if harmed {
					return
				}
			}
			t.Skip("NOT RUN: the kernel was never slower than the first look at its routes")
		})
	}
}
