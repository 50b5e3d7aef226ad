// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// endpoint is an address of a container, as the engine has it.
type endpoint struct {
	container, network, mac string
	address                 string // with its length
}

// scene holds the containers, networks and leases of one moment.
type scene struct {
	inside    map[string][]string // the addresses in each running container, with their lengths
	endpoints []endpoint
	gateways  map[string]string // the network of each, by address
	aux       map[string]string
	leases    []localapi.Lease
}

// dockers is true for a lease of the Docker driver.
func dockers(l localapi.Lease) bool {
	return l.Purpose == "docker" || strings.HasPrefix(l.Pool, "docker/")
}

// compare finds what does not fit. Each address in a container must be one that
// the engine knows of, and have one lease of its own. Each gateway and each
// auxiliary address must have one. There must be no others.
func (s scene) compare() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	leases := map[string][]localapi.Lease{}
	for _, l := range s.leases {
		if l.State != "held" {
			wrong("%s is %s for %s", l.IP, l.State, l.Purpose)
		}
		leases[l.IP] = append(leases[l.IP], l)
	}
	// take takes the lease of an address, whose key begins in a certain way.
	take := func(address, owner, begins string) {
		ip, _, _ := strings.Cut(address, "/")
		all := leases[ip]
		delete(leases, ip)
		switch {
		case len(all) != 1:
			wrong("%s of %s has %d leases", ip, owner, len(all))
		case !dockers(all[0]):
			wrong("%s of %s is leased to a %s", ip, owner, all[0].Purpose)
		case !strings.HasPrefix(strings.TrimPrefix(all[0].IfName, "likely "), begins+"#"): // an engine that was killed does not say so again
			wrong("%s of %s is leased to %q, not to %q", ip, owner, all[0].IfName, begins)
		}
	}
	known := map[string][]string{}
	for _, e := range s.endpoints {
		known[e.container] = append(known[e.container], e.address)
		take(e.address, e.container+" in "+e.network, e.mac)
	}
	for _, name := range slices.Sorted(maps.Keys(s.inside)) {
		has, told := slices.Sorted(slices.Values(s.inside[name])), slices.Sorted(slices.Values(known[name]))
		if !slices.Equal(has, told) {
			wrong("%s has the addresses %s, the engine says %s", name, has, told)
		}
		delete(known, name)
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		wrong("%s has the addresses %s and does not run", name, known[name])
	}
	for address, network := range s.gateways {
		take(address, "the gateway of "+network, "gateway")
	}
	for address, network := range s.aux {
		take(address, "an auxiliary of "+network, "")
	}
	for _, ip := range slices.Sorted(maps.Keys(leases)) {
		for _, l := range leases[ip] {
			if dockers(l) {
				wrong("%s is leased to %q of %q, which no container has", ip, l.IfName, l.Network)
			}
		}
	}
	return errors.Join(errs...)
}

// changed says which leases are not as they were.
func changed(before, after []localapi.Lease) error {
	var errs []error
	for _, l := range before {
		if !slices.Contains(after, l) {
			errs = append(errs, fmt.Errorf("%s of %q is gone or has changed", l.IP, l.IfName))
		}
	}
	for _, l := range after {
		if !slices.Contains(before, l) {
			errs = append(errs, fmt.Errorf("%s of %q is new or has changed", l.IP, l.IfName))
		}
	}
	return errors.Join(errs...)
}

// expectSame fails unless the leases are as they were.
func (t *scenario) expectSame(ctx context.Context, before []localapi.Lease) error {
	after, _, err := t.Leases(ctx)
	return errors.Join(err, changed(before, after))
}

// look sees what there is, compares it, and asks the ledger whether it is sound.
func (t *scenario) look(ctx context.Context) (scene, error) {
	var s scene
	if err := t.lookAtContainers(ctx, &s); err != nil {
		return s, err
	}
	if err := t.lookAtNetworks(ctx, &s); err != nil {
		return s, err
	}
	var err error
	if s.leases, _, err = t.Leases(ctx); err != nil {
		return s, err
	}
	_, err = t.CLI(ctx, "check", "--ledger")
	return s, errors.Join(s.compare(), err)
}

