// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

func pfx(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// scene holds a cloud with the machines a and b, a provider over it, and a clock that the
// test moves.
type scene struct {
	t     *testing.T
	g     *WithT
	now   time.Time
	cloud *memcloud.Cloud
	p     *cloudpool.Provider
	objs  map[string]*v1alpha1.NetResourceSet
}

func newScene(t *testing.T, change func(*memcloud.Config, *cloudpool.Config)) *scene {
	s := &scene{t: t, g: NewWithT(t), now: time.Unix(100000, 0), objs: map[string]*v1alpha1.NetResourceSet{}}
	mc := memcloud.Config{
		Subnets:    map[string]netip.Prefix{"s": pfx("10.0.0.0/24")},
		Interfaces: 3, PerInterface: 6, Now: func() time.Time { return s.now },
	}
	pc := cloudpool.Config{Pre: 4, Now: mc.Now, Log: slog.New(slog.DiscardHandler)}
	change(&mc, &pc)
	s.cloud = memcloud.New(mc)
	pc.Cloud = s.cloud
	s.p = cloudpool.New(pc)
	for _, name := range []string{"a", "b"} {
		s.cloud.AddInstance("machine-"+name, "s")
		o := &v1alpha1.NetResourceSet{}
		o.Name, o.Spec.InstanceID = name, "machine-"+name
		s.objs[name] = o
	}
	s.read()
	s.known("a", "b")
	return s
}

func plain(*memcloud.Config, *cloudpool.Config) {}

func (s *scene) read() {
	began, err := s.p.Read(s.t.Context())
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(began).To(Equal(s.now))
}

// known makes the provider know the newest versions of nodes.
func (s *scene) known(nodes ...string) {
	for _, name := range nodes {
		_, _ = s.p.State(s.t.Context(), s.objs[name]) // its machine may be gone
	}
}

func (s *scene) state(node string) netresource.State {
	state, err := s.p.State(s.t.Context(), s.objs[node])
	s.g.Expect(err).NotTo(HaveOccurred())
	return state
}

// has returns the keys of what a node has.
func (s *scene) has(node string) []string { return slices.Sorted(maps.Keys(s.state(node).Available)) }

// take takes up to want addresses.
func (s *scene) take(node string, want int) (netresource.Allocation, error) {
	return s.p.Allocate(s.t.Context(), s.objs[node], want)
}

// use records addresses as used by pods.
func (s *scene) use(node string, addresses ...string) {
	o := s.objs[node].DeepCopy()
	o.Status.IPAM.Used = v1alpha1.AllocationMap{}
	for _, a := range addresses {
		o.Status.IPAM.Used[a] = v1alpha1.AllocationIP{Owner: "default/pod"}
	}
	s.objs[node] = o
}

// spare returns the addresses that the provider chooses to release.
func (s *scene) spare(node string, excess int) []string {
	keys, err := s.p.Spare(s.t.Context(), s.objs[node], excess)
	s.g.Expect(err).NotTo(HaveOccurred())
	return keys
}

// release releases up to excess addresses, and returns what was chosen.
func (s *scene) release(node string, excess int) []string {
	all, keys := s.state(node).Available, s.spare(node, excess)
	s.g.Expect(s.spare(node, excess)).To(Equal(keys), "the same choice again")
	byInterface := map[string][]string{}
	for _, key := range keys {
		byInterface[all[key].Resource] = append(byInterface[all[key].Resource], key)
	}
	for _, id := range slices.Sorted(maps.Keys(byInterface)) {
		give := &netresource.ReleaseAction{InterfaceID: id, IPsToRelease: byInterface[id]}
		s.g.Expect(s.p.Release(s.t.Context(), s.objs[node], give)).To(Succeed())
	}
	return keys
}

// describe sets the provider's fields of the status.
func (s *scene) describe(node string, set *v1alpha1.NetResourceSet) {
	set.Name = node
	s.g.Expect(s.p.Describe(s.t.Context(), set)).To(Succeed())
}

// interfaces returns the interfaces that a machine really has, by device, with the number of
// addresses of each.
func (s *scene) interfaces(node string) (all []string) {
	snapshot, err := s.cloud.Read(s.t.Context())
	s.g.Expect(err).NotTo(HaveOccurred())
	for _, i := range snapshot.Instances["machine-"+node].Interfaces {
		all = append(all, fmt.Sprintf("%d %s %s %d", i.Device, i.ID, i.Subnet, len(i.Blocks)-1))
	}
	return all
}

func TestInterfaceWithMostRoomComesFirst(t *testing.T) {
	s := newScene(t, plain)
	for _, x := range []struct {
		want  int
		after []string
	}{
		{4, []string{"0 eni-1 s 4"}},
		{4, []string{"0 eni-1 s 6"}},
		{9, []string{"0 eni-1 s 6", "1 eni-3 s 6"}},
		{2, []string{"0 eni-1 s 6", "1 eni-3 s 6", "2 eni-4 s 2"}},
	} {
		_, err := s.take("a", x.want)
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(s.interfaces("a")).To(Equal(x.after))
	}
	ofFirst := func(key string) bool { return pfx("10.0.0.0/29").Contains(netip.MustParseAddr(key)) }
	s.use("a", slices.DeleteFunc(s.has("a"), ofFirst)...)
	s.g.Expect(s.release("a", 3)).To(HaveLen(3))
	a, err := s.take("a", 1)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(a).To(Equal(netresource.Allocation{Interface: "eni-4", Pool: "s", Addresses: 1}))
	s.g.Expect([]int{s.state("a").Most, s.state("a").Least}).To(Equal([]int{18, 4}))
}

// A new interface comes from the usable subnet of the machine's zone with most free addresses.
func TestChoiceOfSubnet(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, _ *cloudpool.Config) {
		c.Subnets = map[string]netip.Prefix{
			"s": pfx("10.0.0.0/27"), "small": pfx("10.0.1.0/28"), "large": pfx("10.0.2.0/26"),
			"elsewhere": pfx("10.0.3.0/24"), "private": pfx("10.0.4.0/24"),
		}
		c.Zones, c.Unusable = map[string]string{"elsewhere": "zone-b"}, []string{"private"}
	})
	a, err := s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(a.Interface).To(Equal("eni-1"))
	for _, want := range []string{"large", "large"} {
		a, err = s.take("a", 6)
		s.g.Expect(err).NotTo(HaveOccurred())
		s.g.Expect(string(a.Pool)).To(Equal(want))
	}
	for i := range 62 {
		s.cloud.Take(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 2, byte(i)}), 32))
	}
	s.read()
	_, err = s.take("b", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	a, err = s.take("b", 1)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(string(a.Pool)).To(Equal("s"), "24 addresses are free, and 16 of the small one")
	r := &v1alpha1.NetResourceSet{}
	s.describe("b", r)
	s.g.Expect(r.Status.IPAM.AvailableSubnetIDs).To(Equal([]string{"large", "s", "small"}))
}

