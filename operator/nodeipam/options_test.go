// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/blocks"
)

// TestOptions is the table of upstream's flags, and of ours.
func TestOptions(t *testing.T) {
	const v4, v6 = "10.0.0.0/21", "2000::/48"
	for _, x := range []struct {
		what   string
		o      Options
		wrong  string // of the one error; empty: all is well
		ranges []string
	}{
		{"IPv4", Options{Cluster: v4}, "", []string{"10.0.0.0/21 24 0"}},
		{"IPv6", Options{Cluster: v6}, "", []string{"2000::/48 64 0"}},
		{"a mask", Options{Cluster: v4, Mask: 28}, "", []string{"10.0.0.0/21 28 0"}},
		{"one's own mask", Options{Cluster: v4, MaskIPv4: 25}, "", []string{"10.0.0.0/21 25 0"}},
		{"both", Options{Cluster: v4 + "," + v6, MaskIPv6: 80}, "", []string{"10.0.0.0/21 24 0", "2000::/48 80 1"}},
		{"both, IPv6 first", Options{Cluster: v6 + ", " + v4, MaskIPv4: 26}, "", []string{"2000::/48 64 0", "10.0.0.0/21 26 1"}},
		{"host bits and zeros", Options{Cluster: "010.000.0.7/21"}, "", []string{"10.0.0.0/21 24 0"}},
		{"more than 16 bits", Options{Cluster: "2000::/32", Service: "2000::/108"}, "", []string{"2000::/32 64 0"}},
		{"one block", Options{Cluster: "10.0.0.0/24"}, "", []string{"10.0.0.0/24 24 0"}},
		{"services", Options{Cluster: v4, Service: "10.1.0.0/16"}, "", []string{"10.0.0.0/21 24 0"}},
		{"services, both", Options{Cluster: v4 + "," + v6, Service: "10.1.0.0/16,3000::/112"}, "", []string{"10.0.0.0/21 24 0", "2000::/48 64 1"}},
		{"more ranges", Options{Cluster: v4 + "," + v6, MoreRanges: []string{"10.8.0.0/16", "fd00::/40=56"}, Exclude: []string{"10.8.0.0/24"}, Order: "lowest", CoolDown: time.Hour}, "",
			[]string{"10.0.0.0/21 24 0", "2000::/48 64 1", "10.8.0.0/16 24 0", "fd00::/40 56 1"}},

		{"none", Options{}, `--cluster-cidr="": it must be given with --allocate-node-cidrs`, nil},
		{"unreadable", Options{Cluster: "10.0.0.0/33"}, `--cluster-cidr=10.0.0.0/33: "10.0.0.0/33" is not a CIDR: the prefix length must be 0 to 32: want one such as 10.0.0.0/16`, nil},
		{"one without a length", Options{Cluster: "10.0.0.0"}, `"10.0.0.0" is not a CIDR: it has no prefix length: want one such as 10.0.0.0/16`, nil},
		{"a length of letters", Options{Cluster: "2000::/x"}, `"x" is not a prefix length: want one such as 2000::/48`, nil},
		{"the second is a name", Options{Cluster: v4 + ",pods"}, `--cluster-cidr=10.0.0.0/21,pods: "pods" is not a CIDR: want address/prefix-length`, nil},
		{"three", Options{Cluster: "10.0.0.0/16,2000::/48,10.1.0.0/16"}, "there are 3 CIDRs, and there can be one, or one of each family", nil},
		{"two of IPv4", Options{Cluster: "10.0.0.0/16,10.1.0.0/16"}, "the two CIDRs are of the same family", nil},
		{"two of IPv6", Options{Cluster: "2000::/48,2001::/48"}, "the two CIDRs are of the same family", nil},
		{"services of one family", Options{Cluster: v4, Service: "10.1.0.0/16,10.2.0.0/16"}, "--service-cluster-ip-range=10.1.0.0/16,10.2.0.0/16: the two CIDRs are of the same family", nil},
		{"three services", Options{Cluster: v4, Service: "10.1.0.0/16,3000::/112,10.2.0.0/16"}, "there are 3 CIDRs", nil},
		{"all is service", Options{Cluster: "10.0.0.0/16", Service: "10.0.0.0/8"}, "no CIDRs remaining: all of it is reserved", nil},
		{"all is excluded", Options{Cluster: "10.0.0.0/16", Exclude: []string{"10.0.0.0/8"}}, "no CIDRs remaining: all of it is reserved", nil},
		{"a mask for both", Options{Cluster: v4 + "," + v6, Mask: 24}, "--node-cidr-mask-size=24: it cannot be used with two families", nil},
		{"masks that contradict", Options{Cluster: v4, Mask: 24, MaskIPv4: 24}, "--node-cidr-mask-size=24: it cannot be used together with", nil},
		{"the other family's mask", Options{Cluster: v4, MaskIPv6: 64}, "--node-cidr-mask-size-ipv6=64: the cluster CIDR 10.0.0.0/21 is of IPv4", nil},
		{"and the other's", Options{Cluster: v6, MaskIPv4: 24}, "--node-cidr-mask-size-ipv4=24: the cluster CIDR 2000::/48 is of IPv6", nil},
		{"a block larger than all", Options{Cluster: "10.0.0.0/26"}, "--node-cidr-mask-size-ipv4=24: the mask of the cluster CIDR 10.0.0.0/26 must be less than or equal to that of a node: want 26 to 32", nil},
		{"and named", Options{Cluster: "10.0.0.0/26", Mask: 25}, "--node-cidr-mask-size=25: the mask", nil},
		{"IPv6 of two", Options{Cluster: v4 + ",2000::/64", MaskIPv6: 48}, "--node-cidr-mask-size-ipv6=48: the mask", nil},
		{"more bits than there are", Options{Cluster: v4, Mask: 33}, "--node-cidr-mask-size=33: addresses of 10.0.0.0/21 have 32 bits: want 21 to 32", nil},
		{"fewer than none", Options{Cluster: v4, Mask: -1}, "--node-cidr-mask-size=-1: the mask", nil},
		{"limits", Options{Cluster: v4 + "," + v6, SizeLimits: []string{"10.0.0.0/21=22-26", "2000::/48=64-80"}}, "", []string{"10.0.0.0/21 24 0", "2000::/48 64 1"}},
		{"limits of no range", Options{Cluster: v4, SizeLimits: []string{"10.8.0.0/16=22-26"}}, "--node-cidr-mask-size-limits=10.8.0.0/16=22-26: size limit 10.8.0.0/16=22-26: 10.8.0.0/16 is not a range", nil},
		{"limits that are none", Options{Cluster: v4, SizeLimits: []string{"10.0.0.0/21"}}, "--node-cidr-mask-size-limits=10.0.0.0/21: want CIDR=MIN-MAX, such as 10.0.0.0/16=22-26", nil},
		{"limits wider than the range", Options{Cluster: v4, SizeLimits: []string{"10.0.0.0/21=20-26"}}, "want MIN from 21 to 24, and MAX from 24 to 32: nodes have /24 by default", nil},
		{"a type that is none", Options{Cluster: v4, Type: "Other"}, "--cidr-allocator-type=Other: there is no such type: want one of [RangeAllocator CloudAllocator", nil},
		{"an order that is none", Options{Cluster: v4, Order: "random"}, `--node-cidr-order=random: it must be "next" or "lowest"`, nil},
		{"a negative time", Options{Cluster: v4, CoolDown: -1}, "--node-cidr-cool-down=-1ns: it must not be negative", nil},
		{"an exclusion that is none", Options{Cluster: v4, Exclude: []string{"10.0.0.0"}}, "--exclude-cidrs=10.0.0.0", nil},
		{"a range that is none", Options{Cluster: v4, MoreRanges: []string{"x"}}, "--more-cluster-cidrs=x", nil},
		{"a range of another family", Options{Cluster: v4, MoreRanges: []string{"fd00::/48"}}, "--cluster-cidr has no CIDR of this family", nil},
		{"a range with no size", Options{Cluster: v4, MoreRanges: []string{"10.8.0.0/16=x"}}, `"x" is not a prefix length`, nil},
		{"a range too small", Options{Cluster: v4, MoreRanges: []string{"10.8.0.0/16=15"}}, "it cannot be cut in /15", nil},
		{"ranges that overlap", Options{Cluster: v4, MoreRanges: []string{"10.0.7.0/24"}}, "--more-cluster-cidrs=10.0.7.0/24: it overlaps 10.0.0.0/21: want a range outside of it", nil},
	} {
		t.Run(x.what, func(t *testing.T) {
			g := NewWithT(t)
			x.o.Allocate = true
			settings, warnings, errs := x.o.Settings()
			g.Expect(x.o.Validate()).To(HaveLen(len(errs)))
			g.Expect(warnings).To(BeEmpty())
			if x.wrong != "" {
				g.Expect(errs).To(ConsistOf(MatchError(ContainSubstring(x.wrong))))
				return
			}
			g.Expect(errs).To(BeEmpty())
			var have []string
			for _, r := range settings.Ranges {
				have = append(have, fmt.Sprint(r.Prefix, r.Bits, r.Pool))
			}
			g.Expect(have).To(Equal(x.ranges))
			_, err := NewAllocator(Deps{Log: quiet()}, settings)
			g.Expect(err).NotTo(HaveOccurred(), "what is valid can be made")
		})
	}
}

