// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"net/netip"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// Subject returns the pod with its addresses: those that it got, or those that it wanted.
func (ev *AddPod) Subject() controller.Subject {
	all := ev.addrs()
	if len(all) == 0 {
		all = ev.Wanted
	}
	s := subjectOf(ev.Pod, ev.Key, all)
	s.Pool = ev.Pool
	return s
}

// addrs returns the addresses that the pod got.
func (ev *AddPod) addrs() []netip.Addr {
	all := make([]netip.Addr, 0, len(ev.Addresses))
	for _, p := range ev.Addresses {
		all = append(all, p.Addr())
	}
	return all
}

// Subject returns the pod, if it had a lease, with the addresses that were freed.
func (ev *DeletePod) Subject() controller.Subject { return subjectOf(ev.Pod, ev.Key, ev.Freed) }

func subjectOf(pod kv.PodID, key ledger.Key, addrs []netip.Addr) controller.Subject {
	s := controller.Subject{Container: key.ContainerID}
	if pod.Name != "" {
		s.Pod = pod.String()
	}
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, a.String())
	}
	return s
}
