// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
)

// oldMachines has machines whose interfaces can have no IPv6 addresses.
type oldMachines struct{ *memcloud.Cloud }

func (c oldMachines) Read(ctx context.Context) (*cloud.Snapshot, error) {
	s, err := c.Cloud.Read(ctx)
	if err == nil {
		for _, m := range s.Instances {
			m.Limits.Addresses[1] = 0
		}
	}
	return s, err
}

// Nodes get addresses of both families, and a machine can have only one.
func TestAMachineWithoutAFamilyGetsNoInterface(t *testing.T) {
	s := newScene(t, func(mc *memcloud.Config, _ *cloudpool.Config) {
		mc.Second = map[string]netip.Prefix{"s": pfx("fd00::/64")}
	})
	s.p = cloudpool.New(cloudpool.Config{
		Cloud: oldMachines{s.cloud}, IPv4: true, IPv6: true, Pre: 4, Now: func() time.Time { return s.now },
		Log: slog.New(slog.DiscardHandler),
	})
	s.read()
	s.known("a")
	_, err := s.take("a", 4)
	s.g.Expect(s.interfaces("a")).To(HaveLen(1))
	s.g.Expect(err).To(MatchError(ContainSubstring("no IPv6 addresses")))
}

// The second call of an allocation is one of the manager that leads.
func TestADeposedOperatorCreatesNoInterface(t *testing.T) {
	deposed := false
	s := newScene(t, func(_ *memcloud.Config, p *cloudpool.Config) {
		p.Fence = func(context.Context) error {
			if deposed {
				return errors.New("another one leads")
			}
			return nil
		}
	})
	_, err := s.cloud.Assign(t.Context(), "machine-a", "eni-1", cloud.Want{Count: 6}) // no reading shows it yet
	s.g.Expect(err).NotTo(HaveOccurred())
	deposed = true
	got, err := s.take("a", 1)
	s.g.Expect(err).To(MatchError(ContainSubstring("another one leads")))
	s.g.Expect(got.Failed).NotTo(BeEmpty(), "something was asked of the cloud")
	s.g.Expect(s.interfaces("a")).To(HaveLen(1))
}

// An interface is full because its subnet is: the next one is in the subnet with most room.
func TestANewInterfaceIsNotInTheSubnetOfAFullOne(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, _ *cloudpool.Config) {
		c.Subnets = map[string]netip.Prefix{"s": pfx("10.0.0.0/28"), "t": pfx("10.0.1.0/24")}
	})
	for i := range 16 { // no reading shows it yet
		s.cloud.Take(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32))
	}
	got, err := s.take("a", 4)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(got.Pool).To(BeEquivalentTo("t"))
}
