// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam

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
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// contentType is the media type that the engine accepts.
const contentType = "application/vnd.docker.plugins.v1.2+json"

// maxBody is far above the size of any request.
const maxBody = 1 << 20

// Messages of the protocol, with its field names.
type (
	poolRequest struct {
		AddressSpace, Pool, SubPool string
		Options                     map[string]string
		V6                          bool
	}
	poolReply struct {
		PoolID, Pool string
		Data         map[string]string
	}
	poolRelease    struct{ PoolID string }
	addressRequest struct {
		PoolID, Address string
		Options         map[string]string
	}
	addressReply struct {
		Address string
		Data    map[string]string
	}
	addressRelease struct{ PoolID, Address string }
	failure        struct{ Err, Error string } // engines and libraries look for the one or the other
)

// Handler returns the handler of the remote protocol.
func (p *DockerIPAM) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /Plugin.Activate", func(w http.ResponseWriter, _ *http.Request) {
		_ = reply(w, map[string][]string{"Implements": {ipamapi.PluginEndpointType}})
	})
	// It does not wait for the driver: after an error the engine sends no MACs for as
	// long as it runs.
	mux.HandleFunc("POST /IpamDriver.GetCapabilities", func(w http.ResponseWriter, _ *http.Request) {
		_ = reply(w, ipamapi.Capability{RequiresMACAddress: true})
	})
	mux.HandleFunc("POST /IpamDriver.GetDefaultAddressSpaces", func(w http.ResponseWriter, r *http.Request) {
		p.with(w, r, func(d Driver) (any, error) {
			local, global, err := d.GetDefaultAddressSpaces()
			return map[string]string{"LocalDefaultAddressSpace": local, "GlobalDefaultAddressSpace": global}, err
		})
	})
	mux.HandleFunc("POST /IpamDriver.RequestPool", call(p, requestPool))
	mux.HandleFunc("POST /IpamDriver.ReleasePool", call(p, releasePool))
	mux.HandleFunc("POST /IpamDriver.RequestAddress", call(p, requestAddress))
	mux.HandleFunc("POST /IpamDriver.ReleaseAddress", call(p, releaseAddress))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Errorf("%s %s is not part of the IPAM protocol", r.Method, r.URL.Path))
	})
	return mux
}

// call decodes the arguments of a method. The engine sends a request again when a
// connection breaks, and then without a body: an empty body has no defaults.
func call[T any](p *DockerIPAM, do func(Driver, T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var args *T
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err == nil {
			err = decode(body, &args)
		}
		switch {
		case err == nil && !utf8.Valid(body):
			err = errors.New("it is not UTF-8, which the decoder would replace: two names would become one")
		case errors.Is(err, io.EOF):
			err = errors.New("it is empty: the engine sent the request again without its arguments")
		case err == nil && args == nil:
			err = errors.New("it is null: no arguments have defaults")
		}
		if err != nil {
			fail(w, http.StatusBadRequest, fmt.Errorf("body of %s: %w", r.URL.Path, err))
			return
		}
		p.with(w, r, func(driver Driver) (any, error) { return do(driver, *args) })
	}
}

// decode decodes one JSON document. Two in one body are of two requests: one of them would
// be lost.
func decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, more := d.Token(); more != io.EOF {
		return errors.New("text follows the JSON document: want one document")
	}
	return nil
}

// with calls do when the driver is ready, and sends the result.
func (p *DockerIPAM) with(w http.ResponseWriter, r *http.Request, do func(Driver) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), p.Patience)
	defer cancel()
	select {
	case <-p.ready:
	case <-ctx.Done():
		w.Header().Set("Retry-After", strconv.Itoa(int(p.Patience/time.Second)))
		fail(w, http.StatusServiceUnavailable, errNotStarted)
		return
	}
	v, err := do(p.driver)
	if err != nil {
		p.Log.Warn("Docker's request failed", "call", r.URL.Path, "error", err)
		fail(w, statusOf(err), err)
		return
	}
	choice, ok := v.(chosen)
	if ok {
		v = choice.answer
	}
	if err := reply(w, v); err != nil && ok {
		p.Log.Warn("Docker has not got the answer, and its choice is released",
			"call", r.URL.Path, "answer", v, "error", errors.Join(err, choice.undo()))
	}
}

// chosen is the answer to a request without a pool or address. If the engine does
// not get it, the engine cannot release the choice; undo does.
type chosen struct {
	answer any
	undo   func() error
}

func requestPool(d Driver, args poolRequest) (any, error) {
	got, err := d.RequestPool(ipamapi.PoolRequest(args))
	if err != nil {
		return nil, err
	}
	answer := poolReply{PoolID: got.PoolID, Pool: got.Pool.String(), Data: notNil(got.Meta)}
	if p, err := netip.ParsePrefix(args.Pool); err == nil && !p.Addr().IsUnspecified() {
		return answer, nil
	}
	return chosen{answer, func() error { return d.ReleasePool(got.PoolID) }}, nil
}

func releasePool(d Driver, args poolRelease) (any, error) {
	return struct{}{}, gone(d.ReleasePool(args.PoolID))
}

func requestAddress(d Driver, args addressRequest) (any, error) {
	ip, err := parseIP(args.Address)
	if err != nil {
		return nil, err
	}
	got, data, err := d.RequestAddress(args.PoolID, ip, args.Options)
	if err != nil {
		return nil, err
	}
	if got == nil {
		return nil, ipamapi.ErrNoIPReturned
	}
	answer := addressReply{Address: got.String(), Data: notNil(data)}
	if ip != nil || args.Options[ipamapi.EndpointName] != "" && args.Options[ipamapi.EndpointMAC] != "" {
		return answer, nil // the request can be repeated
	}
	return chosen{answer, func() error { return d.ReleaseAddress(args.PoolID, got.IP) }}, nil
}

func releaseAddress(d Driver, args addressRelease) (any, error) {
	ip, err := parseIP(args.Address)
	if err != nil {
		return nil, err
	}
	return struct{}{}, gone(d.ReleaseAddress(args.PoolID, ip))
}

// gone makes the release of a pool that is not there a success: the engine may
// have heard no answer to the one before.
func gone(err error) error {
	if errors.Is(err, ipamapi.ErrBadPool) || errors.Is(err, ipamapi.ErrPoolNotFound) {
		return nil
	}
	return err
}

func parseIP(text string) (net.IP, error) {
	if text == "" {
		return nil, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address: %w", text, ipamapi.ErrInvalidAddress)
	}
	return a.AsSlice(), nil
}

// notNil returns an empty map for nil, which JSON would write as null.
func notNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// reply sends an answer. It fails if the caller has hung up.
func reply(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if _, err := w.Write(body); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(failure{Err: err.Error(), Error: err.Error()})
}

// statusOf returns the status of an error's class.
func statusOf(err error) int {
	for _, x := range []struct {
		status int
		is     func(error) bool
	}{
		{http.StatusBadRequest, has[interface{ InvalidParameter() }]},
		{http.StatusForbidden, has[interface{ Forbidden() }]},
		{http.StatusNotFound, has[interface{ NotFound() }]},
		{http.StatusServiceUnavailable, has[interface{ Unavailable() }]},
	} {
		if x.is(err) {
			return x.status
		}
	}
	return http.StatusInternalServerError
}

// has reports whether an error of the chain has the marker T.
func has[T any](err error) bool {
	var marked T
	return errors.As(err, &marked)
}
