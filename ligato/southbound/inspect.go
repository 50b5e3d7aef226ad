// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gogo/protobuf/proto"
	linux_interfaces "github.com/ligato/vpp-agent/api/models/linux/interfaces"
	kvs "github.com/ligato/vpp-agent/plugins/kvscheduler/api"
	ifdescriptor "github.com/ligato/vpp-agent/plugins/linux/ifplugin/descriptor"
	l3descriptor "github.com/ligato/vpp-agent/plugins/linux/l3plugin/descriptor"
)

// Inspect compares a wanted value with what Ligato reads from the kernel. It returns the
// difference, nil if there is none. Any goroutine may call it.
func (s *Sink) Inspect(_ context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.wanted[key]
	switch {
	case !ok:
		return fmt.Errorf("%s: the southbound has no such value", key)
	case it.pending != "":
		return fmt.Errorf("%s is not made: %s", key, it.pending)
	}
	found := map[string]proto.Message{}
	for _, descriptor := range []string{
		ifdescriptor.InterfaceDescriptorName,
		l3descriptor.RouteDescriptorName,
		l3descriptor.ARPDescriptorName,
	} {
		all, err := s.scheduler.DumpValuesByDescriptor(descriptor, kvs.SBView)
		if err != nil {
			return fmt.Errorf("read what %s has made: %w", descriptor, err)
		}
		for _, x := range all {
			found[x.Key] = x.Value
		}
	}
	for _, k := range slices.Sorted(maps.Keys(it.values)) { // interfaces before what is on them
		if err := differs(it.values[k], found[k]); err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	return nil
}

// differs returns the difference between a value and the one that is there.
func differs(want, have proto.Message) error {
	if have == nil {
		return errors.New("is missing in the kernel")
	}
	w, ok := want.(*linux_interfaces.Interface)
	if !ok {
		return nil
	}
	h := have.(*linux_interfaces.Interface)
	if !h.Enabled {
		return fmt.Errorf("link %s is down", h.HostIfName)
	}
	for _, a := range w.IpAddresses {
		if !slices.Contains(h.IpAddresses, a) {
			return fmt.Errorf("address %s is missing on link %s", a, h.HostIfName)
		}
	}
	return nil
}
