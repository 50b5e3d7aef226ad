// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
)

// The agent of machine c asks the cloud itself. Its interface was empty for long, and gets
// addresses for pods after the reading that the provider decides by.
func TestInterfacesOfAnAgentThatAsksTheCloudStay(t *testing.T) {
	s := newScene(t, func(mc *memcloud.Config, _ *cloudpool.Config) { mc.Lag = 5 * time.Second })
	s.cloud.AddInstance("machine-c", "s")
	made, err := s.cloud.CreateInterface(t.Context(), "machine-c", cloud.NewInterface{Subnet: "s", Device: 1})
	s.g.Expect(err).NotTo(HaveOccurred())
	for range 12 {
		s.now = s.now.Add(time.Minute)
		if s.now.Sub(time.Unix(100000, 0)) == 12*time.Minute {
			_, err := s.cloud.Assign(t.Context(), "machine-c", made.ID, cloud.Want{Count: 2})
			s.g.Expect(err).NotTo(HaveOccurred())
		}
		s.read()
	}
	s.g.Expect(s.cloud.Units("machine-c")).To(HaveLen(2))
}
