// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// Three ranges, of two families: a node gets a block of IPv4 and one of IPv6.
func ExampleNewAllocator() {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}})
	a, err := nodeipam.NewAllocator(nodeipam.Deps{Client: client, Log: slog.New(slog.DiscardHandler)}, nodeipam.Settings{
		Ranges: []blocks.Range{
			{Prefix: netip.MustParsePrefix("10.0.0.0/16"), Bits: 24},
			{Prefix: netip.MustParsePrefix("10.8.0.0/16"), Bits: 25},
			{Prefix: netip.MustParsePrefix("fd00::/48"), Bits: 64, Pool: 1},
		},
		Reserved: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/20")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A program calls Run; one node can also be given its CIDRs by hand.
	nodes := client.CoreV1().Nodes()
	node, _ := nodes.Get(context.Background(), "a", metav1.GetOptions{})
	fmt.Println(a.AllocateOrOccupyCIDR(node))
	node, _ = nodes.Get(context.Background(), "a", metav1.GetOptions{})
	fmt.Println(node.Spec.PodCIDRs)
	fmt.Println(a.DrainRange(netip.MustParsePrefix("10.0.0.0/16")))
	for _, r := range a.Status().Book.Ranges {
		fmt.Println(r.Prefix, "draining:", r.Draining, "held:", r.Blocks)
	}
	// Output:
	// <nil>
	// [10.0.16.0/24 fd00::/64]
	// <nil>
	// 10.0.0.0/16 draining: true held: 1
	// 10.8.0.0/16 draining: false held: 0
	// fd00::/48 draining: false held: 1
}

// The cloud says which CIDRs a node has.
func ExampleNewCloudCIDRAllocator() {
	client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, Spec: v1.NodeSpec{ProviderID: "mem://1"}})
	cloud := memcloud.New(memcloud.Config{})
	cloud.AddMachine("a", "mem://1", netip.MustParsePrefix("10.7.3.0/24"))
	a, err := nodeipam.NewAllocator(nodeipam.Deps{Client: client, Cloud: cloud, Log: slog.New(slog.DiscardHandler)},
		nodeipam.Settings{Type: nodeipam.CloudAllocatorType})
	if err != nil {
		fmt.Println(err)
		return
	}
	nodes := client.CoreV1().Nodes()
	node, _ := nodes.Get(context.Background(), "a", metav1.GetOptions{})
	fmt.Println(a.AllocateOrOccupyCIDR(node))
	node, _ = nodes.Get(context.Background(), "a", metav1.GetOptions{})
	fmt.Println(node.Spec.PodCIDR, node.Status.Conditions[0].Type, node.Status.Conditions[0].Status)
	// Output:
	// <nil>
	// 10.7.3.0/24 NetworkUnavailable False
}

func ExampleOptions_Settings() {
	o := nodeipam.Options{Allocate: true, Cluster: "10.0.0.0/16,fd00::/40", Service: "10.0.0.0/20", MaskIPv4: 25}
	settings, warnings, errs := o.Settings()
	fmt.Println(settings.Ranges, settings.Reserved, warnings, errs)
	o.Mask = 24
	for _, err := range o.Validate() {
		fmt.Println(err)
	}
	// Output:
	// [{10.0.0.0/16 25 0} {fd00::/40 64 1}] [10.0.0.0/20] [] []
	// --node-cidr-mask-size=24: it cannot be used with two families: use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6
	// --node-cidr-mask-size=24: it cannot be used together with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6
}
