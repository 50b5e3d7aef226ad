// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gogo/protobuf/proto"
	linux_interfaces "github.com/ligato/vpp-agent/api/models/linux/interfaces"
	linux_l3 "github.com/ligato/vpp-agent/api/models/linux/l3"
	kvs "github.com/ligato/vpp-agent/plugins/kvscheduler/api"
	l3descriptor "github.com/ligato/vpp-agent/plugins/linux/l3plugin/descriptor"

	"github.com/cadastre/cadastre/controller"
)

const routeDescriptor = l3descriptor.RouteDescriptorName

// isInterface reports whether a key of Ligato is that of an interface.
func isInterface(key string) bool { return linux_interfaces.ModelInterface.IsKeyValid(key) }

// isNodeRoute reports whether a value of Ligato is a route to another node that this
// package has made: it has our metric, and leads through a link of the node.
func (s *Sink) isNodeRoute(m proto.Message) bool {
	r, ok := m.(*linux_l3.Route)
	if !ok || r.GetMetric() != metricNodes {
		return false
	}
	_, known := s.links.known[linux_interfaces.InterfaceKey(r.GetOutgoingInterface())]
	return known
}

// mayWait reports whether a value may be pending: the node's own links, and routes through
// them, which Ligato makes when it has seen the link.
func mayWait(m proto.Message) bool {
	switch m := m.(type) {
	case *linux_interfaces.Interface:
		return m.GetType() == linux_interfaces.Interface_EXISTING
	case *linux_l3.Route:
		return m.GetMetric() == metricNodes
	}
	return false
}

// verify returns the values that Ligato has not made although no transaction failed: a
// value whose dependency is missing is pending, which Ligato does not report.
func (s *Sink) verify(asked values) error {
	found := controller.ValueErrors{}
	for k, v := range asked {
		if v == nil {
			continue
		}
		status := s.scheduler.GetValueStatus(k)
		for _, x := range append([]*kvs.ValueStatus{status.GetValue()}, status.GetDerivedValues()...) {
			switch x.GetState() {
			case kvs.ValueState_CONFIGURED, kvs.ValueState_OBTAINED, kvs.ValueState_DISCOVERED:
				continue
			case kvs.ValueState_PENDING:
				if mayWait(v) {
					continue
				}
				s.blame(
					found,
					k,
					fmt.Errorf("%s is pending: it needs %s", x.GetKey(), strings.Join(x.GetDetails(), ", ")),
				)
			default:
				s.blame(found, k, fmt.Errorf("%s is %s: %s", x.GetKey(), x.GetState(), x.GetError()))
			}
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// blame adds the error of a key of Ligato to that of our value, or keeps it under its own
// key if it belongs to none of ours.
func (s *Sink) blame(found controller.ValueErrors, ligatoKey string, err error) {
	owner := ligatoKey
	for key, it := range s.wanted {
		if it.owns(ligatoKey) {
			owner = key
			break
		}
	}
	found[owner] = errors.Join(found[owner], err)
}

// owns reports whether a key of Ligato is of one of the item's values, or derived from one.
func (it *item) owns(ligatoKey string) bool {
	if _, ok := it.values[ligatoKey]; ok {
		return true
	}
	for _, v := range it.values {
		if i, ok := v.(*linux_interfaces.Interface); ok && isDerivedOf(ligatoKey, i.GetName()) {
			return true
		}
	}
	return false
}

func isDerivedOf(key, iface string) bool {
	if name, _, ok := linux_interfaces.ParseInterfaceStateKey(key); ok {
		return name == iface
	}
	name, _, _, _, ok := linux_interfaces.ParseInterfaceAddressKey(key)
	return ok && name == iface
}

// joined returns the errors of values that could not be translated, and those of a commit.
func joined(failed controller.ValueErrors, err error) error {
	if len(failed) == 0 {
		return err
	}
	if err == nil {
		return failed
	}
	more := controller.ValueErrors{}
	if !errors.As(err, &more) {
		return errors.Join(failed, err)
	}
	for k, e := range failed {
		more[k] = e
	}
	return more
}