// A dual-stack node gets as many addresses of both families, also if a call between has failed.
func TestDualStackNodeGetsAsManyOfBoth(t *testing.T) {
	dual := func(c *memcloud.Config, p *cloudpool.Config) {
		c.Second = map[string]netip.Prefix{"s": pfx("fd00::/64")}
		p.IPv4, p.IPv6 = true, true
	}
	count := func(s *scene) (n [2]int) {
		for _, key := range s.has("a") {
			if strings.Contains(key, ":") {
				n[1]++
			} else {
				n[0]++
			}
		}
		return n
	}
	for call := 1; call <= 5; call++ {
		for _, fault := range []memcloud.Fault{memcloud.None, memcloud.Refuse, memcloud.Tear, memcloud.Half} {
			t.Run(fmt.Sprintf("call %d, fault %d", call, fault), func(t *testing.T) {
				s := newScene(t, dual)
				calls := 0
				s.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
					if c.What != "describe" {
						calls++
					}
					if c.What != "describe" && calls == call {
						return fault
					}
					return memcloud.None
				})
				for _, total := range []int{3, 6, 10, 18} {
					for range 4 { // the manager repeats until it has what it wants
						if n := count(s); n[0] < total {
							_, _ = s.take("a", total-n[0])
						}
						s.read()
					}
					n := count(s)
					s.g.Expect(n[0]).To(BeNumerically(">=", total))
					s.g.Expect(n[1]).To(BeNumerically(">=", n[0]))
				}
				s.g.Expect(count(s)).To(Equal([2]int{18, 18}))
				s.release("a", 15)
				s.g.Expect(count(s)).To(Equal([2]int{3, 3}))
			})
		}
	}
}

