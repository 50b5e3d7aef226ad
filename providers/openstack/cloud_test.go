// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/providers/openstack"
	"github.com/cadastre/cadastre/providers/openstack/neutrontest"
)

// site is a network of a real Neutron, and a client of it.
type site struct {
	*neutrontest.Server
	t       testing.TB
	g       *WithT
	network neutrontest.Network
	cloud   *openstack.Cloud
}

func newSite(t *testing.T, s *neutrontest.Server, cidrs ...string) *site {
	t.Helper()
	for _, p := range s.Ports(t) { // machines have the same names in each case
		if err := ports.Delete(t.Context(), s.Client(), p.ID).ExtractErr(); err != nil {
			t.Fatal(err)
		}
	}
	at := &site{Server: s, t: t, g: NewWithT(t), network: s.Network(t, cidrs...)}
	at.cloud = at.open(func(*openstack.Config) {})
	return at
}

// open returns one more client, as another process has it.
func (s *site) open(edit func(*openstack.Config)) *openstack.Cloud {
	s.t.Helper()
	c := openstack.Config{Networks: []string{s.network.ID}, Endpoint: s.URL()}
	edit(&c)
	made, err := openstack.New(s.t.Context(), c)
	s.g.Expect(err).NotTo(HaveOccurred())
	return made
}

// boot creates a machine and returns the ID of its port.
func (s *site) boot(machine string) string {
	s.t.Helper()
	return s.Boot(s.t, s.network, machine).ID
}

// machine reads a machine, by both ways, which agree.
func (s *site) machine(id string) *cloud.Instance {
	s.t.Helper()
	all, err := s.cloud.Read(s.t.Context())
	s.g.Expect(err).NotTo(HaveOccurred())
	one, err := s.cloud.ReadInstance(s.t.Context(), id)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(one.Instances).To(HaveLen(1))
	s.g.Expect(one.Instances[id]).To(Equal(all.Instances[id]))
	return one.Instances[id]
}

// given returns the addresses and prefixes of an interface that pods get.
func given(i *cloud.Interface) (all []netip.Prefix) {
	for _, b := range i.Blocks {
		if !b.Primary {
			all = append(all, b.Prefix)
		}
	}
	return all
}

func prefixesOf(blocks []cloud.Block) (all []netip.Prefix) {
	for _, b := range blocks {
		all = append(all, b.Prefix)
	}
	return all
}

func (s *site) assign(machine, port string, want cloud.Want) []netip.Prefix {
	s.t.Helper()
	added, err := s.cloud.Assign(s.t.Context(), machine, port, want)
	s.g.Expect(err).NotTo(HaveOccurred())
	return prefixesOf(added)
}

// port reads a port directly.
func (s *site) port(id string) *ports.Port {
	s.t.Helper()
	p, err := ports.Get(s.t.Context(), s.Client(), id).Extract()
	s.g.Expect(err).NotTo(HaveOccurred())
	return p
}

// pairTo permits a prefix on a port, as a person does.
func (s *site) pairTo(id string, prefixes ...string) {
	s.t.Helper()
	all := s.port(id).AllowedAddressPairs
	for _, p := range prefixes {
		all = append(all, ports.AddressPair{IPAddress: p})
	}
	s.g.Expect(ports.Update(s.t.Context(), s.Client(), id, ports.UpdateOpts{AllowedAddressPairs: &all}).Err).To(Succeed())
}

func pool(first, last string) subnets.AllocationPool {
	return subnets.AllocationPool{Start: first, End: last}
}

