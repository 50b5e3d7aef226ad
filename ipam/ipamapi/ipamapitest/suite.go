// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipamapitest tests a driver as an engine uses it: ipamapi's Driver in
// process, or a client of a driver over a wire. A client gets errors as texts only,
// and a release of an unknown pool may succeed; the suite accepts both.
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

// Run tests the drivers that open returns: each without pools, with the zero Config,
// on a host without networks.
func Run(t *testing.T, open func(t *testing.T) ipamapi.Ipam) {
	for _, x := range []struct {
		name string
		test func(*suite)
	}{
		{"address spaces", spaces},
		{"pools with a prefix", namedPools},
		{"pools are counted", countedPools},
		{"a pool and its parts end separately", parents},
		{"pools are chosen", chosenPools},
		{"a chosen pool is never repeated", neverRepeated},
		{"invalid pools", readPools},
		{"parts of one pool", parts},
		{"overlaps", overlaps},
		{"a part is filled and no more", filledPart},
		{"the order of addresses", order},
		{"many addresses", manyAddresses},
		{"small pools", smallPools},
		{"huge pools", hugePools},
		{"a released address is allocated again", reused},
		{"an address has one holder", heldByOne},
		{"only a named endpoint repeats a request for any address", anyIsAnother},
		{"invalid addresses", readAddresses},
		{"a release can be repeated", repeatedRelease},
		{"a release through another pool", ownRelease},
		{"gateways", gateways},
		{"a pool ends with its addresses", poolsTakeAlong},
		{"pools of a group", standIn},
		{"concurrent requests fill a pool", parallelFill},
		{"concurrent requests for pools", parallelPools},
		{"concurrent callers never share an address", race},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := &suite{Gomega: NewWithT(t), Ipam: open(t)}
			var err error
			e.local, e.global, err = e.GetDefaultAddressSpaces()
			e.Expect(err).NotTo(HaveOccurred())
			x.test(e)
		})
	}
}

// suite is one test with its driver.
type suite struct {
	Gomega
	ipamapi.Ipam
	local, global string
}

// options returns a map of pairs of names and values.
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
func (e *suite) request(prefix, sub string) (ipamapi.AllocatedPool, error) {
	return e.RequestPool(
		ipamapi.PoolRequest{AddressSpace: e.local, Pool: prefix, SubPool: sub, V6: strings.Contains(prefix, ":")},
	)
}

// pool requests a pool, which must succeed, and returns its ID.
func (e *suite) pool(prefix, sub string) string {
	p, err := e.request(prefix, sub)
	e.Expect(err).NotTo(HaveOccurred(), "pool %q, sub-pool %q", prefix, sub)
	if prefix != "" && !netip.MustParsePrefix(prefix).Addr().IsUnspecified() {
		e.Expect(p.Pool).To(Equal(netip.MustParsePrefix(prefix).Masked()), "of %q", prefix)
	}
	return p.PoolID
}

func (e *suite) refused(prefix, sub string, why error) {
	_, err := e.request(prefix, sub)
	e.Expect(err).To(failWith(why), "pool %q, sub-pool %q", prefix, sub)
}

// ask requests an address, "" for any, and returns it with its length.
func (e *suite) ask(pool, addr string, options map[string]string) (string, error) {
	n, _, err := e.RequestAddress(pool, net.ParseIP(addr), options)
	if err != nil {
		return "", err
	}
	return n.String(), nil
}

// get requests an address, which must succeed.
func (e *suite) get(pool, addr string, options map[string]string) string {
	got, err := e.ask(pool, addr, options)
	e.Expect(err).NotTo(HaveOccurred(), "address %q", addr)
	if addr != "" {
		e.Expect(got).To(HavePrefix(netip.MustParseAddr(addr).String() + "/"))
	}
	return got
}

// fill requests any address n times, and returns the last one.
func (e *suite) fill(pool string, n int, options map[string]string) (last string) {
	for range n {
		got, err := e.ask(pool, "", options)
		e.Expect(err).NotTo(HaveOccurred())
		last = got
	}
	return last
}

func (e *suite) free(pool string, addrs ...string) {
	for _, a := range addrs {
		e.Expect(e.ReleaseAddress(pool, net.ParseIP(a))).To(Succeed(), "release %s", a)
	}
}

// gone matches the release of an unknown pool or address: over a wire it succeeds.
func gone() types.GomegaMatcher { return Or(Succeed(), failWith(ipamapi.ErrBadPool)) }
