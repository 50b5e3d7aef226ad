// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// The room's own network namespace is the router, and has the control plane. The router
// has a network with each node and one with the outside, and no route to a pod. A packet
// of a pod that reaches it as such is lost.
const (
	planeIP   = "198.18.0.1" // of no network of the configurations, as are those of nodes
	outsideIP = "203.0.113.2"
	outsideGW = "203.0.113.1"
)

// openRouter gives the router the control plane's address.
func openRouter() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	address, err := netlink.ParseAddr(planeIP + "/32")
	if err != nil {
		return fmt.Errorf("read the control plane's address: %w", err)
	}
	err = errors.Join(
		netlink.LinkSetUp(lo),
		netlink.AddrAdd(lo, address),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
	)
	if err != nil {
		return fmt.Errorf("make the router: %w", err)
	}
	return nil
}

// attach makes a link between the router and the namespace ns, with the addresses of both
// ends and a default route by way of the router.
func attach(ns *netlab.Namespace, name, ip, gateway string) error {
	const inside = "eth0"
	router, err := netip.ParseAddr(gateway)
	if err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	holder, err := os.Open(ns.Path())
	if err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	defer func() { _ = holder.Close() }() // it was only passed on
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: name},
		PeerName:      inside,
		PeerNamespace: netlink.NsFd(int(holder.Fd())),
	})
	if err == nil {
		err = configure(name, gateway)
	}
	if err == nil {
		err = ns.Do(func() error {
			if err := configure(inside, ip); err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{Gw: router.AsSlice()})
		})
	}
	if err != nil {
		return fmt.Errorf("attach %s to the router: %w", name, err)
	}
	return nil
}

// configure gives a link an address of a /24, and sets it up.
func configure(name, ip string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(ip + "/24")
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, address), netlink.LinkSetUp(link))
}

// outside is a host of another network, with a server that answers with the source address
// of the request.
type outside struct {
	ns     *netlab.Namespace
	server *http.Server
	ended  chan error
}

const outsideURL = "http://" + outsideIP + ":8080/"

// openOutside makes the host, and serves.
func openOutside() (*outside, error) {
	ns, err := netlab.New()
	if err != nil {
		return nil, err
	}
	if err := attach(ns, "outside", outsideIP, outsideGW); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	var listener net.Listener
	err = ns.Do(func() (err error) {
		listener, err = net.Listen("tcp", outsideIP+":8080")
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen outside: %w", err), ns.Close())
	}
	o := &outside{ns: ns, ended: make(chan error, 1), server: &http.Server{
		Handler:           http.HandlerFunc(answerSource),
		ReadHeaderTimeout: time.Minute,
	}}
	go func() { o.ended <- o.server.Serve(listener) }() // until close
	return o, nil
}

func answerSource(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, host) // a client that has gone needs no answer
}

// close ends the server and the host.
func (o *outside) close() error {
	err := o.server.Shutdown(context.Background())
	if ended := <-o.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return errors.Join(err, o.ns.Close())
}
