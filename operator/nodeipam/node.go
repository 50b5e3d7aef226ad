// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/cadastre/cadastre/operator/nodeipam/cidrset"
)

// What is written to, and read from, the metadata of Node objects.
const (
	// TermAnnotation is written when a leader begins to a node that has no
	// podCIDRs, so that nothing that an earlier leader has sent can reach it.
	TermAnnotation = "nodeipam.cadastre.io/term"
	// IntentAnnotation is the CIDRs that IPAMFromCluster is about to give to a
	// node's machine: what survives a crash between cloud and cluster.
	IntentAnnotation = "nodeipam.cadastre.io/intent"
	// SizeIPv4 and SizeIPv6 are labels, or annotations, by which a node wants
	// blocks of another prefix length than its range's.
	SizeIPv4 = "nodeipam.cadastre.io/mask-size-ipv4"
	// SizeIPv6 is SizeIPv4 for the other family.
	SizeIPv6 = "nodeipam.cadastre.io/mask-size-ipv6"
)

func ownerOf(node *v1.Node) cidrset.Owner { return cidrset.NewOwner(node.Name, string(node.UID)) }

// podCIDRsOf are the CIDRs of a node, those that can be read, and why others cannot.
func podCIDRsOf(node *v1.Node) (all []netip.Prefix, err error) {
	for _, text := range podCIDRTexts(node) {
		p, e := parseCIDR(text)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("podCIDR of node %q: %w", node.Name, e))
			continue
		}
		all = append(all, p)
	}
	return all, err
}

func podCIDRTexts(node *v1.Node) []string {
	if len(node.Spec.PodCIDRs) > 0 {
		return node.Spec.PodCIDRs
	}
	if node.Spec.PodCIDR != "" {
		return []string{node.Spec.PodCIDR}
	}
	return nil
}

func numbered(node *v1.Node) bool { return len(podCIDRTexts(node)) > 0 }

// parseCIDR reads a CIDR as Kubernetes does: with leading zeros, which are
// decimal, and host bits, which do not count.
func parseCIDR(text string) (netip.Prefix, error) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no CIDR: %w", text, err)
	}
	return prefixOf(n)
}

// sizesOf reads the wanted block sizes of a node. pools are a range of each pool.
func sizesOf(node *v1.Node, pools []netip.Prefix) ([]int, error) {
	sizes := make([]int, len(pools))
	for i, p := range pools {
		name := SizeIPv6
		if p.Addr().Is4() {
			name = SizeIPv4
		}
		text := node.Labels[name]
		if text == "" {
			text = node.Annotations[name]
		}
		if text == "" {
			continue
		}
		bits, err := strconv.Atoi(text)
		if err != nil || bits < 1 || bits > p.Addr().BitLen() {
			return nil, fmt.Errorf("%w: node %q: %s is %q, not a prefix length of 1 to %d", cidrset.ErrSize, node.Name, name, text, p.Addr().BitLen())
		}
		sizes[i] = bits
	}
	return sizes, nil
}

// intentOf is what a node was about to get, empty if nothing or unreadable.
func intentOf(node *v1.Node) (all []netip.Prefix) {
	for text := range strings.SplitSeq(node.Annotations[IntentAnnotation], ",") {
		if p, err := parseCIDR(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func joined(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}
