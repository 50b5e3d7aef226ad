// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// accept is the header that the engine sends.
const accept = "application/vnd.docker.plugins.v1.2+json"

// engine speaks the remote protocol as Docker's engine does, and maps what it
// hears to the contract: it is an Ipam. Errors are texts, as they are there.
type engine struct {
	client *http.Client
}

var _ ipamapi.Ipam = (*engine)(nil)

func newEngine(t testing.TB, socket string) *engine {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 64,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &engine{client: &http.Client{Transport: transport}}
}

// post is one request: no Content-Type, and no body at all for no arguments.
func (e *engine) post(method string, body []byte) (status int, answer []byte, err error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequest(http.MethodPost, "http://plugin.moby.localhost/"+method, r)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", accept)
	resp, err := e.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// call is a method: an error that is not 200 has Err, one that is 200 has Error.
func (e *engine) call(method string, args, out any) error {
	var body []byte
	if args != nil {
		var err error
		if body, err = json.Marshal(args); err != nil {
			return err
		}
	}
	status, answer, err := e.post(method, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		var failed struct{ Err string }
		if json.Unmarshal(answer, &failed) == nil && failed.Err != "" {
			return fmt.Errorf("%s: %s", method, failed.Err)
		}
		return fmt.Errorf("%s: %s", method, answer)
	}
	var failed struct{ Error string }
	if err := errors.Join(json.Unmarshal(answer, &failed), json.Unmarshal(answer, out)); err != nil {
		return fmt.Errorf("%s: answer %q: %w", method, answer, err)
	}
	if failed.Error != "" {
		return fmt.Errorf("remote: %s", failed.Error)
	}
	return nil
}

// GetDefaultAddressSpaces asks for the spaces.
func (e *engine) GetDefaultAddressSpaces() (string, string, error) {
	var out struct{ LocalDefaultAddressSpace, GlobalDefaultAddressSpace string }
	err := e.call("IpamDriver.GetDefaultAddressSpaces", nil, &out)
	return out.LocalDefaultAddressSpace, out.GlobalDefaultAddressSpace, err
}

// RequestPool requests a pool.
func (e *engine) RequestPool(req ipamapi.PoolRequest) (ipamapi.AllocatedPool, error) {
	var out struct {
		PoolID, Pool string
		Data         map[string]string
	}
	args := map[string]any{"AddressSpace": req.AddressSpace, "Pool": req.Pool, "SubPool": req.SubPool, "Options": req.Options, "V6": req.V6}
	if err := e.call("IpamDriver.RequestPool", args, &out); err != nil {
		return ipamapi.AllocatedPool{}, err
	}
	p, err := netip.ParsePrefix(out.Pool)
	return ipamapi.AllocatedPool{PoolID: out.PoolID, Pool: p, Meta: out.Data}, err
}

// ReleasePool releases a pool.
func (e *engine) ReleasePool(poolID string) error {
	return e.call("IpamDriver.ReleasePool", map[string]string{"PoolID": poolID}, &struct{}{})
}

// RequestAddress requests an address.
func (e *engine) RequestAddress(poolID string, want net.IP, options map[string]string) (*net.IPNet, map[string]string, error) {
	args := map[string]any{"PoolID": poolID, "Address": "", "Options": options}
	if want != nil {
		args["Address"] = want.String()
	}
	var out struct {
		Address string
		Data    map[string]string
	}
	if err := e.call("IpamDriver.RequestAddress", args, &out); err != nil {
		return nil, nil, err
	}
	if out.Address == "" {
		return nil, nil, ipamapi.ErrNoIPReturned
	}
	a, n, err := net.ParseCIDR(out.Address)
	if err != nil {
		return nil, nil, err
	}
	n.IP = a
	return n, out.Data, nil
}

// ReleaseAddress releases an address.
func (e *engine) ReleaseAddress(poolID string, held net.IP) error {
	args := map[string]string{"PoolID": poolID, "Address": ""}
	if held != nil {
		args["Address"] = held.String()
	}
	return e.call("IpamDriver.ReleaseAddress", args, &struct{}{})
}

// IsBuiltIn is false.
func (e *engine) IsBuiltIn() bool { return false }

// pool requests a pool of the local space that must be given.
func (e *engine) pool(g Gomega, prefix string) string {
	p, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: prefix})
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return p.PoolID
}

// address requests an address that must be given.
func (e *engine) address(g Gomega, poolID, want string, pairs ...string) string {
	options := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		options[pairs[i]] = pairs[i+1]
	}
	a, _, err := e.RequestAddress(poolID, net.ParseIP(want), options)
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return a.String()
}
