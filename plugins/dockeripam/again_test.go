// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

// gated is a driver whose answers wait at a gate.
type gated struct {
	dockeripam.Driver
	at   chan struct{} // gets a token for each call at the gate
	open chan struct{}
}

func (d gated) RequestPool(req ipamapi.PoolRequest) (ipamapi.AllocatedPool, error) {
	p, err := d.Driver.RequestPool(req)
	d.at <- struct{}{}
	<-d.open
	return p, err
}

func (d gated) RequestAddress(pool string, want net.IP, options map[string]string) (*net.IPNet, map[string]string, error) {
	a, data, err := d.Driver.RequestAddress(pool, want, options)
	d.at <- struct{}{}
	<-d.open
	return a, data, err
}

// gate is a node with a gated driver.
func gate(t *testing.T) (*node, gated) {
	n, g := newNode(t), gated{at: make(chan struct{}, 16), open: make(chan struct{}, 16)}
	n.deps.NewDriver = func(ctx context.Context, opener ipamapi.PoolOpener) (dockeripam.Driver, error) {
		d, err := n.newDriver(ctx, opener)
		g.Driver = d
		return g, err
	}
	return n, g
}

// send writes a request to a connection of its own.
func (n *node) send(method string, args any) net.Conn {
	body, err := json.Marshal(args)
	n.Expect(err).NotTo(HaveOccurred())
	c, err := net.Dial("unix", n.socket)
	n.Expect(err).NotTo(HaveOccurred())
	_, err = fmt.Fprintf(c, "POST /%s HTTP/1.1\r\nHost: plugin.moby.localhost\r\nContent-Length: %d\r\n\r\n%s", method, len(body), body)
	n.Expect(err).NotTo(HaveOccurred())
	return c
}

// A choice for an engine that hangs up is free again, since the engine cannot know
// it. A pool or an address that it has named stays, since it may ask again; that of an endpoint
// that it has named, too.
func TestEngineHangsUp(t *testing.T) {
	for _, x := range []struct {
		what, method  string
		args          map[string]any
		leases, pools []string
	}{
		{"any address", "IpamDriver.RequestAddress", map[string]any{"PoolID": "LocalDefault/10.1.0.0/16"}, nil, []string{"10.1.0.0/16"}},
		{"a gateway", "IpamDriver.RequestAddress", map[string]any{"PoolID": "LocalDefault/10.1.0.0/16", "Options": map[string]string{
			ipamapi.RequestAddressType: ipamapi.Gateway}}, nil, []string{"10.1.0.0/16"}},
		{"a named address", "IpamDriver.RequestAddress", map[string]any{"PoolID": "LocalDefault/10.1.0.0/16", "Address": "10.1.0.9"}, []string{"10.1.0.9"}, []string{"10.1.0.0/16"}},
		{"any address of an endpoint that is named", "IpamDriver.RequestAddress", map[string]any{"PoolID": "LocalDefault/10.1.0.0/16", "Options": map[string]string{
			ipamapi.EndpointName: "web", ipamapi.EndpointMAC: "02:42:0a:01:00:02"}}, []string{"10.1.0.1"}, []string{"10.1.0.0/16"}},
		{"any pool", "IpamDriver.RequestPool", map[string]any{"AddressSpace": "LocalDefault"}, nil, []string{"10.1.0.0/16"}},
		{"any pool of a size", "IpamDriver.RequestPool", map[string]any{"AddressSpace": "LocalDefault", "Pool": "0.0.0.0/24"}, nil, []string{"10.1.0.0/16"}},
		{"a named pool", "IpamDriver.RequestPool", map[string]any{"AddressSpace": "LocalDefault", "Pool": "10.2.0.0/16"}, nil, []string{"10.1.0.0/16", "10.2.0.0/16"}},
	} {
		t.Run(x.what, func(t *testing.T) {
			n, g := gate(t)
			e := n.begin()
			g.open <- struct{}{}
			e.pool(n, "10.1.0.0/16")
			<-g.at
			c := n.send(x.method, x.args)
			<-g.at
			n.Expect(c.Close()).To(Succeed())
			g.open <- struct{}{}
			now := func() []string { return append(n.recorded(), n.leases()...) }
			n.Eventually(now).Should(Equal(append(x.pools, x.leases...)))
			n.Consistently(now, 100*time.Millisecond).Should(Equal(append(x.pools, x.leases...)))
			n.Expect(n.stop()).To(BeEmpty())
			n.expectSound()
		})
	}
}