// TestCloud runs against one real Neutron, each case in a network of its own.
func TestCloud(t *testing.T) {
	server := neutrontest.New(t, neutrontest.Options{})
	for _, x := range []struct {
		name  string
		cidrs []string
		run   func(*site)
	}{
		{"addresses come and go, and the machine's own stay", []string{"10.0.0.0/24", "fd00::/64"}, addresses},
		{"an address that Neutron derives from the MAC is never for pods", []string{"10.0.0.0/24"}, derived},
		{"a writer reads again what Neutron has written without its condition", []string{"10.0.0.0/24"}, uncompared},
		{"of writers that overlap one says so", []string{"10.0.0.0/24"}, twoWriters},
		{"a subnet with fewer addresses gives what it has", []string{"10.0.0.0/28"}, fullSubnet},
		{"an interface has no more than the limit", []string{"10.0.0.0/24"}, fullInterface},
		{"blocks are disjoint, whoever allocates", []string{"10.0.0.0/24"}, disjointBlocks},
		{"blocks lie outside of the allocation pools first", nil, blocksOutsideOfPools},
		{"IPv6 blocks never lie in the allocation pools", nil, blocks6},
		{"foreign pairs are kept and respected", []string{"10.0.0.0/24"}, foreignPairs},
		{"interfaces are created and deleted", []string{"10.0.0.0/24", "fd00::/64"}, interfaces},
		{"only interfaces that the cluster has created are deleted", []string{"10.0.0.0/24"}, foreignInterfaces},
		{"orphans are deleted when they are old enough", []string{"10.0.0.0/24"}, orphans},
		{"nothing remains of any half-done call", []string{"10.0.0.0/24"}, halfDone},
		{"a list of many pages is read whole", []string{"10.0.0.0/24"}, pages},
		{"tags select machines and subnets", []string{"10.0.0.0/24"}, selection},
	} {
		t.Run(x.name, func(t *testing.T) { x.run(newSite(t, server, x.cidrs...)) })
	}
}

func addresses(s *site) {
	g, ctx := s.g, s.t.Context()
	port := s.boot("m1")
	before := s.machine("m1")
	g.Expect(before.Interfaces).To(HaveLen(1))
	g.Expect(given(before.Interfaces[0])).To(BeEmpty())
	own := prefixesOf(before.Interfaces[0].Blocks)
	g.Expect(own).To(HaveLen(2))
	g.Expect(s.cloud.Unassign(ctx, "m1", port, own[:1])).To(MatchError(ContainSubstring("own address")), "before the first Assign")

	first := s.assign("m1", port, cloud.Want{Count: 3})
	second := s.assign("m1", port, cloud.Want{Count: 2})
	sixth := s.assign("m1", port, cloud.Want{Count: 2, IPv6: true})
	g.Expect([]int{len(first), len(second), len(sixth)}).To(Equal([]int{3, 2, 2}))
	m := s.machine("m1")
	g.Expect(given(m.Interfaces[0])).To(ConsistOf(append(append(first, second...), sixth...)))
	for _, b := range m.Interfaces[0].Blocks {
		g.Expect(b.Subnet).To(Equal(s.network.Subnets[0].ID), "one subnet stands for both families")
		g.Expect(b.Primary).To(Equal(b.Prefix == own[0] || b.Prefix == own[1]))
	}
	all, err := s.cloud.Read(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	subnet := all.Subnets[s.network.Subnets[0].ID]
	g.Expect(subnet.Ranges).To(Equal([]cloud.Range{
		{CIDR: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1")},
		{CIDR: netip.MustParsePrefix("fd00::/64"), Gateway: netip.MustParseAddr("fd00::1")},
	}))
	g.Expect(subnet.VPC).To(ConsistOf(netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")))
	g.Expect(subnet.Free).To(Equal(254 - 1 - 6))

	g.Expect(s.cloud.Unassign(ctx, "m1", port, append(first, sixth...))).To(Succeed())
	g.Expect(s.cloud.Unassign(ctx, "m1", port, first)).To(Succeed(), "repeated")
	g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(second))
	g.Expect(s.cloud.Unassign(ctx, "m1", port, append(own, second...))).To(MatchError(ContainSubstring("own address")))
	g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(second), "nothing is removed then")

	_, err = s.cloud.Assign(ctx, "m2", port, cloud.Want{Count: 1})
	g.Expect(err).To(MatchError(cloud.ErrNoInstance), "another machine")
	_, err = s.cloud.Assign(ctx, "m1", "5bd1a9b4-0000-4000-8000-000000000000", cloud.Want{Count: 1})
	g.Expect(err).To(MatchError(cloud.ErrNoInstance), "no such port")
	_, err = s.cloud.ReadInstance(ctx, "m2")
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))
}