// The IPv6 half of a call was done and the IPv4 half was not: the manager sees that the node
// needs IPv4 addresses.
func TestManagerCountsIPv4OfDualStackNode(t *testing.T) {
	for families, needed := range map[string]int{"both": 3, "IPv6 alone": 0} {
		s := newScene(t, func(c *memcloud.Config, p *cloudpool.Config) {
			c.Second = map[string]netip.Prefix{"s": pfx("fd00::/64")}
			p.IPv4, p.IPv6 = families == "both", true
		})
		calls := 0
		s.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
			if calls++; calls == 2 {
				return memcloud.Refuse
			}
			return memcloud.None
		})
		_, _ = s.take("a", 3)
		s.cloud.SetFault(nil)
		s.g.Expect(s.has("a")).To(HaveLen(3))
		m, err := netresource.New(netresource.Config{Provider: s.p, API: memapi.New(), Log: slog.New(slog.DiscardHandler)})
		s.g.Expect(err).NotTo(HaveOccurred())
		m.SetInstancesAPIReadiness(true)
		o := s.objs["a"].DeepCopy()
		o.Spec.IPAM.PreAllocate = 3
		s.g.Expect(m.Update(o)).To(Succeed())
		s.g.Expect(m.Get("a").GetNeededAddresses()).To(Equal(needed), families)
	}
}

// IPv4 addresses are taken for the IPv6 addresses that there are.
func TestIPv6AddressesLimitDualStackNode(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, p *cloudpool.Config) {
		c.Second = map[string]netip.Prefix{"s": pfx("fd00::/125")}
		p.IPv4, p.IPv6 = true, true
	})
	for node, want := range map[string]int{"a": 4, "b": 4} {
		_, err := s.take(node, want)
		s.g.Expect(err).NotTo(HaveOccurred())
	}
	s.g.Expect(len(s.has("a"))+len(s.has("b"))).To(Equal(2*6), "six of eight IPv6 addresses are free at first")
	_, err := s.take("a", 1)
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
	s.g.Expect(len(s.has("a")) + len(s.has("b"))).To(Equal(2 * 6))
}

func TestIPv6AloneIsCounted(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, p *cloudpool.Config) {
		c.Subnets = map[string]netip.Prefix{"s": pfx("fd00::/64")}
		p.IPv6 = true
	})
	a, err := s.take("a", 4)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(a.Addresses).To(Equal(4))
	s.g.Expect(s.state("a").CountsIPv4).To(BeFalse())
	s.g.Expect(s.has("a")).To(Equal([]string{"fd00::2", "fd00::3", "fd00::4", "fd00::5"}))
}

// A subnet without a whole prefix gives single addresses, and is tried again later.
func TestFragmentedSubnetGivesAddresses(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, p *cloudpool.Config) {
		c.Subnets = map[string]netip.Prefix{"s": pfx("10.0.0.0/26")}
		c.PrefixLen, p.Prefixes = 28, true
	})
	s.cloud.Take(pfx("10.0.0.33/32"))
	s.cloud.Take(pfx("10.0.0.50/32"))
	s.g.Expect(s.state("a").Prefixes).To(BeTrue())
	_, err := s.take("a", 20)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.has("a")).To(Equal([]string{"10.0.0.16/28"}), "one prefix is whole, and none more")
	_, err = s.take("a", 3)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.has("a")).To(Equal([]string{"10.0.0.16/28", "10.0.0.2", "10.0.0.3", "10.0.0.4"}))
	before := s.cloud.Calls()["assign"]
	_, err = s.take("a", 2)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.cloud.Calls()["assign"]).To(Equal(before+1), "no prefix is asked for")
	s.use("a", "10.0.0.17", "10.0.0.2")
	s.g.Expect(s.state("a").Used).To(Equal(17))
	s.now = s.now.Add(11 * time.Minute)
	s.read()
	before = s.cloud.Calls()["assign"]
	_, err = s.take("b", 16)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.cloud.Calls()["assign"]).To(Equal(before+2), "a prefix is asked for again")
	s.use("a", "10.0.0.17")
	s.g.Expect(s.release("a", 15)).To(Equal([]string{"10.0.0.6", "10.0.0.5", "10.0.0.4", "10.0.0.3", "10.0.0.2"}))
	s.use("a")
	s.g.Expect(s.release("a", 15)).To(BeEmpty(), "a prefix goes only as a whole")
	s.g.Expect(s.release("a", 16)).To(Equal([]string{"10.0.0.16/28"}))
}

