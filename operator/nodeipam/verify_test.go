// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// lookingCloud permits a prefix on any number of machines, and looks for other ones after it
// has added it, as OpenStack's provider does.
type lookingCloud struct {
	*memcloud.Cloud
	blind bool // it cannot look
}

func (c *lookingCloud) AddAlias(ctx context.Context, m nodeipam.Machine, p netip.Prefix) error {
	if err := c.Cloud.AddAlias(ctx, m, p); err != nil {
		return err
	}
	if c.blind {
		return errors.New("the cloud does not show the machines")
	}
	for name, all := range c.Routes() {
		for _, q := range all {
			if name != m.Node && q.Overlaps(p) {
				return fmt.Errorf("%w: %s", nodeipam.ErrRouted, name)
			}
		}
	}
	return nil
}

// An alias was added, and it is not known whether another machine has it too.
func TestAnAliasThatIsNotVerifiedIsNotGiven(t *testing.T) {
	g := NewWithT(t)
	cloud := &lookingCloud{Cloud: memcloud.New(memcloud.Config{}), blind: true}
	b := nodeipam.NewBench(t, nodeipam.RangesOf(fromCluster, "10.0.0.0/28 28"), func(d *nodeipam.Deps) { d.Cloud = cloud })
	l := &land{Bench: b, cloud: cloud.Cloud, kind: fromCluster}
	l.come("a")
	g.Expect(l.Look(t.Context())).To(MatchError(ContainSubstring("does not show")))
	cloud.AddMachine("foreign", "mem://foreign", pfx("10.0.0.0/28")) // at the same moment
	cloud.blind = false
	for range 3 {
		g.Expect(l.Look(t.Context())).To(MatchError(nodeipam.ErrRouted))
	}
	g.Expect(l.CIDRs()["a"]).To(BeEmpty(), "another machine has it")
	cloud.Terminate("foreign")
	g.Expect(l.Look(t.Context())).To(Succeed())
	g.Expect(l.CIDRs()["a"]).To(Equal([]string{"10.0.0.0/28"}))
}
