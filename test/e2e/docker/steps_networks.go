// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// driver is the name that the engine knows the agent by: its socket's.
const driver = "cadastre"

// network makes a network.
func (t *scenario) network(ctx context.Context, name string, args ...string) error {
	_, err := t.engine.do(
		ctx,
		slices.Concat([]string{"network", "create", "--ipam-driver", driver}, args, []string{name})...)
	return err
}

// container runs a container that waits.
func (t *scenario) container(ctx context.Context, name, network string, args ...string) error {
	_, err := t.engine.do(
		ctx,
		slices.Concat(
			[]string{"run", "--detach", "--name", name, "--network", network},
			args,
			[]string{image, "wait"},
		)...)
	return err
}

// way is a way of asking for a network, and what the first container in it gets.
type way struct {
	name string
	args []string
	run  []string
	want []string
}

// ways are all that the command line has.
func ways() []way {
	return []way{
		{name: "plain", want: []string{"172.18.0.2/16"}}, // 172.17 is the engine's own bridge's
		{name: "subnet", args: []string{"--subnet", "10.50.0.0/24"}, want: []string{"10.50.0.2/24"}},
		{
			name: "range",
			args: []string{"--subnet", "10.51.0.0/24", "--ip-range", "10.51.0.128/25"},
			want: []string{"10.51.0.129/24"},
		},
		{
			name: "gateway",
			args: []string{"--subnet", "10.52.0.0/24", "--gateway", "10.52.0.200"},
			want: []string{"10.52.0.1/24"},
		},
		{
			name: "aux",
			args: []string{"--subnet", "10.53.0.0/24", "--aux-address", "a=10.53.0.2", "--aux-address", "b=10.53.0.3"},
			want: []string{"10.53.0.4/24"},
		},
		{
			name: "all",
			args: []string{
				"--subnet",
				"10.54.0.0/16",
				"--ip-range",
				"10.54.7.0/24",
				"--gateway",
				"10.54.7.1",
				"--aux-address",
				"a=10.54.7.0",
				"--aux-address",
				"b=10.54.9.9",
			},
			want: []string{"10.54.7.2/16"},
		},
		{name: "six", args: []string{"--ipv6"}, want: []string{"172.19.0.2/16", "fd"}},
		{
			name: "sixes",
			args: []string{"--ipv6", "--subnet", "10.55.0.0/24", "--subnet", "fd00:55::/64", "--gateway", "fd00:55::9"},
			want: []string{"10.55.0.2/24", "fd00:55::1/64"},
		},
		{name: "small", args: []string{"--subnet", "10.56.0.0/30"}, want: []string{"10.56.0.2/30"}},
		{
			name: "ip",
			args: []string{"--subnet", "10.57.0.0/24"},
			run:  []string{"--ip", "10.57.0.77"},
			want: []string{"10.57.0.77/24"},
		},
		{
			name: "ip6",
			args: []string{"--ipv6", "--subnet", "10.58.0.0/24", "--subnet", "fd00:58::/64"},
			run:  []string{"--ip", "10.58.0.7", "--ip6", "fd00:58::77"},
			want: []string{"10.58.0.7/24", "fd00:58::77/64"},
		},
	}
}

// everyWay asks for networks in every way.
func (t *scenario) everyWay(ctx context.Context) error {
	t.Step(
		"Make networks with and without --subnet, --ip-range, --gateway, --aux-address, --ipv6, and run a container in each; two with --ip.",
	)
	for _, w := range ways() {
		if err := t.network(ctx, w.name, w.args...); err != nil {
			return err
		}
	}
	if err := together(ctx, len(ways()), func(ctx context.Context, i int) error {
		w := ways()[i]
		return t.container(ctx, "c-"+w.name, w.name, w.run...)
	}); err != nil {
		return err
	}
	s, err := t.expect(ctx)
	if err != nil {
		return err
	}
	for _, w := range ways() {
		has := slices.Sorted(slices.Values(s.inside["c-"+w.name]))
		t.Say("%-8s %-95s %s", w.name, strings.Join(slices.Concat(w.args, w.run), " "), strings.Join(has, " "))
		if !slices.EqualFunc(has, w.want, strings.HasPrefix) {
			return fmt.Errorf("the container in %s has %s, not %s", w.name, has, w.want)
		}
	}
	return nil
}