// A request whose answer was lost arrives once more, with or without its body.
func TestRepeatedRequests(t *testing.T) {
	n, e := run(t)
	id := e.pool(n, "10.1.0.0/16")
	n.Expect(e.pool(n, "10.1.0.0/16")).To(Equal(id))
	mac := []string{ipamapi.EndpointMAC, "02:42:0a:01:00:09"}
	n.Expect(e.address(n, id, "10.1.0.9", mac...)).To(Equal("10.1.0.9/16"))
	n.Expect(e.address(n, id, "10.1.0.9", mac...)).To(Equal("10.1.0.9/16"))
	n.Expect(e.address(n, id, "", mac...)).To(Equal("10.1.0.1/16"))
	n.Expect(e.address(n, id, "", mac...)).To(Equal("10.1.0.2/16"), "never the same one twice")
	n.Expect(e.pool(n, "")).NotTo(Equal(e.pool(n, "")), "never the same one twice")
	before := n.leases()
	for _, method := range withArguments() {
		status, _, err := e.post(method, nil)
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status).To(Equal(http.StatusBadRequest), method)
	}
	n.Expect(n.leases()).To(Equal(before))
	for range 3 {
		n.Expect(e.ReleaseAddress(id, net.ParseIP("10.1.0.9"))).To(Succeed())
	}
	n.Expect(e.ReleasePool(id)).To(Succeed())
	n.Expect(n.pools()).To(ContainElement("10.1.0.0/16"), "it was requested twice")
	for range 3 {
		n.Expect(e.ReleasePool(id)).To(Succeed())
	}
	n.Expect(n.pools()).NotTo(ContainElement("10.1.0.0/16"))
	n.Expect(e.ReleaseAddress(id, net.ParseIP("10.1.0.9"))).To(Succeed())
	n.Expect(n.leases()).To(BeEmpty())
}

// The engine is killed while it writes.
func TestPartialRequest(t *testing.T) {
	n, e := run(t)
	id := e.pool(n, "10.1.0.0/16")
	for _, text := range []string{
		"", "POST", "POST /IpamDriver.RequestAddress HTTP/1.1\r\nHost: x\r\n",
		"POST /IpamDriver.RequestAddress HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n",
		"POST /IpamDriver.RequestAddress HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n" + `{"PoolID":"LocalDefault/10.1.0.0/16","Address":"10.1.0.9"`,
	} {
		c, err := net.Dial("unix", n.socket)
		n.Expect(err).NotTo(HaveOccurred())
		_, err = c.Write([]byte(text))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(c.Close()).To(Succeed())
	}
	n.Expect(e.address(n, id, "")).To(Equal("10.1.0.1/16"))
	n.Expect(n.leases()).To(Equal([]string{"10.1.0.1"}))
}

// Pools and addresses stay valid after a restart.
func TestRestart(t *testing.T) {
	n, e := run(t)
	id := e.pool(n, "10.1.0.0/16")
	e.address(n, id, "", ipamapi.RequestAddressType, ipamapi.Gateway)
	e.address(n, id, "", ipamapi.EndpointMAC, "02:42:0a:01:00:02")
	n.Expect(n.stop()).To(BeEmpty())
	e = n.begin()
	n.Expect(n.leases()).To(Equal([]string{"10.1.0.1", "10.1.0.2"}))
	n.Expect(e.address(n, id, "")).To(Equal("10.1.0.3/16"))
	n.Expect(e.ReleaseAddress(id, net.ParseIP("10.1.0.2"))).To(Succeed())
	n.Expect(e.ReleasePool(id)).To(Succeed())
	n.Expect(n.pools()).To(BeEmpty())
	n.Expect(n.leases()).To(BeEmpty())
	n.expectSound()
}

// patience limits the waiting of tests that expect something at once.
const patience = 5 * time.Minute