func derived(s *site) {
	g := s.g
	_, err := subnets.Create(s.t.Context(), s.Client(), subnets.CreateOpts{
		NetworkID: s.network.ID, CIDR: "fd01::/64", IPVersion: gophercloud.IPv6,
		IPv6AddressMode: "slaac", IPv6RAMode: "slaac",
	}).Extract()
	g.Expect(err).NotTo(HaveOccurred())
	port := s.boot("m1")
	g.Expect(s.port(port).FixedIPs).To(HaveLen(2), "Neutron derives one")
	added := s.assign("m1", port, cloud.Want{Count: 2})
	g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(added))
	g.Expect(s.cloud.Unassign(s.t.Context(), "m1", port, added[:1])).To(Succeed())
	g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(added[1:]))
	g.Expect(s.port(port).FixedIPs).To(HaveLen(3))
	_, err = s.cloud.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 1, IPv6: true})
	g.Expect(err).To(MatchError(cloud.ErrFull))
	made, err := s.cloud.CreateInterface(s.t.Context(), "m1", cloud.NewInterface{
		Subnet: s.network.Subnets[0].ID, Device: 1, Want: cloud.Want{Count: 1},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(given(made)).To(HaveLen(1))
	g.Expect(made.Blocks).To(HaveLen(3))
}

// unconditional does to the first update what Neutron does to one that meets another in its
// database: the other one comes first, and the condition is gone.
type unconditional struct {
	other func()
	once  sync.Once
}

func (u *unconditional) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/ports/") && r.Header.Get("If-Match") != "" {
		u.once.Do(func() { u.other(); r.Header.Del("If-Match") })
	}
	return http.DefaultTransport.RoundTrip(r)
}

// uncompared: the answer is the port as it is, and the log names it.
func uncompared(s *site) {
	port := s.boot("m1")
	s.assign("m1", port, cloud.Want{Count: 1})
	log := &logbuffer.Buffer{}
	var theirs []netip.Prefix
	over := s.open(func(c *openstack.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, nil))
		c.Transport = &unconditional{other: func() { theirs = s.assign("m1", port, cloud.Want{Count: 2}) }}
	})
	added, err := over.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 2})
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(theirs).To(HaveLen(2))
	s.g.Expect(given(s.machine("m1").Interfaces[0])).To(ContainElements(prefixesOf(added)))
	s.g.Expect(log.String()).To(And(ContainSubstring(openstack.MsgOverlapped), ContainSubstring(port)))
	log = &logbuffer.Buffer{}
	alone := s.open(func(c *openstack.Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
	_, err = alone.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 1})
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(log.String()).To(BeEmpty(), "no other writer")
}

// twoWriters: Neutron's condition keeps writers from each other, but for updates that overlap
// in its database. A writer that may have taken another one's addresses away says so.
func twoWriters(s *site) {
	port := s.boot("m1")
	s.assign("m1", port, cloud.Want{Count: 1})
	log := &logbuffer.Buffer{}
	var wait sync.WaitGroup
	var mu sync.Mutex
	var all []netip.Prefix
	for range 4 {
		wait.Go(func() {
			other := s.open(func(c *openstack.Config) { c.Log = slog.New(slog.NewTextHandler(log, nil)) })
			for range 3 {
				added, err := other.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 2})
				mu.Lock()
				if err == nil {
					all = append(all, prefixesOf(added)...)
				} else {
					s.t.Errorf("a writer gave up: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	has := given(s.machine("m1").Interfaces[0])
	s.g.Expect(len(all)).To(BeNumerically(">=", 24), "each writer is told of its two addresses")
	lost := slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return slices.Contains(has, p) })
	if overlaps := strings.Count(log.String(), openstack.MsgOverlapped); overlaps == 0 {
		s.g.Expect(lost).To(BeEmpty(), "addresses that are lost without a word")
		s.g.Expect(has).To(HaveLen(25))
	} else {
		s.t.Logf("%d updates overlapped, %d of %d addresses were taken back", overlaps, len(lost), len(all))
	}
}

func fullSubnet(s *site) {
	port := s.boot("m1") // 14 addresses, of which the gateway and the machine have one each
	total := 0
	for {
		added, err := s.cloud.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 8})
		if err != nil {
			s.g.Expect(err).To(MatchError(cloud.ErrFull))
			break
		}
		total += len(added)
	}
	s.g.Expect(total).To(Equal(12))
	all, err := s.cloud.Read(s.t.Context())
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(all.Subnets[s.network.Subnets[0].ID].Free).To(BeZero())
	_, err = s.cloud.CreateInterface(s.t.Context(), "m1", cloud.NewInterface{Subnet: s.network.Subnets[0].ID, Device: 1})
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
}