// A machine, or an interface, that is full does not make its subnet fragmented.
func TestFullInterfaceDoesNotFragmentSubnet(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, p *cloudpool.Config) { c.PrefixLen, p.Prefixes = 28, true })
	_, err := s.cloud.Assign(t.Context(), "machine-a", "eni-1", cloud.Want{Count: 6}) // another user of the cloud
	s.g.Expect(err).NotTo(HaveOccurred())
	a, err := s.take("a", 32)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect([]any{a.Interface, a.Addresses}).To(Equal([]any{"eni-3", 32}), "its first interface is full")
	_, err = s.take("b", 16)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.has("b")).To(HaveLen(1))
	calls := s.cloud.Calls()["assign"]
	_, err = s.take("a", 16)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.cloud.Calls()["assign"]).To(Equal(calls+1), "the full interface is not asked again for some time")
}

// Only an interface that is owned, empty, and neither the first one, a trunk nor an EFA is deleted.
func TestEmptyInterfacesAreDeleted(t *testing.T) {
	for name, x := range map[string]struct {
		change  func(*cloud.Interface)
		deleted bool
	}{
		"an owned one":    {func(*cloud.Interface) {}, true},
		"a foreign one":   {func(i *cloud.Interface) { i.Owned = false }, false},
		"an EFA":          {func(i *cloud.Interface) { i.EFA = true }, false},
		"an excluded one": {func(i *cloud.Interface) { i.Exclude = true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, plain)
			for range 2 {
				_, err := s.take("a", 6)
				s.g.Expect(err).NotTo(HaveOccurred())
			}
			s.cloud.Change("machine-a", "eni-3", x.change)
			s.read()
			s.use("a", "10.0.0.2")
			s.release("a", 100)
			want := []string{"0 eni-1 s 1"}
			if !x.deleted {
				want = append(want, "1 eni-3 s 0")
			}
			s.g.Expect(s.interfaces("a")).To(Equal(want))
			calls := s.cloud.Calls()["delete"]
			s.g.Expect(calls > 0).To(Equal(x.deleted), "the provider itself knows which it may delete")
			s.cloud.Change("machine-a", "eni-1", func(i *cloud.Interface) { i.Owned = true })
			s.read()
			s.use("a")
			s.release("a", 100)
			s.g.Expect(s.interfaces("a")[0]).To(Equal("0 eni-1 s 0"), "the first one stays")
			s.g.Expect(s.cloud.Calls()["delete"]).To(Equal(calls))
		})
	}
}

// A trunk gives pods no address, and an excluded interface keeps what it has.
func TestTrunkAndExcludedInterfaces(t *testing.T) {
	s := newScene(t, plain)
	_, err := s.take("a", 4)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.cloud.Change("machine-a", "eni-1", func(i *cloud.Interface) { i.Exclude = true })
	s.read()
	s.g.Expect(s.has("a")).To(HaveLen(4))
	s.g.Expect(s.state("a").Most).To(Equal(12))
	a, err := s.take("a", 1)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(a.Interface).To(Equal("eni-3"), "a new one")
	s.cloud.Change("machine-a", "eni-1", func(i *cloud.Interface) { i.Trunk = true })
	s.read()
	s.g.Expect(s.has("a")).To(HaveLen(1))
	s.g.Expect(s.spare("a", 9)).To(HaveLen(1))
}

// Readings that are late do not undo the provider's changes, and an address that goes from
// one node to another is with one of them at all times.
func TestLateReadings(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, p *cloudpool.Config) {
		c.Subnets, c.PerInterface, c.Lag, p.Consistency = map[string]netip.Prefix{"s": pfx("10.0.0.0/29")}, 6, 20*time.Second, 30*time.Second
	})
	_, err := s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	for range 10 {
		s.read()
		s.g.Expect(s.has("a")).To(HaveLen(6))
		s.now = s.now.Add(7 * time.Second)
	}
	s.release("a", 4)
	_, err = s.take("b", 4)
	s.g.Expect(err).NotTo(HaveOccurred())
	for range 10 {
		s.read()
		s.g.Expect([]int{len(s.has("a")), len(s.has("b"))}).To(Equal([]int{2, 4}), "after %s", s.now)
		s.now = s.now.Add(7 * time.Second)
	}
}

