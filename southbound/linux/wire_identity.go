// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// openPod opens what the path of a pod's network namespace names now: that namespace, or
// another one.
func openPod(p *wirePlan) (*rtnl.Namespace, error) {
	ns, err := rtnl.Open(p.netns)
	if errors.Is(err, rtnl.ErrNone) {
		return nil, fmt.Errorf("%w: %w", southbound.ErrGone, err)
	}
	return ns, err
}

// identify returns the identity of an open namespace with a socket in it.
func (w *wires) identify(ns *rtnl.Namespace, s *rtnl.Socket) kv.NetNSID {
	return kv.NetNSID{Boot: w.opt.BootID, Dev: ns.ID().Device, Inode: ns.ID().Inode, Cookie: s.Cookie()}
}

// differs returns an error if an open namespace is certainly not the one of a plan.
func (w *wires) differs(p *wirePlan, ns *rtnl.Namespace, s *rtnl.Socket) error {
	if have := w.identify(ns, s); have.IsNot(p.namespace) {
		return fmt.Errorf("%w: %s names another network namespace by now: %s, not %s",
			southbound.ErrGone, p.netns, have, p.namespace)
	}
	return nil
}

// confirm returns an error unless an open namespace is the one of a plan. If the identities do
// not tell, one of two facts does. The pod's link is the other end of ours, since a pair of
// links ends with its namespace. Or the wire is made for the first time, right after the ADD.
func (w *wires) confirm(p *wirePlan, ns *rtnl.Namespace) error {
	s, err := ns.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }() // it was only read
	if err := w.differs(p, ns, s); err != nil {
		return err
	}
	w.mu.Lock()
	begun := w.begun[p.key]
	w.mu.Unlock()
	if same, _ := w.identify(ns, s).Is(p.namespace); same || !begun {
		return nil
	}
	link, found, err := getLink(w.host, p.hostName)
	if err != nil {
		return err
	}
	pod, podFound, err := getLink(s, p.podName)
	if err != nil {
		return fmt.Errorf("in %s: %w", p.netns, err)
	}
	nsid, err := namespaceID(w.host, ns.Fd())
	if err != nil {
		return err
	}
	if found && podFound && link.joins(nsid, pod) {
		return nil
	}
	return fmt.Errorf("%w, as far as can be told: %s may name another network namespace than at the ADD, "+
		"and no link of the node leads there: delete the pod", southbound.ErrGone, p.netns)
}

// joins reports whether a link is one of ours whose other end is a link in the namespace that
// has a number here.
func (l hostLink) joins(nsid int32, pod hostLink) bool {
	return nsid != rtnl.Here && l.peerNSID == nsid && l.peer == pod.index && l.ours()
}
