// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
)

// scene holds a cloud with one machine without interfaces, and a clock that stands still.
type scene struct {
	*memcloud.Cloud
	now   time.Time
	fault memcloud.Fault
}

func newScene(change func(*memcloud.Config)) *scene {
	s := &scene{now: time.Unix(1000, 0)}
	c := memcloud.Config{
		Subnets:    map[string]netip.Prefix{"a": netip.MustParsePrefix("10.0.0.0/28")},
		Interfaces: 2, PerInterface: 10,
		Now: func() time.Time { return s.now },
		Fault: func(c memcloud.Call) memcloud.Fault {
			if c.What == "describe" || c.What == "orphans" {
				return memcloud.None
			}
			return s.fault
		},
	}
	change(&c)
	s.Cloud = memcloud.New(c)
	s.AddInstance("node", "")
	return s
}

// create creates an interface with n addresses at the first free device.
func (s *scene) create(t *testing.T, n int) (*cloud.Interface, error) {
	return s.CreateInterface(t.Context(), "node", cloud.NewInterface{Subnet: "a", Want: cloud.Want{Count: n}})
}

// shown returns the addresses that the cloud shows, without the own ones of interfaces.
func (s *scene) shown(t *testing.T) (all []string) {
	snapshot, err := s.Read(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, i := range snapshot.Instances["node"].Interfaces {
		for _, b := range i.Blocks {
			if !b.Primary {
				all = append(all, b.Prefix.String())
			}
		}
	}
	return all
}

func (s *scene) free(t *testing.T) int {
	snapshot, err := s.Read(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return snapshot.Subnets["a"].Free
}

func TestLimitsOfTheCloud(t *testing.T) {
	g, s := NewWithT(t), newScene(func(*memcloud.Config) {})
	ctx := t.Context()
	first, err := s.create(t, 12)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(first.Blocks).To(HaveLen(11), "no more than an interface can have, and its own one")
	g.Expect(first.Blocks[0].Primary).To(BeTrue())
	_, err = s.create(t, 1)
	g.Expect(err).To(MatchError(ContainSubstring("device 0 is in use")))
	_, err = s.Assign(ctx, "node", first.ID, cloud.Want{Count: 1})
	g.Expect(err).To(MatchError(cloud.ErrFull))
	second, err := s.CreateInterface(ctx, "node", cloud.NewInterface{Subnet: "a", Want: cloud.Want{Count: 12}, Device: 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.Blocks).To(HaveLen(5), "no more than the subnet has")
	g.Expect(s.free(t)).To(BeZero())
	_, err = s.CreateInterface(ctx, "node", cloud.NewInterface{Subnet: "a", Device: 2})
	g.Expect(err).To(And(MatchError(cloud.ErrFull), MatchError(ContainSubstring("the most"))))
	s.AddInstance("other", "")
	_, err = s.CreateInterface(ctx, "other", cloud.NewInterface{Subnet: "a", Want: cloud.Want{Count: 1}})
	g.Expect(err).To(MatchError(cloud.ErrFull))
	_, err = s.CreateInterface(ctx, "unknown", cloud.NewInterface{Subnet: "a"})
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))
	_, err = s.ReadInstance(ctx, "unknown")
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))

	g.Expect(s.Unassign(ctx, "node", first.ID, []netip.Prefix{first.Blocks[0].Prefix})).To(MatchError(ContainSubstring("own address")))
	gone := []netip.Prefix{first.Blocks[1].Prefix, netip.MustParsePrefix("1.1.1.1/32")}
	for range 2 {
		g.Expect(s.Unassign(ctx, "node", first.ID, gone)).To(Succeed(), "what is not there is no error")
	}
	g.Expect(s.Units("node")).To(HaveLen(13))
	g.Expect(s.DeleteInterface(ctx, "node", second.ID)).To(Succeed())
	g.Expect(s.DeleteInterface(ctx, "node", second.ID)).To(Succeed())
	g.Expect(s.free(t)).To(Equal(6))
	s.Terminate("node")
	g.Expect(s.free(t)).To(Equal(16))
}

// The first interface of a machine is not one that CreateInterface has created.
func TestFirstInterfaceIsNotDeleted(t *testing.T) {
	g, s := NewWithT(t), newScene(func(*memcloud.Config) {})
	s.AddInstance("other", "a")
	snapshot, err := s.ReadInstance(t.Context(), "other")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(snapshot.Instances).To(HaveLen(1))
	first := snapshot.Instances["other"].Interfaces[0]
	g.Expect(first.Owned).To(BeFalse())
	g.Expect(s.DeleteInterface(t.Context(), "other", first.ID)).NotTo(Succeed())
}

