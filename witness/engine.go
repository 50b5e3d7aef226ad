// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net/netip"
	"time"
)

// EngineView holds the networks of the Docker engine.
type EngineView struct {
	Taken      time.Time
	ID         string // of the engine
	Version    string
	Swarm      bool // the engine is part of a swarm
	Networks   []EngineNetwork
	Containers []EngineContainer
}

// Report describes the view.
func (v *EngineView) Report() Report {
	r := Report{
		Name: Engine, Read: v.Taken, Source: "Docker " + v.Version,
		Limits: "a container that the engine has lost is not seen; in a swarm, neither are tasks of other nodes",
	}
	for i := range v.Networks {
		r.Objects += len(v.Networks[i].Endpoints)
	}
	return r
}

// EngineNetwork holds a network of the engine.
type EngineNetwork struct {
	ID          string
	Name        string
	Driver      string // such as bridge
	Scope       string // local, swarm or global
	IPAMDriver  string // such as "default" or the name of our plugin
	IPAMOptions map[string]string
	Pools       []EnginePool
	Endpoints   []EngineEndpoint
}

// EnginePool holds one subnet of a network.
type EnginePool struct {
	Subnet  netip.Prefix
	Range   netip.Prefix // the zero Prefix: all of Subnet
	Gateway netip.Addr
	Aux     map[string]netip.Addr // addresses that the user has reserved, by name
}

// EngineEndpoint holds the attachment of a container to a network.
type EngineEndpoint struct {
	ID          string
	ContainerID string
	Name        string // of the container
	MAC         string
	Addrs       []netip.Addr
}

// EngineContainer holds a container, running or not. A stopped one has no endpoints,
// but may have addresses that its user has fixed.
type EngineContainer struct {
	ID      string
	Name    string
	Running bool
	PID     int                     // 0: not known, as the reader has it (its details can be locked)
	Fixed   map[string][]netip.Addr // addresses that the user has fixed, by network ID
}

// Use holds one use of an address by the engine.
type Use struct {
	Network *EngineNetwork
	What    string // such as `gateway`, `auxiliary address "router"`, `container web`
}

// Uses returns what the networks of an IPAM driver use an address for.
func (v *EngineView) Uses(driver string, a netip.Addr) (uses []Use) {
	for i := range v.Networks {
		n := &v.Networks[i]
		if n.IPAMDriver != driver {
			continue
		}
		for _, p := range n.Pools {
			if p.Gateway == a {
				uses = append(uses, Use{n, "gateway"})
			}
			for name, aux := range p.Aux {
				if aux == a {
					uses = append(uses, Use{n, "auxiliary address " + name})
				}
			}
		}
		for _, e := range n.Endpoints {
			for _, x := range e.Addrs {
				if x == a {
					uses = append(uses, Use{n, "container " + e.Name})
				}
			}
		}
		for _, c := range v.Containers {
			for _, x := range c.Fixed[n.ID] {
				if x == a && !c.Running {
					uses = append(uses, Use{n, "stopped container " + c.Name})
				}
			}
		}
	}
	return uses
}
