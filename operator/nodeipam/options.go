// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/operator/blocks"
)

// The names of the flags; the first seven are upstream's.
const (
	FlagAllocate   = "allocate-node-cidrs"
	FlagType       = "cidr-allocator-type"
	FlagCluster    = "cluster-cidr"
	FlagService    = "service-cluster-ip-range"
	FlagMask       = "node-cidr-mask-size"
	FlagMaskIPv4   = "node-cidr-mask-size-ipv4"
	FlagMaskIPv6   = "node-cidr-mask-size-ipv6"
	FlagMoreRanges = "more-cluster-cidrs"
	FlagExclude    = "exclude-cidrs"
	FlagOrder      = "node-cidr-order"
	FlagCoolDown   = "node-cidr-cool-down"
	FlagSizeLimits = "node-cidr-mask-size-limits"
)

// Default prefix lengths of blocks.
const (
	defaultMaskIPv4 = 24
	defaultMaskIPv6 = 64
)

// Options are the flags, as they were given. The zero Options gives no CIDRs.
type Options struct {
	Allocate bool   // FlagAllocate
	Type     string // FlagType; RangeAllocator if empty
	Cluster  string // FlagCluster: one CIDR, or one of each family, with a comma
	Service  string // FlagService: likewise
	Mask     int    // FlagMask: with one family only; 0: not given, also below
	MaskIPv4 int
	MaskIPv6 int

	MoreRanges []string      // FlagMoreRanges: "CIDR" or "CIDR=BITS", of the families of Cluster
	Exclude    []string      // FlagExclude: CIDRs that no node gets
	Order      string        // FlagOrder: "next" (if empty) or "lowest"
	CoolDown   time.Duration // FlagCoolDown
	SizeLimits []string      // FlagSizeLimits: "CIDR=MIN-MAX", of a range; none: nodes cannot ask for a size
}

// Validate returns all errors of the options.
func (o Options) Validate() []error {
	_, _, errs := o.Settings()
	return errs
}

// Settings returns the settings for the options, and warnings for ignored options.
func (o Options) Settings() (s Settings, warnings []string, errs []error) {
	if !o.Allocate {
		return Settings{}, nil, nil
	}
	r := &reader{options: o}
	r.types()
	if r.settings.Type != CloudAllocatorType {
		r.cluster()
		r.more()
		r.limits()
	}
	r.service()
	r.policy()
	if len(r.errs) == 0 && r.settings.Type != CloudAllocatorType {
		if _, err := r.settings.newSet(); err != nil {
			r.fail(FlagCluster, o.Cluster, "%w: want a range outside of --%s and --%s", err, FlagService, FlagExclude)
		}
	}
	return r.settings, r.warnings, r.errs
}

// reader reads options into settings.
type reader struct {
	options  Options
	settings Settings
	warnings []string
	errs     []error
}

func (r *reader) fail(flag string, value any, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("--%s=%v: %w", flag, value, fmt.Errorf(format, args...)))
}

func (r *reader) types() {
	all := []CIDRAllocatorType{
		RangeAllocatorType,
		CloudAllocatorType,
		IPAMFromClusterAllocatorType,
		IPAMFromCloudAllocatorType,
	}
	r.settings.Type = CIDRAllocatorType(r.options.Type)
	if r.options.Type == "" {
		r.settings.Type = RangeAllocatorType
	}
	if !slices.Contains(all, r.settings.Type) {
		r.fail(FlagType, r.options.Type, "there is no such type: want one of %v", all)
	}
}