func fullInterface(s *site) {
	c := s.open(func(c *openstack.Config) { c.MaxAddresses, c.MaxInterfaces = 5, 2 })
	port := s.boot("m1")
	added, err := c.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 3})
	s.g.Expect(added, err).To(HaveLen(3))
	_, err = c.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 1, Prefixes: true})
	s.g.Expect(err).NotTo(HaveOccurred())
	added, err = c.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 3})
	s.g.Expect(added, err).To(HaveLen(1))
	for _, prefixes := range []bool{false, true} {
		_, err = c.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 1, Prefixes: prefixes})
		s.g.Expect(err).To(MatchError(cloud.ErrFull))
	}
	_, err = c.CreateInterface(s.t.Context(), "m1", cloud.NewInterface{Device: 1})
	s.g.Expect(err).NotTo(HaveOccurred())
	_, err = c.CreateInterface(s.t.Context(), "m1", cloud.NewInterface{Device: 2})
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
}

func interfaces(s *site) {
	g, ctx := s.g, s.t.Context()
	first := s.port(s.boot("m1"))
	add := s.Client()
	_, err := add.Put(ctx, add.ServiceURL("ports", first.ID, "tags", "team-a"), nil, nil, &gophercloud.RequestOpts{OkCodes: []int{201}})
	g.Expect(err).NotTo(HaveOccurred())
	subnet := s.network.Subnets[0].ID
	made, err := s.cloud.CreateInterface(ctx, "m1", cloud.NewInterface{Subnet: subnet, Device: 1, Want: cloud.Want{Count: 4}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.Blocks).To(HaveLen(5))
	g.Expect(given(made)).To(HaveLen(4))
	g.Expect([]any{made.Owned, made.Device, made.Subnet, made.MAC != ""}).To(Equal([]any{true, 1, subnet, true}))
	p := s.port(made.ID)
	g.Expect(p.SecurityGroups).To(Equal(first.SecurityGroups))
	g.Expect(p.Tags).To(ContainElement("team-a"))
	g.Expect(s.machine("m1").Interfaces).To(HaveLen(2))
	g.Expect(s.machine("m1").Interfaces[1]).To(Equal(made))
	more := s.assign("m1", made.ID, cloud.Want{Count: 3})
	sixth := s.assign("m1", made.ID, cloud.Want{Count: 1, IPv6: true})
	g.Expect(given(s.machine("m1").Interfaces[1])).To(ConsistOf(append(append(given(made), more...), sixth...)), "the own address stays the same")

	third, err := s.cloud.CreateInterface(ctx, "m1", cloud.NewInterface{Subnet: subnet, Device: 2, Want: cloud.Want{Count: 2, Prefixes: true}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(given(third)).To(HaveLen(2))
	g.Expect(s.cloud.DeleteInterface(ctx, "m1", made.ID)).To(Succeed())
	g.Expect(s.cloud.DeleteInterface(ctx, "m1", made.ID)).To(Succeed(), "repeated")
	g.Expect(s.machine("m1").Interfaces).To(HaveLen(2))
	g.Expect(s.machine("m1").Interfaces[1].Device).To(Equal(2), "numbers do not move")
	g.Expect(s.cloud.DeleteInterface(ctx, "m1", third.ID)).To(Succeed())
	g.Expect(s.ours()).To(HaveLen(1), "reservations go with the interface")

	_, err = s.cloud.CreateInterface(ctx, "m9", cloud.NewInterface{Subnet: subnet, Device: 1})
	g.Expect(err).To(MatchError(cloud.ErrNoInstance))
}

// ours returns the ports of the network.
func (s *site) ours() (all []ports.Port) {
	s.t.Helper()
	for _, p := range s.Ports(s.t) {
		if p.NetworkID == s.network.ID {
			all = append(all, p)
		}
	}
	return all
}

func foreignInterfaces(s *site) {
	g, ctx := s.g, s.t.Context()
	first := s.boot("m1")
	s.boot("m2")
	other := s.open(func(c *openstack.Config) { c.Cluster = "other" })
	foreign, err := other.CreateInterface(ctx, "m1", cloud.NewInterface{Device: 1})
	g.Expect(err).NotTo(HaveOccurred())
	mine, err := s.cloud.CreateInterface(ctx, "m1", cloud.NewInterface{Device: 2})
	g.Expect(err).NotTo(HaveOccurred())
	for _, id := range []string{first, foreign.ID} {
		g.Expect(s.cloud.DeleteInterface(ctx, "m1", id)).To(MatchError(ContainSubstring("want a port that CreateInterface has created")))
	}
	g.Expect(s.cloud.DeleteInterface(ctx, "m2", mine.ID)).NotTo(Succeed(), "another machine's")
	g.Expect(s.ours()).To(HaveLen(4))
	s.Terminate(s.t, "m1")
	gone, err := s.cloud.DeleteOrphans(ctx, "", 0)
	g.Expect(gone, err).To(ConsistOf(mine.ID))
}

func orphans(s *site) {
	g, ctx := s.g, s.t.Context()
	port := s.boot("m1")
	block := s.assign("m1", port, cloud.Want{Count: 1, Prefixes: true})
	made, err := s.cloud.CreateInterface(ctx, "m1", cloud.NewInterface{Device: 1, Want: cloud.Want{Count: 1, Prefixes: true}})
	g.Expect(err).NotTo(HaveOccurred())
	none, err := s.cloud.DeleteOrphans(ctx, "", 0)
	g.Expect(none, err).To(BeEmpty(), "nothing that is in use")
	g.Expect(given(s.machine("m1").Interfaces[0])).To(Equal(block))
	s.Terminate(s.t, "m1")
	s.boot("m2")
	none, err = s.cloud.DeleteOrphans(ctx, "", time.Hour)
	g.Expect(none, err).To(BeEmpty(), "too young")
	none, err = s.cloud.DeleteOrphans(ctx, "m2", 0)
	g.Expect(none, err).To(BeEmpty(), "of another machine")
	gone, err := s.cloud.DeleteOrphans(ctx, "m1", 0)
	g.Expect(gone, err).To(ContainElement(made.ID))
	_, err = s.cloud.DeleteOrphans(ctx, "", 0) // the reservation whose pair was on the deleted port
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.ours()).To(HaveLen(1))
}

// cut is a transport that fails one request that changes something: before it is sent, or
// after its effect.
type cut struct {
	at    int64
	after bool
	sent  atomic.Int64
}

var errCut = errors.New("the connection is cut")

func (c *cut) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return http.DefaultTransport.RoundTrip(r)
	}
	n := c.sent.Add(1)
	if n == c.at && !c.after {
		return nil, errCut
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if n == c.at && err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		return nil, errors.Join(errCut, answer.Body.Close())
	}
	return answer, err
}

