// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// configDiffers returns how the pod network of contiv.conf differs from the pools
// of the cluster, "" if an active pool has its ranges. contiv.conf sets the first
// pool of a cluster only. Without an active pool there is nothing to differ from.
func (i *IPAM) configDiffers(pools []poolplan.Pool) string {
	conf := poolplan.FromCluster(i.ContivConf.Cluster())
	var active []string
	for _, p := range pools {
		if p.Network != PodPool || p.State != poolplan.Active {
			continue
		}
		if slices.Equal(p.Ranges, conf.Ranges) {
			return ""
		}
		active = append(active, fmt.Sprintf("pool %s with %s", p.Name, ranges(p)))
	}
	if len(active) == 0 { // in the middle of a change of several pools, each of which is an event
		return ""
	}
	return fmt.Sprintf("contiv.conf has podSubnetCIDR %s, but the cluster has %s, and the cluster's pools count: write the ranges of one of them into contiv.conf, "+
		"or change the pools with cadastre apply", ranges(conf), strings.Join(active, " and "))
}

// ranges describes the ranges of a pool.
func ranges(p poolplan.Pool) string {
	var all []string
	for _, r := range p.Ranges {
		all = append(all, fmt.Sprintf("%s (a /%d for each node)", r.CIDR, r.OneNode))
	}
	return strings.Join(all, ", ")
}

// noteDifference puts a difference of contiv.conf into the state, and logs it when
// it changes.
func (i *IPAM) noteDifference(s *state) {
	before := ""
	if old := i.state.Load(); old != nil {
		before = old.differs
	}
	s.differs = i.configDiffers(s.pools)
	switch {
	case s.differs == before:
	case s.differs == "":
		i.Log.Info("contiv.conf differs no more from the pools of the cluster")
	default:
		i.Log.Warn(s.differs)
	}
}

// ConfigDiffers returns how contiv.conf differs from the pools of the cluster, ""
// if it does not.
func (i *IPAM) ConfigDiffers() string { return i.state.Load().differs }
