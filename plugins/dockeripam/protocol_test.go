// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

// withArguments are the methods that have some.
func withArguments() []string {
	return []string{"IpamDriver.RequestPool", "IpamDriver.ReleasePool", "IpamDriver.RequestAddress", "IpamDriver.ReleaseAddress"}
}

// bothShapes fails unless the answer has the error in both fields, Err and Error.
func bothShapes(g Gomega, answer []byte, parts ...string) {
	var failed struct{ Err, Error string }
	g.ExpectWithOffset(1, json.Unmarshal(answer, &failed)).To(Succeed(), "%q", answer)
	g.ExpectWithOffset(1, failed.Err).NotTo(BeEmpty())
	g.ExpectWithOffset(1, failed.Error).To(Equal(failed.Err))
	for _, part := range parts {
		g.ExpectWithOffset(1, failed.Err).To(ContainSubstring(part))
	}
}

func TestAnswers(t *testing.T) {
	n, e := run(t)
	for _, x := range []struct{ method, body, answer string }{
		{"Plugin.Activate", "", `{"Implements":["IpamDriver"]}`},
		{"IpamDriver.GetCapabilities", "", `{"RequiresMACAddress":true,"RequiresRequestReplay":false}`},
		{"IpamDriver.GetCapabilities", "{}", `{"RequiresMACAddress":true,"RequiresRequestReplay":false}`},
		{"IpamDriver.GetDefaultAddressSpaces", "", `{"GlobalDefaultAddressSpace":"GlobalDefault","LocalDefaultAddressSpace":"LocalDefault"}`},
		{"IpamDriver.RequestPool", `{"AddressSpace":"LocalDefault","Pool":"","SubPool":"","Options":null,"V6":false}`,
			`{"PoolID":"LocalDefault/172.17.0.0/16","Pool":"172.17.0.0/16","Data":{}}`},
		{"IpamDriver.RequestPool", `{"AddressSpace":"LocalDefault","Pool":"10.1.0.0/16","SubPool":"10.1.2.0/24","Options":{"vrf":"1"},"V6":false}`,
			`{"PoolID":"LocalDefault/10.1.0.0/16/10.1.2.0/24","Pool":"10.1.0.0/16","Data":{}}`},
		{"IpamDriver.RequestAddress", `{"PoolID":"LocalDefault/172.17.0.0/16","Address":"","Options":{"RequestAddressType":"com.docker.network.gateway"}}`,
			`{"Address":"172.17.0.1/16","Data":{}}`},
		{"IpamDriver.RequestAddress", `{"PoolID":"LocalDefault/172.17.0.0/16","Address":"172.17.9.9","Options":null}`, `{"Address":"172.17.9.9/16","Data":{}}`},
		{"IpamDriver.ReleaseAddress", `{"PoolID":"LocalDefault/172.17.0.0/16","Address":"172.17.9.9"}`, `{}`},
		{"IpamDriver.ReleaseAddress", `{"PoolID":"LocalDefault/172.17.0.0/16","Address":"172.17.9.9"}`, `{}`},
		{"IpamDriver.ReleasePool", `{"PoolID":"LocalDefault/172.17.0.0/16"}`, `{}`},
		{"IpamDriver.ReleasePool", `{"PoolID":"LocalDefault/172.17.0.0/16"}`, `{}`},
		{"IpamDriver.ReleaseAddress", `{"PoolID":"LocalDefault/172.17.0.0/16","Address":"172.17.0.1"}`, `{}`},
		{"IpamDriver.ReleasePool", `{"PoolID":"what is that"}`, `{}`},
	} {
		status, answer, err := e.post(x.method, []byte(x.body))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status).To(Equal(http.StatusOK), "%s %s: %s", x.method, x.body, answer)
		n.Expect(string(answer)).To(Equal(x.answer), "%s %s", x.method, x.body)
	}
	n.Expect(n.recorded()).To(Equal([]string{"10.1.0.0/16/10.1.2.0/24"}))
	n.Expect(n.pools()).To(Equal([]string{"10.1.0.0/16"}), "the ledger has every pool")
	n.expectSound()
}

// A decoder replaces each byte that is not UTF-8 by the same character: the two
// groups would be one, whose pools serve each other's requests.
func TestNamesThatAreNotUTF8(t *testing.T) {
	n, e := run(t)
	for _, group := range []string{"a\xff", "a\xfe"} {
		status, answer, err := e.post("IpamDriver.RequestPool", []byte(`{"AddressSpace":"LocalDefault","Pool":"10.1.0.0/16","Options":{"`+ipamapi.GroupOption+`":"`+group+`"}}`))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status).To(Equal(http.StatusBadRequest), "%s", answer)
		bothShapes(n, answer, "IpamDriver.RequestPool", "not UTF-8")
	}
	n.Expect(n.recorded()).To(BeEmpty())
}

