// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// want holds the request of one value.
type want struct {
	key     string
	message proto.Message // nil: remove the value
	dst     netip.Prefix  // valid for all valid keys of routes
	gateway netip.Addr    // zero: unreachable
	invalid error         // why it can never be applied
}

// isRoute reports whether the value is a route of the kernel.
func (w want) isRoute() bool { return w.dst.IsValid() && w.invalid == nil }

// readAll reads the values of a transaction; of several for a key, the last.
func readAll(values []controller.Value) []want {
	var wants []want
	at := map[string]int{}
	for _, v := range values {
		i, again := at[v.Key]
		if !again {
			i, at[v.Key] = len(wants), len(wants)
			wants = append(wants, want{})
		}
		wants[i] = read(v)
	}
	return wants
}

func read(v controller.Value) want {
	w := want{key: v.Key, message: v.Message}
	text, isRoute := strings.CutPrefix(v.Key, kv.SinkRoutePrefix)
	var err error
	if isRoute {
		w.dst, err = destination(text)
	}
	if v.Message == nil {
		return w // a removal of an impossible value does nothing
	}
	if err == nil {
		err = w.check(text)
	}
	if err != nil {
		w.invalid = fmt.Errorf("invalid value %q: %w", fmt.Sprint(v.Message), err)
	}
	return w
}

// check checks the message; text is the destination in the key of a route.
func (w *want) check(text string) error {
	kind := kv.SinkMessage(w.key)
	if kind == nil {
		return errors.New("the southbound has no such key")
	}
	if have, needs := w.message.ProtoReflect().Descriptor().FullName(), kind.ProtoReflect().Descriptor().FullName(); have != needs {
		return fmt.Errorf("it is a %s, not a %s", have, needs)
	}
	route, isRoute := w.message.(*kv.NodeRoute)
	if !isRoute {
		return nil
	}
	if route.GetDst() != text {
		return fmt.Errorf("its destination %q is not that of its key", route.GetDst())
	}
	if route.GetGateway() == "" {
		return nil
	}
	var err error
	w.gateway, err = gateway(route.GetGateway(), w.dst)
	return err
}

// destination parses a prefix in canonical form, so that no two keys have the same
// destination.
func destination(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("destination: %w", err)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("destination %s is an IPv4 one within IPv6", text)
	case p.Masked().String() != text:
		return netip.Prefix{}, fmt.Errorf("destination %s is not written %s", text, p.Masked())
	case p.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("destination %s is the default route, not a subnet", text)
	case p.Addr().IsMulticast():
		return netip.Prefix{}, fmt.Errorf("destination %s is multicast", text)
	}
	return p, nil
}

// gateway parses the gateway of a route to dst.
func gateway(text string, dst netip.Prefix) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("gateway: %w", err)
	case a.Is4() != dst.Addr().Is4() || a.Is4In6():
		return netip.Addr{}, fmt.Errorf("gateway %s is not of the family of destination %s", a, dst)
	case a.Zone() != "" || a.Is6() && a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("gateway %s is good on one interface only", a)
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
		return netip.Addr{}, fmt.Errorf("gateway %s is not an address of another node", a)
	}
	return a, nil
}
