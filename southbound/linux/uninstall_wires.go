// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
)

// LivingWire is the wire of a pod whose network namespace lives: the kernel removes a wire
// with the namespace of its pod.
type LivingWire struct {
	Link       string       // its end on the node
	Attachment string       // network/container/interface
	Addrs      []netip.Addr // of the pod
}

// LivingWires returns the wires that Uninstall takes from pods that run. It changes nothing.
func LivingWires(opt Options) (all []LivingWire, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("list the wires of pods: %w", err)
		}
	}()
	ns, err := rtnl.Open(opt.Namespace)
	if err != nil {
		return nil, err
	}
	s, err := ns.Dial()
	if err = errors.Join(err, ns.Close()); err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	links, err := listLinks(s, vethKind)
	if err != nil {
		return nil, err
	}
	have, err := readObjects(s, 0)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		attachment, ofPod := strings.CutPrefix(l.key(), kv.SinkPodPrefix)
		if !ofPod || l.detached() {
			continue
		}
		w := LivingWire{Link: l.name, Attachment: attachment}
		w.Addrs = readAddresses(remains(l, hostObjects(l.linkID, have[l.index], nil)))
		all = append(all, w)
	}
	return all, nil
}
