// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// hypervisor plugs the interfaces of the machines, as the cloud shows them.
type hypervisor struct {
	l      *Lab
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu       sync.Mutex
	machines map[string]*netlab.Namespace
	plugged  map[string]*plug // by port
	plugs    int              // so far
	errs     []error

	counting sync.Mutex
	sources  map[string]map[netip.Addr]packets // by port: of machines
}

// packets are those of one source.
type packets struct {
	count int
	last  string // destination and protocol
}

// plug is an interface of a machine.
type plug struct {
	machine string
	mac     string
	link    string
	watch   *sniffer
}

// startHypervisor reads the cloud until the test ends.
func (l *Lab) startHypervisor() *hypervisor {
	ctx, cancel := context.WithCancel(context.Background())
	h := &hypervisor{
		l:        l,
		cancel:   cancel,
		machines: map[string]*netlab.Namespace{},
		plugged:  map[string]*plug{},
		sources:  map[string]map[netip.Addr]packets{},
	}
	h.all.Go(func() { h.run(ctx) })
	l.t.Cleanup(h.stop)
	return h
}

func (h *hypervisor) stop() {
	h.cancel()
	h.all.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.plugged {
		p.watch.close()
	}
}

func (h *hypervisor) run(ctx context.Context) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		began := time.Now()
		truth, err := h.l.config.Truth(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			h.fail(fmt.Errorf("read the cloud: %w", err))
		default:
			h.l.Judge.Read(began, truth)
			h.fail(h.follow(truth))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (h *hypervisor) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.errs = append(h.errs, err)
	}
}

// err returns the errors so far.
func (h *hypervisor) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.errs...)
}

// follow plugs and unplugs interfaces.
func (h *hypervisor) follow(truth Truth) (failed error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, p := range h.plugged {
		i := slices.IndexFunc(truth.Ports, func(t Port) bool { return t.ID == id })
		if i >= 0 && truth.Ports[i].Machine == p.machine {
			continue
		}
		delete(h.plugged, id)
		failed = errors.Join(failed, h.l.fabric.IP("link delete "+p.link))
		p.watch.close()
	}
	for _, p := range truth.Ports {
		ns := h.machines[p.Machine]
		if ns == nil || h.plugged[p.ID] != nil {
			continue
		}
		if err := h.plug(ns, p); err != nil {
			failed = errors.Join(failed, fmt.Errorf("plug interface %s into %s: %w", p.ID, p.Machine, err))
		}
	}
	return failed
}

// plug makes the link of an interface, with its own addresses, as DHCP would do.
func (h *hypervisor) plug(ns *netlab.Namespace, p Port) error {
	link := "t" + short(p.ID)
	if err := h.l.fabric.IP(
		"link add "+link+" type veth peer name "+link+" address "+p.MAC+" netns "+ns.Path(),
		"link set "+link+" master "+bridgeOf(p.Network)+" up",
	); err != nil {
		return err
	}
	watch, err := h.sniff(p.ID, link)
	if err != nil {
		return err
	}
	commands := []string{"link set " + link + " up"}
	for _, own := range p.Own {
		commands = append(commands, fmt.Sprintf("address add %s dev %s nodad", own, link))
	}
	if p.First {
		for _, own := range p.Own {
			commands = append(commands, fmt.Sprintf("route add default via %s dev %s", h.l.gatewayOf(own), link))
		}
	}
	h.plugged[p.ID] = &plug{p.Machine, p.MAC, link, watch}
	h.plugs++
	return ns.IP(commands...)
}

// gatewayOf returns the gateway of the subnet that has an address.
func (l *Lab) gatewayOf(own netip.Prefix) netip.Addr {
	for _, n := range l.config.Networks {
		for _, s := range n.Subnets {
			if s.CIDR.Contains(own.Addr()) {
				return s.Gateway
			}
		}
	}
	return netip.Addr{}
}

// has reports whether a machine has an interface.
func (h *hypervisor) has(machine string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.plugged {
		if p.machine == machine {
			return true
		}
	}
	return false
}

// strays returns the packets that left a machine through an interface that never had
// their source address, and the number of all.
func (h *hypervisor) strays() (bad []string, all int) {
	h.counting.Lock()
	defer h.counting.Unlock()
	for port, sources := range h.sources {
		for a, n := range sources {
			all += n.count
			if !h.l.Judge.May(port, a) {
				bad = append(
					bad,
					fmt.Sprintf(
						"%d packets from %s left through interface %s, the last one %s",
						n.count,
						a,
						port,
						n.last,
					),
				)
			}
		}
	}
	return bad, all
}