func TestPartialCalls(t *testing.T) {
	g, s := NewWithT(t), newScene(func(*memcloud.Config) {})
	for _, c := range []struct {
		fault          memcloud.Fault
		units, orphans int
	}{{memcloud.Refuse, 0, 0}, {memcloud.Half, 0, 1}, {memcloud.Tear, 4, 1}} {
		s.fault = c.fault
		made, err := s.create(t, 4)
		g.Expect(err).To(MatchError(memcloud.ErrInjected))
		g.Expect(made).To(BeNil(), "the caller cannot know")
		g.Expect(s.shown(t)).To(HaveLen(c.units), "%v", c.fault)
		g.Expect(s.Orphans()).To(Equal(c.orphans), "%v", c.fault)
	}
	s.fault = memcloud.Half
	g.Expect(s.Unassign(t.Context(), "node", "eni-2", s.Units("node"))).NotTo(Succeed())
	g.Expect(s.Units("node")).To(HaveLen(2))
	before := s.free(t)
	for _, x := range []struct {
		age  time.Duration
		gone int
	}{{0, 0}, {time.Minute, 0}, {time.Minute + 1, 1}} {
		s.now = time.Unix(1000, 0).Add(x.age)
		gone, err := s.DeleteOrphans(t.Context(), "", time.Minute)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(gone).To(HaveLen(x.gone))
	}
	g.Expect(s.free(t)).To(Equal(before+5), "its own address and four more")
}

func TestChangesAreShownLate(t *testing.T) {
	g, s := NewWithT(t), newScene(func(c *memcloud.Config) { c.Lag = 5 * time.Second })
	made, err := s.create(t, 3)
	g.Expect(err).NotTo(HaveOccurred())
	s.now = s.now.Add(4 * time.Second)
	g.Expect(s.shown(t)).To(BeEmpty())
	s.now = s.now.Add(2 * time.Second)
	g.Expect(s.shown(t)).To(HaveLen(3))
	g.Expect(s.Unassign(t.Context(), "node", made.ID, s.Units("node"))).To(Succeed())
	g.Expect(s.shown(t)).To(HaveLen(3), "what is gone is still shown")
}

func TestTooManyCallsAreThrottled(t *testing.T) {
	g, s := NewWithT(t), newScene(func(c *memcloud.Config) { c.QPS = 1 })
	_, err := s.create(t, 1)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = s.Assign(t.Context(), "node", "eni-1", cloud.Want{Count: 1})
	g.Expect(err).To(MatchError(cloud.ErrThrottled))
	_, err = s.Read(t.Context())
	g.Expect(err).To(MatchError(cloud.ErrThrottled))
	s.now = s.now.Add(time.Second)
	_, err = s.Assign(t.Context(), "node", "eni-1", cloud.Want{Count: 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Calls()).To(Equal(map[string]int{"create": 1, "assign": 2, "describe": 1, "throttled": 2}))
}

// Prefixes are aligned, and neither contain a taken address nor are taken in part.
func TestPrefixesAndAddressesShareSubnet(t *testing.T) {
	g, s := NewWithT(t), newScene(func(c *memcloud.Config) {
		c.PrefixLen, c.PrefixLen6 = 30, 80
		c.Second = map[string]netip.Prefix{"a": netip.MustParsePrefix("fd00::/64")}
	})
	made, err := s.CreateInterface(t.Context(), "node", cloud.NewInterface{Subnet: "a", Want: cloud.Want{Count: 2, Prefixes: true}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(made.Blocks)).To(Equal("[{10.0.0.0/32 a true} {fd00::/128 a true} {10.0.0.4/30 a false} {10.0.0.8/30 a false}]"))
	added, err := s.Assign(t.Context(), "node", made.ID, cloud.Want{Count: 4})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(added)).To(Equal("[{10.0.0.1/32 a false} {10.0.0.2/32 a false} {10.0.0.3/32 a false} {10.0.0.12/32 a false}]"))
	_, err = s.Assign(t.Context(), "node", made.ID, cloud.Want{Count: 1, Prefixes: true})
	g.Expect(err).To(MatchError(cloud.ErrFull), "three addresses are free, and no prefix")
	added, err = s.Assign(t.Context(), "node", made.ID, cloud.Want{Count: 1, Prefixes: true, IPv6: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(added)).To(Equal("[{fd00::1:0:0:0/80 a false}]"))
}
