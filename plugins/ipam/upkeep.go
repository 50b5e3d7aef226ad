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

// Upkeep keeps the pools of the cluster store: it writes again what the store
// has lost of them, gives network "default" its first pool from the
// configuration and each custom network its own, and has the pool of a custom
// network drain that was seen being deleted. What cannot be a pool is left
// alone; the plugin reports it.
func Upkeep(conf contivconf.API) kubestate.Upkeep {
	return func(known, found controller.KubeStateData, deleted []string) []kubestate.Write {
		u := upkeep{pools: poolsIn(found), changed: map[string]poolplan.Pool{}, added: map[string]poolplan.Pool{}}
		lost := false
		for name, p := range poolsIn(known) {
			lost = lost || u.pools[name].Generation == 0
			if merged, write := poolplan.Merge(p, u.pools[name]); write {
				u.set(merged, u.changed)
			}
		}
		if conf.PodBlocks() == contivconf.PodBlocksNodeID && !u.has(PodPool) {
			u.set(poolplan.FromCluster(conf.Cluster()), u.added)
		}
		u.networks(found, Reserved(conf))
		if !lost { // or all of the store was
			u.deleted(deleted, found)
		}
		return u.writes()
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

// upkeep is one look at the pools.
type upkeep struct {
	pools   map[string]poolplan.Pool
	changed map[string]poolplan.Pool
	added   map[string]poolplan.Pool
}

func (u *upkeep) set(p poolplan.Pool, in map[string]poolplan.Pool) {
	u.pools[p.Name], in[p.Name] = p, p
}

func (u *upkeep) has(network string) bool {
	for _, p := range u.pools {
		if p.Network == network {
			return true
		}
	}
	return false
}

// networks gives custom networks their pools.
func (u *upkeep) networks(found controller.KubeStateData, reserved []poolplan.Reserved) {
	found.Sorted(kubestate.CustomNetworks, func(key string, m proto.Message) bool {
		p, err := poolOf(key, m.(*kv.CustomNetwork))
		if err != nil {
			return true
		}
		have, exists := u.pools[p.Name]
		switch {
		case !exists:
			all := slices.Collect(maps.Values(u.pools))
			if poolplan.Admit(p, all, reserved) == nil {
				u.set(p, u.added)
			}
		case have.Origin == p.Origin+gone && have.State == poolplan.Draining && slices.Equal(have.Ranges, p.Ranges):
			have.Origin, have.State = p.Origin, poolplan.Active
			have.Generation++
			u.set(have, u.changed)
		}
		return true
	})
}

// deleted has the pools of deleted custom networks drain.
func (u *upkeep) deleted(keys []string, found controller.KubeStateData) {
	for _, key := range keys {
		name, isNetwork := strings.CutPrefix(key, kv.CustomNetworkPrefix)
		p, exists := u.pools[name]
		if !isNetwork || !exists || found[kubestate.CustomNetworks][key] != nil || p.State != poolplan.Active || p.Origin != "network/"+name {
			continue
		}
		p.State, p.Origin = poolplan.Draining, p.Origin+gone
		p.Generation++
		u.set(p, u.changed)
	}
}

// writes are what changes; new pools come when there is nothing else.
func (u *upkeep) writes() (all []kubestate.Write) {
	pools := u.changed
	if len(pools) == 0 && len(u.added) > 0 {
		pools = u.added
		all = append(all, kubestate.Write{Key: kv.PoolsKey, Message: &kv.Meta{}})
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		all = append(all, kubestate.Write{Key: kv.PoolKey(name), Message: pools[name].Message()})
	}
	return all
}

// NodeIDLimit is the largest node ID that fits the networks of conf and the
// pools of network "default" that are open, as nodesync asks it. Custom networks
// limit nobody: a node may have no block of them.
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