// cidrs reads a list with at most one CIDR of each family. It returns an error for an
// entry that is not a CIDR.
func (r *reader) cidrs(flag, value string) (all []netip.Prefix, _ error) {
	for text := range strings.SplitSeq(value, ",") {
		p, err := readCIDR(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	switch {
	case len(all) > 2:
		r.fail(flag, value, "there are %d CIDRs, and there can be one, or one of each family", len(all))
	case len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4():
		r.fail(flag, value, "the two CIDRs are of the same family")
	}
	return all, nil
}

// readCIDR reads a CIDR, and says what would be right.
func readCIDR(text string) (netip.Prefix, error) {
	p, err := parseCIDR(text)
	if err == nil {
		return p, nil
	}
	address, bits, found := strings.Cut(text, "/")
	addr, bad := netip.ParseAddr(address)
	_, notNumber := strconv.Atoi(bits)
	switch {
	case bad != nil:
		return p, fmt.Errorf("%q is not a CIDR: want address/prefix-length, such as 10.244.0.0/16", text)
	case !found:
		return p, fmt.Errorf(
			"%q is not a CIDR: it has no prefix length: want one such as %s/%d",
			text,
			text,
			usual(addr),
		)
	case notNumber != nil:
		return p, fmt.Errorf(
			"%q is not a CIDR: %q is not a prefix length: want one such as %s/%d",
			text,
			bits,
			address,
			usual(addr),
		)
	}
	return p, fmt.Errorf("%q is not a CIDR: the prefix length must be 0 to %d: want one such as %s/%d",
		text, addr.BitLen(), address, usual(addr))
}

// usual returns a usual prefix length of a cluster's range.
func usual(addr netip.Addr) int {
	if addr.Is4() {
		return 16
	}
	return 48
}

func (r *reader) cluster() {
	o := r.options
	if o.Cluster == "" {
		r.fail(FlagCluster, `""`, "it must be given with --%s", FlagAllocate)
		return
	}
	all, err := r.cidrs(FlagCluster, o.Cluster)
	if err != nil {
		r.fail(FlagCluster, o.Cluster, "%w", err)
		return
	}
	r.masks(all)
	for pool, p := range all {
		bits := r.maskOf(p, len(all) > 1)
		r.checkMask(p, bits)
		r.settings.Ranges = append(r.settings.Ranges, blocks.Range{Prefix: p, Bits: bits, Pool: pool})
	}
}

// masks finds sizes that do not go with the families.
func (r *reader) masks(all []netip.Prefix) {
	o := r.options
	if o.Mask != 0 && len(all) > 1 {
		r.fail(FlagMask, o.Mask, "it cannot be used with two families: use --%s and --%s", FlagMaskIPv4, FlagMaskIPv6)
	}
	if o.Mask != 0 && (o.MaskIPv4 != 0 || o.MaskIPv6 != 0) {
		r.fail(FlagMask, o.Mask, "it cannot be used together with --%s or --%s", FlagMaskIPv4, FlagMaskIPv6)
	}
	if len(all) > 1 {
		return
	}
	if all[0].Addr().Is4() && o.MaskIPv6 != 0 {
		r.fail(FlagMaskIPv6, o.MaskIPv6, "the cluster CIDR %s is of IPv4", all[0])
	}
	if all[0].Addr().Is6() && o.MaskIPv4 != 0 {
		r.fail(FlagMaskIPv4, o.MaskIPv4, "the cluster CIDR %s is of IPv6", all[0])
	}
}

func (r *reader) maskOf(p netip.Prefix, dual bool) int {
	o := r.options
	own, standard := o.MaskIPv6, defaultMaskIPv6
	if p.Addr().Is4() {
		own, standard = o.MaskIPv4, defaultMaskIPv4
	}
	switch {
	case own != 0:
		return own
	case o.Mask != 0 && !dual:
		return o.Mask
	}
	return standard
}

func (r *reader) checkMask(p netip.Prefix, bits int) {
	flag := FlagMaskIPv6
	if p.Addr().Is4() {
		flag = FlagMaskIPv4
	}
	if r.options.Mask == bits {
		flag = FlagMask
	}
	if p.Bits() > bits {
		r.fail(
			flag,
			bits,
			"the mask of the cluster CIDR %s must be less than or equal to that of a node: want %d to %d",
			p,
			p.Bits(),
			p.Addr().BitLen(),
		)
	}
	if width := p.Addr().BitLen(); bits > width {
		r.fail(flag, bits, "addresses of %s have %d bits: want %d to %d", p, width, p.Bits(), width)
	}
}

// more reads the ranges beside the first of each family.
func (r *reader) more() {
	for _, text := range r.options.MoreRanges {
		cidr, mask, sized := strings.Cut(text, "=")
		p, err := readCIDR(cidr)
		if err != nil {
			r.fail(FlagMoreRanges, text, "%v", err)
			continue
		}
		i := slices.IndexFunc(
			r.settings.Ranges,
			func(x blocks.Range) bool { return x.Prefix.Addr().Is4() == p.Addr().Is4() },
		)
		if i < 0 {
			r.fail(FlagMoreRanges, text, "--%s has no CIDR of this family", FlagCluster)
			continue
		}
		bits := r.settings.Ranges[i].Bits
		if sized {
			if bits, err = strconv.Atoi(mask); err != nil {
				r.fail(FlagMoreRanges, text, "%q is not a prefix length", mask)
				continue
			}
		}
		if bits < p.Bits() || bits > p.Addr().BitLen() {
			r.fail(FlagMoreRanges, text, "it cannot be cut in /%d: want %s=BITS with BITS from %d to %d",
				bits, p, p.Bits(), p.Addr().BitLen())
			continue
		}
		if other := r.overlapping(p); other.IsValid() {
			r.fail(FlagMoreRanges, text, "it overlaps %s: want a range outside of it", other)
			continue
		}
		r.settings.Ranges = append(
			r.settings.Ranges,
			blocks.Range{Prefix: p, Bits: bits, Pool: r.settings.Ranges[i].Pool},
		)
	}
}

// overlapping returns the range that overlaps a prefix, the zero Prefix if none does.
func (r *reader) overlapping(p netip.Prefix) netip.Prefix {
	for _, other := range r.settings.Ranges {
		if other.Prefix.Overlaps(p) {
			return other.Prefix
		}
	}
	return netip.Prefix{}
}

// limits reads which sizes of blocks nodes may ask for.
func (r *reader) limits() {
	for _, text := range r.options.SizeLimits {
		var l SizeLimit
		cidr, span, _ := strings.Cut(text, "=")
		low, high, _ := strings.Cut(span, "-")
		var err [3]error
		l.Range, err[0] = parseCIDR(cidr)
		l.Min, err[1] = strconv.Atoi(low)
		l.Max, err[2] = strconv.Atoi(high)
		if errors.Join(err[:]...) != nil {
			r.fail(FlagSizeLimits, text, "want CIDR=MIN-MAX, such as 10.0.0.0/16=22-26")
			continue
		}
		r.settings.SizeLimits = append(r.settings.SizeLimits, l)
	}
	if len(r.errs) > 0 { // the ranges are not all there
		return
	}
	if err := r.settings.checkLimits(); err != nil {
		r.fail(FlagSizeLimits, strings.Join(r.options.SizeLimits, ","), "%w", err)
	}
}

func (r *reader) service() {
	o := r.options
	if o.Service != "" {
		all, err := r.cidrs(FlagService, o.Service)
		if err != nil {
			r.warnings = append(
				r.warnings,
				fmt.Sprintf("--%s=%s: the flag is left out: %v", FlagService, o.Service, err),
			)
		}
		r.settings.Reserved = all
	}
	for _, text := range o.Exclude {
		p, err := readCIDR(text)
		if err != nil {
			r.fail(FlagExclude, text, "%v", err)
			continue
		}
		r.settings.Reserved = append(r.settings.Reserved, p)
	}
}

func (r *reader) policy() {
	switch r.options.Order {
	case "", "next":
	case "lowest":
		r.settings.Policy.Order = blocks.Lowest
	default:
		r.fail(FlagOrder, r.options.Order, `it must be "next" or "lowest"`)
	}
	if r.options.CoolDown < 0 {
		r.fail(FlagCoolDown, r.options.CoolDown, "it must not be negative")
	}
	r.settings.Policy.CoolDown = r.options.CoolDown
}