func TestHeaders(t *testing.T) {
	n, e := run(t)
	for method, want := range map[string]int{"Plugin.Activate": 200, "IpamDriver.RequestPool": 400, "Nothing": 404} {
		resp, err := e.client.Post("http://plugin.moby.localhost/"+method, "", http.NoBody)
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(resp.Body.Close()).To(Succeed())
		n.Expect(resp.StatusCode).To(Equal(want), method)
		n.Expect(resp.Header.Get("Content-Type")).To(Equal(accept), method)
	}
}

// A request that the engine sends again has no body.
func TestArgumentsHaveNoDefaults(t *testing.T) {
	n, e := run(t)
	id := e.pool(n, "10.1.0.0/16")
	e.address(n, id, "10.1.0.9")
	for _, method := range withArguments() {
		for body, why := range map[string]string{
			"": "again without its arguments", " \n": "again without its arguments", "null": "null", "[]": "array", `"x"`: "string", "{": "EOF", "{]": "invalid",
			`{"AddressSpace":[],"PoolID":[]}`: "array", `{"Pool":1,"PoolID":1}`: "number", "\x00": "invalid", strings.Repeat(" ", 2<<20): "too large",
		} {
			status, answer, err := e.post(method, []byte(body))
			n.Expect(err).NotTo(HaveOccurred())
			n.Expect(status).To(Equal(http.StatusBadRequest), "%s %.40q: %s", method, body, answer)
			bothShapes(n, answer, method, why)
		}
		status, answer, err := e.post(method, []byte("{}"))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status == 400 || method == "IpamDriver.ReleasePool").To(BeTrue(), "%s {}: %d %s", method, status, answer)
	}
	n.Expect(n.pools()).To(Equal([]string{"10.1.0.0/16"}), "nothing was opened or closed")
	n.Expect(n.leases()).To(Equal([]string{"10.1.0.9"}))
}

// Two documents in one body are two requests, of which one would be lost.
func TestOneRequestHasOneDocument(t *testing.T) {
	n, e := run(t)
	const one = `{"AddressSpace":"LocalDefault","Pool":"10.1.0.0/16"}`
	for _, more := range []string{one, " " + one, "{}", "null", "x", "}"} {
		status, answer, err := e.post("IpamDriver.RequestPool", []byte(one+more))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status).To(Equal(http.StatusBadRequest), "%s", more)
		bothShapes(n, answer, "IpamDriver.RequestPool", "want one document")
	}
	n.Expect(n.recorded()).To(BeEmpty())
	status, _, err := e.post("IpamDriver.RequestPool", []byte(one+" \n"))
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(status).To(Equal(http.StatusOK))
}

func TestUnknownPaths(t *testing.T) {
	n, e := run(t)
	for _, path := range []string{"", "IpamDriver", "IpamDriver.DiscoverNew", "IpamDriver.requestpool", "IpamDriver.RequestPool/", "Plugin.Deactivate", "v1/leases", "NetworkDriver.GetCapabilities"} {
		status, answer, err := e.post(path, []byte("{}"))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status).To(Equal(http.StatusNotFound), path)
		bothShapes(n, answer, "/"+path, "not part of the IPAM protocol")
	}
	resp, err := e.client.Get("http://plugin.moby.localhost/Plugin.Activate")
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(resp.Body.Close()).To(Succeed())
	n.Expect(resp.StatusCode).To(Equal(http.StatusNotFound), "calls are POST")
}

func TestErrorsOnTheWire(t *testing.T) {
	n, e := run(t)
	id := e.pool(n, "10.1.0.0/30")
	e.address(n, id, "")
	e.address(n, id, "10.1.0.2")
	const request, address, release = "IpamDriver.RequestPool", "IpamDriver.RequestAddress", "IpamDriver.ReleaseAddress"
	for _, x := range []struct {
		method, body string
		status       int
		why          error
	}{
		{request, `{"AddressSpace":""}`, 400, ipamapi.ErrInvalidAddressSpace},
		{request, `{"AddressSpace":"white","Pool":"10.9.0.0/16"}`, 400, ipamapi.ErrInvalidAddressSpace},
		{request, `{"AddressSpace":"LocalDefault","Pool":"10.9.0.0"}`, 400, ipamapi.ErrInvalidPool},
		{request, `{"AddressSpace":"LocalDefault","SubPool":"10.9.0.0/24"}`, 400, ipamapi.ErrInvalidSubPool},
		{request, `{"AddressSpace":"LocalDefault","Pool":"10.1.0.0/16"}`, 403, ipamapi.ErrPoolOverlap},
		{request, `{"AddressSpace":"LocalDefault","Pool":"0.0.0.0/8"}`, 400, ipamapi.ErrInvalidPool},
		{address, `{"PoolID":""}`, 400, ipamapi.ErrBadPool},
		{address, `{"PoolID":"LocalDefault/10.1.0.0/30"}`, 503, ipamapi.ErrNoAvailableIPs},
		{address, `{"PoolID":"LocalDefault/10.1.0.0/30","Address":"10.1.0.1"}`, 403, ipamapi.ErrIPAlreadyAllocated},
		{address, `{"PoolID":"LocalDefault/10.1.0.0/30","Address":"10.1.0.9"}`, 400, ipamapi.ErrIPOutOfRange},
		{address, `{"PoolID":"LocalDefault/10.1.0.0/30","Address":"10.1.0.1/30"}`, 400, ipamapi.ErrInvalidAddress},
		{address, `{"PoolID":"LocalDefault/10.1.0.0/30","Address":"web"}`, 400, ipamapi.ErrInvalidAddress},
		{release, `{"PoolID":"LocalDefault/10.1.0.0/30"}`, 400, ipamapi.ErrInvalidAddress},
		{release, `{"PoolID":"LocalDefault/10.1.0.0/30","Address":"10.1.0.9"}`, 400, ipamapi.ErrIPOutOfRange},
		{release, `{"PoolID":"LocalDefault/10.1.0.0/30","Address":"10.1"}`, 400, ipamapi.ErrInvalidAddress},
	} {
		status, answer, err := e.post(x.method, []byte(x.body))
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(status).To(Equal(x.status), "%s %s: %s", x.method, x.body, answer)
		bothShapes(n, answer, x.why.Error())
	}
	n.Expect(e.ReleasePool(id)).To(Succeed())
	_, _, err := e.RequestAddress(id, nil, nil)
	n.Expect(err).To(MatchError(ContainSubstring(ipamapi.ErrPoolNotFound.Error())))
	id = e.pool(n, "")
	n.failing.Store(true)
	_, _, err = e.RequestAddress(id, nil, nil)
	n.Expect(err).To(MatchError(ContainSubstring(journal.ErrInjected.Error())), "the contract has no class for a full disk")
	n.failing.Store(false)
	n.Expect(e.address(n, id, "")).To(Equal("172.17.0.1/16"))
	n.expectSound()
}