// halfDone cuts the connection at each change of a machine's life, before and after its
// effect. The caller repeats what has failed after it has read the machine.
func halfDone(s *site) {
	ctx := s.t.Context()
	life := func(machine string, c *openstack.Cloud) {
		port := s.boot(machine)
		again := func(do func() error) {
			for err := do(); err != nil; err = do() {
				s.g.Expect(err).To(MatchError(ContainSubstring(errCut.Error())))
			}
		}
		again(func() error { _, err := c.Assign(ctx, machine, port, cloud.Want{Count: 2}); return err })
		again(func() error { _, err := c.Assign(ctx, machine, port, cloud.Want{Count: 1, Prefixes: true}); return err })
		again(func() error {
			_, err := c.CreateInterface(ctx, machine, cloud.NewInterface{Device: 1, Want: cloud.Want{Count: 1, Prefixes: true}})
			return err
		})
		var m *cloud.Instance
		again(func() error {
			all, err := c.ReadInstance(ctx, machine)
			if err == nil {
				m = all.Instances[machine]
			}
			return err
		})
		for _, i := range m.Interfaces {
			again(func() error { return c.Unassign(ctx, machine, i.ID, given(i)) })
			if i.Owned {
				again(func() error { return c.DeleteInterface(ctx, machine, i.ID) })
			}
		}
		again(func() error { _, err := c.DeleteOrphans(ctx, "", 0); return err })
		left := s.ours()
		s.g.Expect(left).To(HaveLen(1))
		s.g.Expect(left[0].FixedIPs).To(HaveLen(1))
		s.g.Expect(left[0].AllowedAddressPairs).To(BeEmpty())
		s.Terminate(s.t, machine)
	}
	plain := &cut{}
	life("m0", s.open(func(c *openstack.Config) { c.Transport = plain }))
	s.g.Expect(plain.sent.Load()).To(BeNumerically(">", 10))
	step := int64(5)
	if effort.Level(s.t) >= effort.Nightly {
		step = 1 // this takes minutes
	}
	for at := int64(1); at <= plain.sent.Load(); at += step {
		for _, after := range []bool{false, true} {
			c := &cut{at: at, after: after}
			life(fmt.Sprintf("m%d-%t", at, after), s.open(func(config *openstack.Config) { config.Transport = c }))
		}
	}
}