// expect looks until everything fits; nothing else is under way.
func (t *scenario) expect(ctx context.Context) (s scene, err error) {
	err = t.eventually(ctx, "containers, engine and ledger agree", func(ctx context.Context) error {
		s, err = t.look(ctx)
		return err
	})
	if err == nil {
		t.Say(
			"In %d containers there are %d addresses; the ledger has these, %d gateways, %d auxiliary addresses, and no others.",
			len(s.inside),
			len(s.endpoints),
			len(s.gateways),
			len(s.aux),
		)
	}
	return s, err
}

func (t *scenario) lookAtContainers(ctx context.Context, s *scene) error {
	var all []struct{ ID string }
	if err := t.engine.get(ctx, "/containers/json?all=1", &all); err != nil {
		return err
	}
	s.inside = map[string][]string{}
	var mu sync.Mutex
	return together(ctx, len(all), func(ctx context.Context, i int) error {
		var c struct {
			Name            string
			State           struct{ Running bool }
			NetworkSettings struct{ Networks map[string]attachment }
		}
		if err := t.engine.get(ctx, "/containers/"+all[i].ID+"/json", &c); err != nil {
			return err
		}
		if !c.State.Running { // what is told of it may be old: it has no interfaces
			return nil
		}
		name := strings.TrimPrefix(c.Name, "/")
		has, err := t.engine.do(ctx, "exec", name, "/inside")
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		s.inside[name] = strings.Fields(has)
		for network, a := range c.NetworkSettings.Networks {
			for _, address := range a.addresses() {
				s.endpoints = append(s.endpoints, endpoint{name, network, a.MacAddress, address})
			}
		}
		return nil
	})
}

// attachment is a container in a network, as the engine tells it.
type attachment struct {
	MacAddress, IPAddress, GlobalIPv6Address string
	IPPrefixLen, GlobalIPv6PrefixLen         int
}

func (a attachment) addresses() (all []string) {
	if a.IPAddress != "" {
		all = append(all, fmt.Sprintf("%s/%d", a.IPAddress, a.IPPrefixLen))
	}
	if a.GlobalIPv6Address != "" {
		all = append(all, fmt.Sprintf("%s/%d", a.GlobalIPv6Address, a.GlobalIPv6PrefixLen))
	}
	return all
}

func (t *scenario) lookAtNetworks(ctx context.Context, s *scene) error {
	var all []struct {
		ID, Name string
		IPAM     struct {
			Driver string
			Config []struct{ AuxiliaryAddresses map[string]string }
		}
	}
	if err := t.engine.get(ctx, "/networks", &all); err != nil {
		return err
	}
	s.gateways, s.aux = map[string]string{}, map[string]string{}
	return t.room.do(func() error {
		for _, n := range all {
			if n.IPAM.Driver != driver {
				continue
			}
			for _, c := range n.IPAM.Config {
				for _, a := range c.AuxiliaryAddresses {
					s.aux[a] = n.Name
				}
			}
			if err := onBridge("br-"+n.ID[:12], n.Name, s.gateways); err != nil {
				return err
			}
		}
		return nil
	})
}

// onBridge adds the addresses of a network's bridge: they are its gateways,
// which the engine does not always tell.
func onBridge(bridge, network string, gateways map[string]string) error {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find the bridge of %s: %w", network, err)
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("read the addresses of %s: %w", bridge, err)
	}
	for _, a := range all {
		if !a.IP.IsLinkLocalUnicast() {
			gateways[a.IP.String()] = network
		}
	}
	return nil
}

// atOnce is the number of concurrent actions in steps that are not about that number.
const atOnce = 4

// together calls f for 0 to n-1, some at a time; the first error ends it.
func together(ctx context.Context, n int, f func(context.Context, int) error) error {
	return crowd(ctx, n, atOnce, f)
}

func crowd(ctx context.Context, n, workers int, f func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wait sync.WaitGroup
	for range min(workers, n) {
		wait.Go(func() {
			for i := range next {
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wait.Wait()
	return context.Cause(ctx)
}
