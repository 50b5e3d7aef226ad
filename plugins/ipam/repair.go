// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// gone marks the origin of a pool whose custom network was deleted.
const gone = " (deleted)"

// Repair returns the repair of the pools in the cluster store. It writes lost pools again.
// It gives network "default" its first pool from the configuration, and each custom network
// its own. It drains the pool of a custom network that was seen being deleted. It does not
// change an object that cannot be a pool; the plugin reports it.
func Repair(conf contivconf.API) kubestate.Repair {
	return func(known, found controller.KubeStateData, deleted []string) []kubestate.Write {
		r := repair{
			pools:   poolsIn(found),
			changed: map[string]poolplan.Pool{},
			added:   map[string]poolplan.Pool{},
		}
		lost := false
		for name, p := range poolsIn(known) {
			lost = lost || r.pools[name].Generation == 0
			if merged, write := poolplan.Merge(p, r.pools[name]); write {
				r.set(merged, r.changed)
			}
		}
		if conf.PodBlocks() == contivconf.PodBlocksNodeID && !r.has(PodPool) {
			r.set(poolplan.FromCluster(conf.Cluster()), r.added)
		}
		r.networks(found, Reserved(conf))
		if !lost { // otherwise the whole store may be lost
			r.deleted(deleted, found)
		}
		return r.writes()
	}
}

func poolsIn(state controller.KubeStateData) map[string]poolplan.Pool {
	pools := map[string]poolplan.Pool{}
	for key, m := range state[kubestate.Pools] {
		if p, err := poolAt(key, m.(*kv.Pool)); err == nil {
			pools[p.Name] = p
		}
	}
	return pools
}

// repair holds the pools during one call of Repair.
type repair struct {
	pools   map[string]poolplan.Pool
	changed map[string]poolplan.Pool // new values of stored pools
	added   map[string]poolplan.Pool // new pools
}

func (r *repair) set(p poolplan.Pool, in map[string]poolplan.Pool) {
	r.pools[p.Name], in[p.Name] = p, p
}

func (r *repair) has(network string) bool {
	for _, p := range r.pools {
		if p.Network == network {
			return true
		}
	}
	return false
}

// networks adds the pools of custom networks.
func (r *repair) networks(found controller.KubeStateData, reserved []poolplan.Reserved) {
	found.Sorted(kubestate.CustomNetworks, func(key string, m proto.Message) bool {
		p, err := poolOf(key, m.(*kv.CustomNetwork))
		if err != nil {
			return true
		}
		have, exists := r.pools[p.Name]
		switch {
		case !exists:
			all := slices.Collect(maps.Values(r.pools))
			if poolplan.Admit(p, all, reserved) == nil {
				r.set(p, r.added)
			}
		case have.Origin == p.Origin+gone && have.State == poolplan.Draining &&
			slices.Equal(have.Ranges, p.Ranges):
			have.Origin, have.State = p.Origin, poolplan.Active
			have.Generation++
			r.set(have, r.changed)
		}
		return true
	})
}

// deleted drains the pools of deleted custom networks.
func (r *repair) deleted(keys []string, found controller.KubeStateData) {
	for _, key := range keys {
		name, isNetwork := strings.CutPrefix(key, kv.CustomNetworkPrefix)
		p, exists := r.pools[name]
		isThere := found[kubestate.CustomNetworks][key] != nil
		if !isNetwork || !exists || isThere || p.State != poolplan.Active || p.Origin != "network/"+name {
			continue
		}
		p.State, p.Origin = poolplan.Draining, p.Origin+gone
		p.Generation++
		r.set(p, r.changed)
	}
}

// writes returns the changes of pools, and only if there are none the new pools.
func (r *repair) writes() (all []kubestate.Write) {
	pools := r.changed
	if len(pools) == 0 && len(r.added) > 0 {
		pools = r.added
		all = append(all, kubestate.Write{Key: kv.PoolsKey, Message: &kv.Meta{}})
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		all = append(all, kubestate.Write{Key: kv.PoolKey(name), Message: pools[name].Message()})
	}
	return all
}

// NodeIDLimit returns a function for nodesync: the largest node ID that fits the
// networks of conf and the active pools of network "default". Custom networks do not
// limit it, because a node may have no block of them.
func NodeIDLimit(conf contivconf.API) func([]*kv.Pool) uint32 {
	return func(stored []*kv.Pool) uint32 {
		if conf.PodBlocks() != contivconf.PodBlocksNodeID {
			return conf.Cluster().MaxNodeID()
		}
		var pools []poolplan.Pool
		for _, m := range stored {
			if p, err := poolplan.FromMessage(m); err == nil && p.Network == PodPool && p.State == poolplan.Active {
				pools = append(pools, p)
			}
		}
		if len(pools) == 0 {
			pools = []poolplan.Pool{poolplan.FromCluster(conf.Cluster())}
		}
		return min(conf.Cluster().MaxLinkID(), poolplan.Largest(pools))
	}
}