// refusals makes requests that must fail, and leave nothing behind.
func (t *scenario) refusals(ctx context.Context) error {
	t.Step("Ask for what must be refused: each leaves the ledger as it was.")
	before, _, err := t.Leases(ctx)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		args []string
		why  string
	}{
		{[]string{"network", "create", "--ipam-driver", driver, "--subnet", "10.50.0.0/25", "bad"}, "Pool overlaps"},
		// the pods'
		{[]string{"network", "create", "--ipam-driver", driver, "--subnet", "10.1.0.0/16", "bad"}, "Pool overlaps"},
		// a route of the host
		{[]string{"network", "create", "--ipam-driver", driver, "--subnet", "172.17.0.0/24", "bad"}, "Pool overlaps"},
		// as the bridge driver says
		{[]string{"network", "create", "--ipam-driver", driver, "--subnet", "10.50.0.0/24", "bad"}, "overlap"},
		{[]string{"network", "create", "--ipam-driver", driver, "--subnet", "10.60.0.0/24", "--gateway", "10.60.0.255", "bad"}, "Address already in use"},
		{[]string{"run", "--rm", "--network", "ip", "--ip", "10.57.0.77", image}, "Address already in use"},
		{[]string{"run", "--rm", "--network", "small", image}, "no available addresses"},
	} {
		out, err := t.engine.do(ctx, x.args...)
		if err == nil {
			return fmt.Errorf("docker %s was not refused: %s", strings.Join(x.args, " "), out)
		}
		if !strings.Contains(err.Error(), x.why) {
			return fmt.Errorf("refused for another reason than %q: %w", x.why, err)
		}
		_, said, _ := strings.Cut(err.Error(), "Error response from daemon: ")
		t.Say("%s", strings.SplitN(said, "\n", 2)[0])
	}
	return t.expectSame(ctx, before)
}

// twoNetworks puts a container into two networks, and takes it out again.
func (t *scenario) twoNetworks(ctx context.Context) error {
	t.Step(
		"Put one container into two networks, a third one by its address, and out again; remove all containers but one.",
	)
	for _, args := range [][]string{
		{"network", "connect", "subnet", "c-plain"}, {"network", "connect", "--ip", "10.52.0.9", "gateway", "c-plain"}, {"network", "connect", "sixes", "c-plain"},
	} {
		if _, err := t.engine.do(ctx, args...); err != nil {
			return err
		}
	}
	s, err := t.expect(ctx)
	if err != nil {
		return err
	}
	if has := s.inside["c-plain"]; len(has) != 5 || !slices.Contains(has, "10.52.0.9/24") {
		return fmt.Errorf("the container in four networks has %s", has)
	}
	t.Say("c-plain has %s", strings.Join(s.inside["c-plain"], ", "))
	for _, network := range []string{"subnet", "gateway", "sixes"} {
		if _, err := t.engine.do(ctx, "network", "disconnect", network, "c-plain"); err != nil {
			return err
		}
	}
	for _, w := range ways()[1:] {
		if _, err := t.engine.do(ctx, "rm", "--force", "c-"+w.name); err != nil {
			return err
		}
	}
	if _, err := t.expect(ctx); err != nil {
		return err
	}
	for _, w := range ways()[2:] {
		if _, err := t.engine.do(ctx, "network", "rm", w.name); err != nil {
			return err
		}
	}
	_, err = t.expect(ctx)
	return err
}

// The crowd: so many containers in so many networks.
const (
	crowdContainers = 20
	crowdNetworks   = 10
)

