// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/cadastre/cadastre/cloud/budget"
	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest"
	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

// The properties of the proxy before moto.
const (
	bucket = 120 // requests at once
	refill = 20  // requests in a second
)

// TestProviderKeepsTheContract runs the suite of all providers against moto, through a proxy
// that throttles, shows old readings and loses answers. The comment of package mototest has
// moto's deviations from EC2. Prefixes are a model of mototest.
func TestProviderKeepsTheContract(t *testing.T) {
	server := mototest.Start(t)
	stale := staleFor(t)
	for _, c := range []struct {
		name     string
		prefixes bool
		unit     int
	}{{"addresses", false, 1}, {"prefixes", true, 16}} {
		t.Run(c.name, func(t *testing.T) {
			worlds := &worlds{T: t, server: server, prefixes: c.prefixes, stale: stale}
			netresourcetest.Run(t, netresourcetest.Provider{
				New:      worlds.make,
				Unit:     c.unit,
				Limits:   netresourcetest.Limits{Interfaces: 3, Units: 9}, // m5.large
				Lag:      lag(stale),
				Deadline: 5 * time.Second,
				Parallel: true,
				Slow:     true,
			})
		})
	}
}

// staleFor returns the time for which the proxy shows old readings.
func staleFor(t *testing.T) time.Duration {
	if effort.Level(t) >= effort.Nightly {
		return 2 * time.Second
	}
	return time.Second
}

// lag returns the time after which a reading shows all changes, with that of the request.
func lag(stale time.Duration) time.Duration { return stale + time.Second/2 }

// worlds makes worlds on one server.
type worlds struct {
	*testing.T
	server   *mototest.Server
	prefixes bool
	stale    time.Duration // readings may be so old
	made     atomic.Int32
}

// world is a VPC with one subnet, behind a proxy.
type world struct {
	*worlds
	cluster, vpc, subnet string
	url                  string // of the proxy
	dual                 bool
}

func (w *worlds) make(_ context.Context, s netresourcetest.Shape) (*netresourcetest.World, error) {
	proxy, url, err := faultproxy.Start(faultproxy.Config{
		Target:  w.server.URL,
		Dialect: faultproxy.EC2(),
		Bucket:  bucket,
		Refill:  refill,
		Stale:   w.stale,
	})
	if err != nil {
		return nil, err
	}
	vpc, range6 := w.server.VPC(w, "10.9.0.0/16", true)
	cidr := "10.9.16.0/20"
	switch {
	case s.Units > 0 && w.prefixes:
		cidr = "10.9.16.0/24"
	case s.Units > 0:
		cidr = "10.9.16.0/28"
	}
	x := &world{
		worlds:  w,
		cluster: fmt.Sprintf("%s-%d", w.Name(), w.made.Add(1)),
		vpc:     vpc,
		subnet:  w.server.Subnet(w, vpc, cidr, part6(range6), nil),
		url:     url,
		dual:    s.DualStack,
	}
	return &netresourcetest.World{
		Provider: x.provider,
		Machine:  x.machine,
		Plan:     func(p netresourcetest.Plan) { proxy.SetPlan(p) },
		Truth:    x.truth,
		Close:    proxy.Close,
	}, nil
}

// provider returns a provider as a process of its own would have it, with a budget of its own.
func (w *world) provider() (netresource.Provider, error) {
	limit := budget.New(budget.Config{Cloud: ec2.Name, QPS: refill, Burst: bucket / 2})
	c, err := ec2.New(context.Background(), ec2.Config{
		Cluster:       w.cluster,
		Region:        mototest.Region,
		Endpoint:      w.url,
		Credentials:   mototest.Credentials(),
		Transport:     limit.Transport(nil, operationOf),
		DetachTimeout: 20 * time.Second,
		FirstPause:    100 * time.Millisecond,
		Log:           slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return cloudpool.New(cloudpool.Config{
		Cloud:       c,
		IPv4:        true,
		IPv6:        w.dual,
		Prefixes:    w.prefixes,
		Consistency: lag(w.stale),
		OrphanAge:   5 * time.Second,
		Log:         slog.New(slog.DiscardHandler),
	}), nil
}

func (w *world) machine(_ context.Context, node string) (string, error) {
	return w.server.Machine(w, w.subnet, "m5.large", map[string]string{
		"Name": node, "kubernetes.io/cluster/" + w.cluster: "owned",
	}), nil
}

// truth reads the VPC without the proxy.
func (w *world) truth(ctx context.Context) (t netresourcetest.Truth, err error) {
	pages := awsec2.NewDescribeNetworkInterfacesPaginator(w.server.Client(), &awsec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{{Name: aws.String("vpc-id"), Values: []string{w.vpc}}},
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return t, err
		}
		for _, n := range page.NetworkInterfaces {
			if n.Attachment == nil {
				t.Orphans = append(t.Orphans, *n.NetworkInterfaceId)
				continue
			}
			i := netresourcetest.Interface{ID: *n.NetworkInterfaceId, Instance: *n.Attachment.InstanceId}
			for _, text := range mototest.Addresses(n) {
				if p, err := netip.ParsePrefix(text); err == nil {
					i.Blocks = append(i.Blocks, p)
				} else if a, err := netip.ParseAddr(text); err == nil {
					i.Blocks = append(i.Blocks, netip.PrefixFrom(a, a.BitLen()))
				}
			}
			t.Interfaces = append(t.Interfaces, i)
		}
	}
	return t, nil
}
