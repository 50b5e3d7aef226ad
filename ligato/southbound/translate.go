// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
)

// translate returns Ligato's values of a value of ours. A NodeRoute whose gateway is on no
// link of this node has none yet: pending has the reason.
func (s *Sink) translate(key string, m proto.Message) (v values, pending string, err error) {
	switch m := m.(type) {
	case *kv.PodNetwork:
		v, err = podValues(m)
	case *kv.NodeRoute:
		v, pending, err = s.links.routeValues(m)
	case *kv.NodeNetwork: // the addresses of a node are not made, only used
	case *kv.Network:
		if m.GetTable() != 0 {
			err = fmt.Errorf("table %d: %w: want table 0, the main table", m.GetTable(), errNoRules)
		}
	default:
		kind, _, _ := strings.Cut(key, "/")
		err = fmt.Errorf("%s (%T): the Linux plugins of Ligato cannot make it: want pods, routes and networks "+
			"of the main table only", kind, m)
	}
	return v, pending, err
}