func pages(s *site) {
	for n := range 7 {
		s.boot(fmt.Sprint("m", n))
	}
	c := s.open(func(c *openstack.Config) { c.PageSize = 3 })
	all, err := c.Read(s.t.Context())
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(all.Instances).To(HaveLen(7))
}

func selection(s *site) {
	g, ctx := s.g, s.t.Context()
	s.boot("m1")
	chosen := s.boot("m2")
	add := s.Client()
	for _, tag := range []string{"cluster-a", "no-pods"} {
		_, err := add.Put(ctx, add.ServiceURL("ports", chosen, "tags", tag), nil, nil, &gophercloud.RequestOpts{OkCodes: []int{201}})
		g.Expect(err).NotTo(HaveOccurred())
	}
	c := s.open(func(c *openstack.Config) {
		c.PortTags, c.ExcludeTag, c.SubnetTags = []string{"cluster-a"}, "no-pods", []string{"pods"}
	})
	all, err := c.Read(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all.Instances).To(And(HaveLen(1), HaveKey("m2")))
	g.Expect(all.Instances["m2"].Interfaces[0].Exclude).To(BeTrue())
	g.Expect(all.Subnets[s.network.Subnets[0].ID].Usable).To(BeFalse())
}

// A quota of the project is an error that names its cause.
func TestQuota(t *testing.T) {
	s := newSite(t, neutrontest.New(t, neutrontest.Options{MaxPorts: 2, MaxPairs: 1}), "10.0.0.0/24")
	port := s.boot("m1")
	s.assign("m1", port, cloud.Want{Count: 1, Prefixes: true})
	_, err := s.cloud.CreateInterface(t.Context(), "m1", cloud.NewInterface{Device: 1})
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
	_, err = s.cloud.Assign(t.Context(), "m1", port, cloud.Want{Count: 1, Prefixes: true})
	s.g.Expect(err).To(MatchError(cloud.ErrFull))
	s.g.Expect(s.ours()).To(HaveLen(2))
}

// TestConfig rejects settings that cannot work, before anything is asked, and names them.
func TestConfig(t *testing.T) {
	for text, c := range map[string]openstack.Config{
		`Cluster (--openstack-cluster) "a/b": want 1 to 63 letters`:              {Cluster: "a/b"},
		"PrefixBits of IPv4 (--openstack-prefix-length-ipv4) 33: want 24 to 31":  {PrefixBits: [2]int{33, 80}},
		"PrefixBits of IPv6 (--openstack-prefix-length-ipv6) 64: want 65 to 127": {PrefixBits: [2]int{28, 64}},
		"MaxInterfaces (--openstack-max-interfaces) -1: want at least 1":         {MaxInterfaces: -1},
		"MaxAddresses (--openstack-max-addresses) -2: want at least 1":           {MaxAddresses: -2},
	} {
		_, err := openstack.New(context.Background(), c)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(text)))
	}
}

// TestFlagsOfZero: of a Config 0 stands for the default, of a flag it is a mistake.
func TestFlagsOfZero(t *testing.T) {
	for _, flag := range []string{"max-interfaces", "max-addresses", "prefix-length-ipv4", "prefix-length-ipv6"} {
		var o openstack.Options
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags(fs)
		g := NewWithT(t)
		g.Expect(fs.Parse([]string{"--openstack-endpoint=http://127.0.0.1:1", "--openstack-" + flag + "=0"})).To(Succeed())
		_, _, err := o.Open(t.Context(), nil, 1, 1)
		g.Expect(err).To(MatchError(ContainSubstring("--openstack-" + flag + "=0: want another number")))
	}
}
