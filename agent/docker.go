// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// dockerDriver makes Docker's driver once the loop can open its pools.
func (a *assembly) dockerDriver(
	records ipamapi.Records,
	engine ipamapi.EngineReader,
) func(context.Context, ipamapi.PoolOpener) (dockeripam.Driver, error) {
	return func(ctx context.Context, opener ipamapi.PoolOpener) (dockeripam.Driver, error) {
		conf := a.conf.Cadastre.Docker
		reclaim := a.conf.Cadastre.Reclaim
		c := ipamapi.Config{
			HostID:      a.instance,
			Serial:      conf.Serial,
			CoolDown:    conf.CoolDown,
			GiveUpAfter: reclaim.Grace,
			Undo:        reclaim.Undo,
		}
		for _, x := range conf.Pools {
			base, err := netip.ParsePrefix(x.Base)
			if err != nil {
				return nil, fmt.Errorf("cadastre.docker.pools: %w", err)
			}
			c.Local.Pools = append(c.Local.Pools, ipamapi.Predefined{Base: base, Size: int(x.Size)})
		}
		if conf.FromPods {
			c.FromPods.Pool = ipam.PodPool
		}
		return ipamapi.New(ctx, ipamapi.Deps{
			Ledger:  a.ledger,
			Pools:   opener,
			Records: records,
			Host:    dockeripam.Host{Log: a.log, Own: a.networks},
			Engine:  ipamapi.Engine{Reader: engine, Name: driverName(conf.Socket)},
			Config:  c,
			Log:     a.log,
		})
	}
}

// dockerSubnets returns the subnets of Docker's networks, apart from parts of the pod
// network. It reads the ledger: the driver may be waiting for the event loop.
func (a *assembly) dockerSubnets() (all []netip.Prefix) {
	for _, b := range a.ledger.Stats() {
		if ipamapi.OfDocker(b.Pool) {
			all = append(all, b.Block)
		}
	}
	return all
}

// networks are those of the cluster, all of them.
func (a *assembly) networks() (all []netip.Prefix) {
	for _, f := range a.contivconf.Cluster().Families {
		for _, p := range []netip.Prefix{f.Pods, f.Hosts, f.Nodes, f.Vxlan, f.Service} {
			if p.IsValid() {
				all = append(all, p)
			}
		}
	}
	for _, p := range a.ipam.Pools() {
		for _, r := range p.Ranges {
			all = append(all, r.CIDR)
		}
	}
	return all
}