func number(i int) string { return fmt.Sprintf("crowd-%d", i) }

// manyEndpoints makes endpoints from many callers at once. A container that was
// only created has none: they come with its start and with "network connect".
func (t *scenario) manyEndpoints(ctx context.Context) error {
	const all = crowdContainers * crowdNetworks
	t.Step(
		"Make %d endpoints at once: %d containers start, and each is connected to %d more networks; then remove all at once.",
		all,
		crowdContainers,
		crowdNetworks-1,
	)
	if err := together(
		ctx,
		crowdNetworks,
		func(ctx context.Context, i int) error { return t.network(ctx, number(i)) },
	); err != nil {
		return err
	}
	began := time.Now()
	err := together(ctx, crowdContainers, func(ctx context.Context, i int) error {
		return t.container(ctx, number(i), number(0), "--stop-timeout", "1")
	})
	if err != nil {
		return err
	}
	started := time.Since(began)
	began = time.Now()
	// Each container meets each network once, since the numbers have no factor in common.
	pair := func(i int) (network, container string) {
		return number(1 + i%(crowdNetworks-1)), number(i % crowdContainers)
	}
	err = crowd(ctx, all-crowdContainers, crowdContainers, func(ctx context.Context, i int) error {
		network, container := pair(i)
		return t.engine.request(
			ctx,
			"POST",
			"/networks/"+network+"/connect",
			map[string]string{"Container": container},
			nil,
		)
	})
	if err != nil {
		return err
	}
	connected := time.Since(began)
	s, err := t.expect(ctx)
	if err != nil {
		return err
	}
	distinct := map[netip.Addr]bool{}
	for name, addresses := range s.inside {
		for _, a := range addresses {
			if strings.HasPrefix(name, "crowd-") {
				distinct[netip.MustParsePrefix(a).Addr()] = true
			}
		}
	}
	if len(distinct) != all {
		return fmt.Errorf("%d endpoints have %d distinct addresses", all, len(distinct))
	}
	began = time.Now()
	err = crowd(ctx, all-crowdContainers, crowdContainers, func(ctx context.Context, i int) error {
		network, container := pair(i)
		return t.engine.request(
			ctx,
			"POST",
			"/networks/"+network+"/disconnect",
			map[string]any{"Container": container, "Force": true},
			nil,
		)
	})
	if err != nil {
		return err
	}
	err = crowd(ctx, crowdContainers, crowdContainers, func(ctx context.Context, i int) error {
		return t.engine.request(ctx, "DELETE", "/containers/"+number(i)+"?force=true", nil, nil)
	})
	if err != nil {
		return err
	}
	t.Say(
		"%d distinct addresses: %d with containers in %.1f s, %d by network connect, %d at a time, in %.1f s; all removed in %.1f s.",
		all,
		crowdContainers,
		started.Seconds(),
		all-crowdContainers,
		crowdContainers,
		connected.Seconds(),
		time.Since(began).Seconds(),
	)
	if _, err := t.expect(ctx); err != nil {
		return err
	}
	return t.removeCrowd(ctx)
}

// removeCrowd removes the networks. An engine in which many endpoints come and
// go at once may lose count of them, and counts again when it is restarted.
func (t *scenario) removeCrowd(ctx context.Context) error {
	var mu sync.Mutex
	t.miscounted = nil
	err := together(ctx, crowdNetworks, func(ctx context.Context, i int) error {
		err := t.engine.request(ctx, "DELETE", "/networks/"+number(i), nil, nil)
		if err == nil || !strings.Contains(err.Error(), "has active endpoints") {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		t.miscounted = append(t.miscounted, number(i))
		return nil
	})
	if len(t.miscounted) > 0 {
		t.Say(
			"The engine has miscounted the endpoints of %s, which have none: these networks have to wait for its restart.",
			t.miscounted,
		)
	}
	return err
}