func TestOptionsThatAreNotLookedAt(t *testing.T) {
	g := NewWithT(t)
	settings, warnings, errs := Options{Type: "Other", Cluster: "nonsense"}.Settings()
	g.Expect(errors.Join(errs...)).To(Succeed(), "nothing is allocated")
	g.Expect(warnings).To(BeEmpty())
	g.Expect(settings.Ranges).To(BeEmpty())

	_, _, errs = Options{Allocate: true, Type: "CloudAllocator", Cluster: "nonsense"}.Settings()
	g.Expect(errs).To(BeEmpty(), "the cloud says what is given")
	for _, kind := range []string{"", "RangeAllocator", "IPAMFromCluster", "IPAMFromCloud"} {
		g.Expect(Options{Allocate: true, Type: kind, Cluster: "nonsense"}.Validate()).To(HaveLen(1))
		g.Expect(Options{Allocate: true, Type: kind, Cluster: "10.0.0.0/16"}.Validate()).To(BeEmpty())
	}

	settings, warnings, errs = Options{Allocate: true, Cluster: "10.0.0.0/16", Service: "10.0.0.0/20,nonsense", Exclude: []string{"10.0.1.0/24"}}.Settings()
	g.Expect(errs).To(BeEmpty())
	g.Expect(warnings).To(ConsistOf(`--service-cluster-ip-range=10.0.0.0/20,nonsense: the flag is left out: "nonsense" is not a CIDR: want address/prefix-length, such as 10.244.0.0/16`))
	g.Expect(settings.Reserved).To(Equal(prefixes("10.0.1.0/24")))

	settings, _, _ = Options{Allocate: true, Cluster: "10.0.0.0/16", Service: "10.0.0.0/20", Order: "lowest", CoolDown: time.Minute}.Settings()
	g.Expect(settings.Reserved).To(Equal(prefixes("10.0.0.0/20")))
	g.Expect(settings.Policy).To(Equal(blocks.Policy{Order: blocks.Lowest, CoolDown: time.Minute}))
}

// A list with several mistakes tells them all.
func TestOptionsTellAllThatIsWrong(t *testing.T) {
	o := Options{Allocate: true, Type: "x", Cluster: "10.0.0.0/26", Exclude: []string{"y"}, Order: "z", CoolDown: -1}
	NewWithT(t).Expect(o.Validate()).To(HaveLen(5))
}
