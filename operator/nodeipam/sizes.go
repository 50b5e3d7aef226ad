// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// fits reports whether nodes may have blocks of this length of a range.
func (s *Settings) fits(r blocks.Range, bits int) bool {
	return bits == r.Bits || slices.ContainsFunc(s.SizeLimits, func(l SizeLimit) bool {
		return l.Range.Masked() == r.Prefix && l.Min <= bits && bits <= l.Max
	})
}

// limitsOf returns the limits of the ranges of one family.
func (s *Settings) limitsOf(is4 bool) (some []SizeLimit) {
	for _, l := range s.SizeLimits {
		if l.Range.Addr().Is4() == is4 {
			some = append(some, l)
		}
	}
	return some
}

// sizesOf reads the wanted block sizes of a node. pools are a range of each pool.
func (s *Settings) sizesOf(node *v1.Node, pools []netip.Prefix) ([]int, error) {
	sizes := make([]int, len(pools))
	for i, p := range pools {
		limits := s.limitsOf(p.Addr().Is4())
		name, text := wantedSize(node, p.Addr().Is4())
		if text == "" || len(limits) == 0 {
			continue
		}
		bits, err := strconv.Atoi(text)
		if err != nil ||
			!slices.ContainsFunc(limits, func(l SizeLimit) bool { return l.Min <= bits && bits <= l.Max }) {
			return nil, fmt.Errorf(
				"%w: node %q asks for %s=%q: want a prefix length within --%s %s",
				blocks.ErrSize,
				node.Name,
				name,
				text,
				FlagSizeLimits,
				texts(limits),
			)
		}
		sizes[i] = bits
	}
	return sizes, nil
}

// wantedSize returns the label or annotation by which a node asks for a block
// size, and its value, "" if it does not ask.
func wantedSize(node *v1.Node, is4 bool) (name, text string) {
	name = SizeIPv6
	if is4 {
		name = SizeIPv4
	}
	if text = node.Labels[name]; text == "" {
		text = node.Annotations[name]
	}
	return name, text
}

// unreadSize returns a message if a node has asked for a block size, and sizes are
// not read.
func (s *Settings) unreadSize(node *v1.Node, pools []netip.Prefix) string {
	for _, p := range pools {
		if name, text := wantedSize(node, p.Addr().Is4()); text != "" && len(s.limitsOf(p.Addr().Is4())) == 0 {
			return fmt.Sprintf(
				"%s=%q is not read: the operator has no --%s for this family, so the node has blocks of the default length",
				name,
				text,
				FlagSizeLimits,
			)
		}
	}
	return ""
}

// checkLimits returns an error unless every limit is one of a range, and allows
// the range's own length.
func (s *Settings) checkLimits() error {
	for i, l := range s.SizeLimits {
		r := slices.IndexFunc(s.Ranges, func(r blocks.Range) bool { return r.Prefix.Masked() == l.Range.Masked() })
		switch {
		case r < 0:
			return fmt.Errorf("size limit %s: %s is not a range of this cluster: want one of %v", l, l.Range, s.Ranges)
		case slices.ContainsFunc(s.SizeLimits[:i], func(m SizeLimit) bool { return m.Range.Masked() == l.Range.Masked() }):
			return fmt.Errorf("size limit %s: the range has another limit: want one for each range", l)
		case l.Min < l.Range.Bits() || l.Min > s.Ranges[r].Bits || l.Max < s.Ranges[r].Bits || l.Max > l.Range.Addr().BitLen():
			return fmt.Errorf(
				"size limit %s: want MIN from %d to %d, and MAX from %d to %d: nodes have /%d by default",
				l,
				l.Range.Bits(),
				s.Ranges[r].Bits,
				s.Ranges[r].Bits,
				l.Range.Addr().BitLen(),
				s.Ranges[r].Bits,
			)
		}
	}
	return nil
}

func texts(limits []SizeLimit) string {
	all := make([]string, len(limits))
	for i, l := range limits {
		all[i] = l.String()
	}
	return strings.Join(all, ",")
}
