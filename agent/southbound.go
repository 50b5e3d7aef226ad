// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/southbound"
)

// southbound returns the state of the values of the network. ok is false if the agent
// changes nothing of the network, or a caller has set the southbound.
func (a *assembly) southbound() (status southbound.Status, ok bool) {
	s, ok := a.sink.(interface{ Status() southbound.Status })
	if !ok {
		return status, false
	}
	return s.Status(), true
}

// watchSouthbound adds the gauges of the values of the network.
func (a *assembly) watchSouthbound() {
	if _, ok := a.southbound(); !ok {
		return
	}
	plane := a.conf.Cadastre
	a.metrics.WatchSouthbound(string(plane.Dataplane), string(plane.Transport), func() localapi.Southbound {
		made, _ := a.southbound()
		return *southboundOf(made)
	})
}

// southboundOf returns the view of a status.
func southboundOf(status southbound.Status) *localapi.Southbound {
	s := &localapi.Southbound{Made: status.Made, Pending: len(status.Pending), Failed: len(status.Failed)}
	for _, f := range status.Failed {
		v := localapi.SouthboundValue{Key: f.Key, Error: f.Error, Foreign: f.Foreign}
		if f.Foreign {
			s.Foreign++
		}
		if !f.Retry.IsZero() {
			v.Retry = &f.Retry
		}
		s.Values = append(s.Values, v)
	}
	for _, p := range status.Pending {
		s.Values = append(s.Values, localapi.SouthboundValue{Key: p.Key, WaitsFor: p.WaitsFor})
	}
	s.Values = s.Values[:min(len(s.Values), localapi.MaxSouthboundValues)]
	return s
}