// What one reading lacks is gone only when later ones lack it as well.
func TestAbsenceInOneReadingProvesNothing(t *testing.T) {
	s := newScene(t, plain)
	_, err := s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	_, err = s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.now = s.now.Add(2 * time.Minute)
	s.read()
	s.g.Expect(s.cloud.Unassign(t.Context(), "machine-a", "eni-1", []netip.Prefix{pfx("10.0.0.2/32")})).To(Succeed())
	s.g.Expect(s.cloud.DeleteInterface(t.Context(), "machine-a", "eni-3")).To(Succeed())
	for range 3 {
		s.now = s.now.Add(20 * time.Second)
		s.read()
		s.g.Expect(s.has("a")).To(HaveLen(12))
	}
	s.now = s.now.Add(41 * time.Second)
	s.read()
	s.g.Expect(s.has("a")).To(HaveLen(5))
	s.cloud.Terminate("machine-a")
	s.read()
	s.g.Expect(s.has("a")).To(HaveLen(5))
	s.now = s.now.Add(61 * time.Second)
	s.read()
	_, err = s.p.State(t.Context(), s.objs["a"])
	s.g.Expect(err).To(And(MatchError(netresource.ErrInstanceNotFound), MatchError(ContainSubstring("machine-a"))))
	_, err = s.take("a", 1)
	s.g.Expect(errors.Is(err, netresource.ErrInstanceNotFound)).To(BeTrue())
}

// An address that two machines show is given to neither, and stays with one that has it in its pool.
func TestAddressOfTwoMachinesIsGivenToNeither(t *testing.T) {
	s := newScene(t, plain)
	_, err := s.take("a", 2)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.cloud.Change("machine-b", "eni-2", func(i *cloud.Interface) {
		i.Blocks = append(i.Blocks, cloud.Block{Prefix: pfx("10.0.0.2/32"), Subnet: "s"})
	})
	s.read()
	s.g.Expect(s.has("a")).To(Equal([]string{"10.0.0.3"}))
	s.g.Expect(s.has("b")).To(BeEmpty())
	s.objs["a"].Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.0.0.2": {}}
	s.use("a", "10.0.0.2")
	s.g.Expect(s.has("a")).To(Equal([]string{"10.0.0.2", "10.0.0.3"}))
}

// A prefix and an address in it are two claims of one address.
func TestOverlapOfTwoMachinesIsGivenToNeither(t *testing.T) {
	s := newScene(t, plain)
	_, err := s.take("a", 3)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.cloud.Change("machine-b", "eni-2", func(i *cloud.Interface) {
		i.Blocks = append(i.Blocks, cloud.Block{Prefix: pfx("10.0.0.2/31"), Subnet: "s"}, cloud.Block{Prefix: pfx("10.0.0.2/32"), Subnet: "s"})
	})
	s.read()
	s.g.Expect(s.has("a")).To(Equal([]string{"10.0.0.4"}))
	s.g.Expect(s.has("b")).To(BeEmpty())
}

// A reading may lack an address that the pool has and a pod uses: its interface stays.
func TestInterfaceOfThePoolIsNotDeleted(t *testing.T) {
	for resource, left := range map[string]int{"eni-3": 2, "eni-1": 1} {
		s := newScene(t, plain)
		for range 2 {
			_, err := s.take("a", 6)
			s.g.Expect(err).NotTo(HaveOccurred())
		}
		s.objs["a"].Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.0.0.99": {Resource: resource}}
		s.use("a", "10.0.0.99")
		s.release("a", 100)
		s.g.Expect(s.interfaces("a")).To(HaveLen(left), resource)
	}
}

// A sweep deletes orphans and interfaces that stayed empty, at most once a minute, and only
// if the program leads.
func TestSweep(t *testing.T) {
	deposed := false
	s := newScene(t, func(_ *memcloud.Config, p *cloudpool.Config) {
		p.Fence = func(context.Context) error {
			if deposed {
				return errors.New("another one leads")
			}
			return nil
		}
	})
	_, err := s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.cloud.SetFault(memcloud.At(s.cloud.CallCount()+1, memcloud.Half))
	_, err = s.take("a", 6)
	s.g.Expect(err).To(HaveOccurred())
	s.g.Expect(s.cloud.Orphans()).To(Equal(1))
	_, err = s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.cloud.SetFault(func(c memcloud.Call) memcloud.Fault {
		if c.What == "delete" {
			return memcloud.Refuse
		}
		return memcloud.None
	})
	s.use("a", "10.0.0.2")
	s.release("a", 100)
	s.g.Expect(s.interfaces("a")).To(HaveLen(2), "its deletion has failed")
	s.cloud.SetFault(nil)
	for minute := range 9 {
		s.now = s.now.Add(time.Minute)
		s.read()
		s.read()
		s.g.Expect([]int{s.cloud.Orphans(), len(s.interfaces("a"))}).To(Equal([]int{1, 2}), "minute %d", minute)
	}
	s.g.Expect(s.cloud.Calls()["orphans"]).To(Equal(9))
	deposed = true
	s.now = s.now.Add(2 * time.Minute)
	s.read()
	s.g.Expect(s.cloud.Calls()["orphans"]).To(Equal(9))
	deposed = false
	s.now = s.now.Add(time.Minute)
	s.read()
	s.g.Expect([]int{s.cloud.Orphans(), len(s.interfaces("a"))}).To(Equal([]int{0, 1}))
}

