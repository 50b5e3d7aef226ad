// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/blocks"
)

// annotationDomain begins the names of all labels and annotations of Cadastre.
const annotationDomain = v1alpha1.Group

// What is written to, and read from, the metadata of Node objects.
const (
	// IntentAnnotation holds the CIDRs that a node is about to get. It is written
	// before the patch of podCIDRs that gives them, and removed by that patch.
	// The next leader reads there what may still be under way. IPAMFromCluster
	// writes it always, because it also changes the cloud; RangeAllocator only
	// with a Fence. When an offer is withdrawn the value says so.
	IntentAnnotation = annotationDomain + "/node-cidr-intent"
	// SizeIPv4 and SizeIPv6 name the label, or annotation, by which a node asks
	// for a block of another prefix length than its range's. They are read only
	// with Settings.SizeLimits.
	SizeIPv4 = annotationDomain + "/node-cidr-mask-size-ipv4"
	// SizeIPv6 is SizeIPv4 for the other family.
	SizeIPv6 = annotationDomain + "/node-cidr-mask-size-ipv6"
)

func ownerOf(node *v1.Node) blocks.Owner { return blocks.NewOwner(node.Name, string(node.UID)) }

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

func hasPodCIDRs(node *v1.Node) bool { return len(podCIDRTexts(node)) > 0 }

// parseCIDR reads a CIDR as Kubernetes does: with leading zeros, which are
// decimal, and host bits, which do not count.
func parseCIDR(text string) (netip.Prefix, error) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR: %w", text, err)
	}
	return prefixOf(n)
}

// intentOf returns what a node is about to get, nothing if that was withdrawn.
func intentOf(node *v1.Node) (all []netip.Prefix) {
	for part := range strings.SplitSeq(node.Annotations[IntentAnnotation], ",") {
		if p, err := parseCIDR(part); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// intended reports whether the node says that it is about to get these blocks.
func intended(node *v1.Node, blocks []netip.Prefix) bool {
	return node.Annotations[IntentAnnotation] == joined(blocks)
}

func joined(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}
