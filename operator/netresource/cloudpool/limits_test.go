// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool_test

import (
	"context"
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
	s.ops["a"] = s.p.CreateNetResource(s.objs["a"], nil)
	s.read()
	_, err := s.take("a", 4)
	s.g.Expect(s.interfaces("a")).To(HaveLen(1))
	s.g.Expect(err).To(MatchError(ContainSubstring("no IPv6 addresses")))
}