func TestErrorsOfTheCloud(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, _ *cloudpool.Config) { c.QPS = 1 })
	_, err := s.take("a", 1)
	s.g.Expect(errors.Is(err, netresource.ErrThrottled)).To(BeTrue(), "%v", err)
	_, err = s.p.Read(t.Context())
	s.g.Expect(errors.Is(err, netresource.ErrThrottled)).To(BeTrue(), "%v", err)
	s.now = s.now.Add(time.Second)
	_, err = s.take("a", 6)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.now = s.now.Add(time.Second)
	s.cloud.Terminate("machine-a")
	_, err = s.take("a", 1)
	s.g.Expect(errors.Is(err, netresource.ErrInstanceNotFound)).To(BeTrue(), "%v", err)
	s.g.Expect(s.p.Release(t.Context(), s.objs["a"], &netresource.ReleaseAction{IPsToRelease: []string{"here"}})).To(MatchError(ContainSubstring(`release "here"`)))
}

// One machine that can have no more does not keep others from the subnet; the machine tries
// another subnet, and this one again after two minutes.
func TestFullMachineDoesNotCloseSubnet(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, _ *cloudpool.Config) {
		c.Subnets["t"] = pfx("10.0.1.0/28")
	})
	for _, node := range []string{"a", "b"} {
		_, err := s.take(node, 6)
		s.g.Expect(err).NotTo(HaveOccurred())
	}
	for i := range 256 { // foreign users take all addresses, and no reading shows it yet
		s.cloud.Take(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32))
	}
	a, err := s.take("a", 1)
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
	s.g.Expect(a.Pool).To(Equal(v1alpha1.PoolID("s")))
	a, err = s.take("a", 1)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(a.Pool).To(Equal(v1alpha1.PoolID("t")))
	a, err = s.take("b", 1)
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
	s.g.Expect(a.Pool).To(Equal(v1alpha1.PoolID("s")), "the other machine asks for itself")
	s.now = s.now.Add(2*time.Minute + 1)
	s.read()
	quotas, err := s.p.Quotas(t.Context())
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(quotas["s"]).To(Equal(v1alpha1.PoolQuota{AvailabilityZone: "zone-a"}))
	s.cloud.Take(pfx("10.0.1.0/28"))
	s.read()
	_, err = s.take("b", 1)
	s.g.Expect(err).To(MatchError(ContainSubstring(`no usable subnet of zone "zone-a" has a free address`)))
}

// The status has an interface before the pool has its first address, until it has none.
func TestStatusDescribesInterfaces(t *testing.T) {
	s := newScene(t, func(c *memcloud.Config, _ *cloudpool.Config) {
		c.Second = map[string]netip.Prefix{"s": pfx("fd00::/64")}
	})
	r := &v1alpha1.NetResourceSet{}
	s.describe("a", r)
	s.g.Expect(r.Status.Interfaces).To(BeNil())
	_, err := s.take("a", 1)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.describe("a", r)
	s.g.Expect(r.Status.Interfaces).To(Equal(map[string]v1alpha1.NetResourceInterface{"eni-1": {
		MAC:      "02:00:00:00:00:01",
		Ranges:   []v1alpha1.SubnetRange{{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}, {CIDR: "fd00::/64", Gateway: "fd00::1"}},
		VPCCIDRs: []v1alpha1.PodCIDR{"10.0.0.0/24", "fd00::/64"},
	}}))
	r.Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.0.0.1": {Resource: "eni-1"}}
	s.release("a", 1)
	s.describe("a", r)
	s.g.Expect(r.Status.Interfaces).To(HaveKey("eni-1"), "the pool still has its address")
	r.Spec.IPAM.Pool = nil
	s.describe("a", r)
	s.g.Expect(r.Status.Interfaces).To(BeNil())
}