// nothing is a driver that answers what no driver should.
type nothing struct{ dockeripam.Driver }

func (nothing) RequestAddress(string, net.IP, map[string]string) (*net.IPNet, map[string]string, error) {
	return nil, nil, nil
}

func TestNoAddressIsAnError(t *testing.T) {
	n := newNode(t)
	n.deps.NewDriver = func(context.Context, ipamapi.PoolOpener) (dockeripam.Driver, error) { return nothing{}, nil }
	e := n.begin()
	_, _, err := e.RequestAddress("x", nil, nil)
	n.Expect(err).To(MatchError(ContainSubstring(ipamapi.ErrNoIPReturned.Error())))
}

// TestCapabilities: they are what the driver wants, and are there before it is.
func TestCapabilities(t *testing.T) {
	n := newNode(t)
	n.deps.Patience = time.Minute
	n.assemble()
	n.start(n.plugin.Serve) // no loop, no driver
	e := n.engine()
	var got ipamapi.Capability
	n.Expect(e.call("IpamDriver.GetCapabilities", nil, &got)).To(Succeed())
	n.Expect(got).To(Equal(new(ipamapi.Driver).Capability()))
	n.Expect(e.call("Plugin.Activate", nil, &struct{}{})).To(Succeed())
}

// TestBeforeTheFirstResync: the engine waits for it, or hears what is missing.
func TestBeforeTheFirstResync(t *testing.T) {
	n := newNode(t)
	n.deps.Patience = 50 * time.Millisecond
	n.Expect(n.records.Commit(context.Background(), map[string][]byte{"LocalDefault/10.1.0.0/16": []byte(`{"version":1,"refs":1}`)}, nil)).To(Succeed())
	n.assemble()
	n.start(n.loop.Run, n.plugin.Run, n.plugin.Serve)
	e := n.engine()
	status, answer, err := e.post("IpamDriver.GetDefaultAddressSpaces", nil)
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(status).To(Equal(http.StatusServiceUnavailable))
	bothShapes(n, answer, "no first resync yet")
	_, err = e.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault"})
	n.Expect(err).To(MatchError(ContainSubstring("no first resync yet")))
	n.Expect(n.stop()).To(BeEmpty())

	n.deps.Patience = time.Minute
	n.assemble()
	n.start(n.loop.Run, n.plugin.Run, n.plugin.Serve)
	e = n.engine()
	answered := make(chan string, 1)
	go func() {
		a, _, err := e.RequestAddress("LocalDefault/10.1.0.0/16", nil, nil)
		if err != nil {
			answered <- err.Error()
			return
		}
		answered <- a.String()
	}()
	n.Consistently(answered, 100*time.Millisecond).ShouldNot(Receive())
	n.resync()
	n.Expect(<-answered).To(Equal("10.1.0.1/16"))
}

// A start that fails is repeated.
func TestDriverStartsAfterAnError(t *testing.T) {
	n := newNode(t)
	tries := 0
	n.deps.Patience = 20 * time.Second
	n.deps.NewDriver = func(ctx context.Context, opener ipamapi.PoolOpener) (dockeripam.Driver, error) {
		if tries++; tries == 1 {
			return nil, errors.New("not yet")
		}
		return n.newDriver(ctx, opener)
	}
	e := n.begin()
	n.Expect(e.pool(n, "10.1.0.0/16")).To(Equal("LocalDefault/10.1.0.0/16"))
	n.Expect(tries).To(Equal(2))
}
