// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipamapitest is what an engine may expect of a driver, as a suite of
// tests: for ipamapi's Driver in process, and for whatever speaks for one over
// a wire. There errors are texts only, and a release of what is not known may
// succeed; the suite accepts both.
//
// Example:
//
//	ipamapitest.Run(t, func(t *testing.T) ipamapi.Ipam { return newDriver(t, ipamapi.Config{}) })
package ipamapitest

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// Run tests drivers that open makes: each without pools, with the zero Config,
// on a host that has no networks.
func Run(t *testing.T, open func(t *testing.T) ipamapi.Ipam) {
	for _, x := range []struct {
		name string
		test func(*exam)
	}{
		{"spaces have names", spaces},
		{"pools are named", namedPools},
		{"pools are counted", countedPools},
		{"a pool outlives its parts", parents},
		{"pools are chosen", chosenPools},
		{"a chosen pool is never repeated", neverRepeated},
		{"pools are read with care", readPools},
		{"parts of one pool", parts},
		{"overlaps", overlaps},
		{"a part is filled and no more", filledPart},
		{"the order of addresses", order},
		{"where many addresses lead", manyAddresses},
		{"small pools", smallPools},
		{"huge pools", hugePools},
		{"a released address is lent again", reused},
		{"an address is held by one", heldByOne},
		{"any address is another one", anyIsAnother},
		{"addresses are read with care", readAddresses},
		{"a release can be repeated", repeatedRelease},
		{"a release frees its own only", ownRelease},
		{"gateways", gateways},
		{"a pool takes its addresses along", poolsTakeAlong},
		{"pools stand in for each other", standIn},
		{"many callers fill a pool", parallelFill},
		{"many callers get many pools", parallelPools},
		{"many callers never share an address", race},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := &exam{Gomega: NewWithT(t), Ipam: open(t)}
			var err error
			e.local, e.global, err = e.GetDefaultAddressSpaces()
			e.Expect(err).NotTo(HaveOccurred())
			x.test(e)
		})
	}
}

// exam is one test with its driver.
type exam struct {
	Gomega
	ipamapi.Ipam
	local, global string
}

// options are pairs of names and values.
func options(pairs ...string) map[string]string {
	all := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

func serial() map[string]string  { return options(ipamapi.AllocSerialPrefix, "true") }
func gateway() map[string]string { return options(ipamapi.RequestAddressType, ipamapi.Gateway) }
func endpoint(name, mac string) map[string]string {
	return options(ipamapi.EndpointName, name, ipamapi.EndpointMAC, mac)
}

// failWith matches one of the contract's errors, or its text.
func failWith(want error) types.GomegaMatcher {
	return And(HaveOccurred(), WithTransform(func(err error) bool {
		return errors.Is(err, want) || strings.Contains(err.Error(), want.Error())
	}, BeTrue()))
}

// request asks for a pool of the local space: prefix and sub-pool.
func (e *exam) request(prefix, sub string) (ipamapi.AllocatedPool, error) {
	return e.RequestPool(ipamapi.PoolRequest{AddressSpace: e.local, Pool: prefix, SubPool: sub, V6: strings.Contains(prefix, ":")})
}

// pool is the ID of a pool that must be given.
func (e *exam) pool(prefix, sub string) string {
	p, err := e.request(prefix, sub)
	e.Expect(err).NotTo(HaveOccurred(), "pool %q, sub-pool %q", prefix, sub)
	if prefix != "" && !netip.MustParsePrefix(prefix).Addr().IsUnspecified() {
		e.Expect(p.Pool).To(Equal(netip.MustParsePrefix(prefix).Masked()), "of %q", prefix)
	}
	return p.PoolID
}

func (e *exam) refused(prefix, sub string, why error) {
	_, err := e.request(prefix, sub)
	e.Expect(err).To(failWith(why), "pool %q, sub-pool %q", prefix, sub)
}

// ask asks for an address, "" for any, and gives it with its length.
func (e *exam) ask(pool, addr string, options map[string]string) (string, error) {
	n, _, err := e.RequestAddress(pool, net.ParseIP(addr), options)
	if err != nil {
		return "", err
	}
	return n.String(), nil
}

// get is an address that must be given.
func (e *exam) get(pool, addr string, options map[string]string) string {
	got, err := e.ask(pool, addr, options)
	e.Expect(err).NotTo(HaveOccurred(), "address %q", addr)
	if addr != "" {
		e.Expect(got).To(HavePrefix(netip.MustParseAddr(addr).String() + "/"))
	}
	return got
}

// fill gets any address n times, and gives the last one.
func (e *exam) fill(pool string, n int, options map[string]string) (last string) {
	for range n {
		got, err := e.ask(pool, "", options)
		e.Expect(err).NotTo(HaveOccurred())
		last = got
	}
	return last
}

func (e *exam) free(pool string, addrs ...string) {
	for _, a := range addrs {
		e.Expect(e.ReleaseAddress(pool, net.ParseIP(a))).To(Succeed(), "release %s", a)
	}
}

// gone matches the release of what is not known: over a wire it succeeds.
func gone() types.GomegaMatcher { return Or(Succeed(), failWith(ipamapi.ErrBadPool)) }
