// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cilium115 drives the whole IPAM of Cilium 1.15's agent in host scope:
// the bitmap, the owners' names and the hooks for metrics. That of a newer
// Cilium needs modules that a module proxy may refuse.
package cilium115

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/cilium/cilium/pkg/cidr"
	"github.com/cilium/cilium/pkg/datapath/types"
	"github.com/cilium/cilium/pkg/ipam"
	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
	"github.com/cilium/cilium/pkg/logging"

	"github.com/cadastre/cadastre/test/peers/workload"
)

// config is an agent's with IPv4 only.
type config struct{}

func (config) IPv4Enabled() bool                    { return true }
func (config) IPv6Enabled() bool                    { return false }
func (config) HealthCheckingEnabled() bool          { return false }
func (config) UnreachableRoutesEnabled() bool       { return false }
func (config) IPAMMode() string                     { return ipamOption.IPAMKubernetes }
func (config) SetIPv4NativeRoutingCIDR(*cidr.CIDR)  {}
func (config) GetIPv4NativeRoutingCIDR() *cidr.CIDR { return nil }

// node is what the agent knows of its node: the pods' prefix.
type node struct{ pods *cidr.CIDR }

func (n node) IPv4() types.NodeAddressingFamily { return family{pods: n.pods} }
func (n node) IPv6() types.NodeAddressingFamily { return family{} }

type family struct {
	types.NodeAddressingFamily
	pods *cidr.CIDR
}

func (f family) AllocationCIDR() *cidr.CIDR { return f.pods }

func hostScope(prefix string) workload.Pool[net.IP] {
	logging.DefaultLogger.SetLevel(logrus.WarnLevel)
	pods := cidr.MustParseCIDR(prefix)
	m := ipam.NewIPAM(node{pods}, config{}, nil, nil, nil, nil, nil)
	ones, _ := pods.Mask.Size()
	var last atomic.Int64
	return workload.Pool[net.IP]{
		Cap: 1<<(32-ones) - 2,
		Next: func() (net.IP, error) {
			r, err := m.AllocateNextFamily(ipam.IPv4, fmt.Sprintf("default/pod-%08d", last.Add(1)), "default")
			if err != nil {
				return nil, err
			}
			return r.IP, nil
		},
		Free: func(ip net.IP) error { return m.ReleaseIP(ip, "default") },
		Take: func(ip net.IP) error { return m.AllocateIP(ip, "default/pod", "default") },
	}
}

func BenchmarkHostScope(b *testing.B) {
	b.Run("24", func(b *testing.B) {
		workload.Suite(b, func() workload.Pool[net.IP] { return hostScope("10.1.5.0/24") })
	})
	b.Run("16", func(b *testing.B) {
		workload.Suite(b, func() workload.Pool[net.IP] { return hostScope("10.1.0.0/16") })
	})
}

func BenchmarkHostScopeParallel(b *testing.B) {
	b.Run("50", func(b *testing.B) { workload.Parallel(b, hostScope("10.1.0.0/16"), .5) })
	b.Run("99", func(b *testing.B) { workload.Parallel(b, hostScope("10.1.0.0/16"), .99) })
}

func BenchmarkHostScopeMemory(b *testing.B) {
	b.Run("16", func(b *testing.B) {
		workload.Memory(b, func() workload.Pool[net.IP] { return hostScope("10.1.0.0/16") }, 50_000)
	})
}
