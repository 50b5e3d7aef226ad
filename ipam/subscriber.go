// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"reflect"
)

// subscriber applies the NetResourceSets of a K8sEventRegister.
type subscriber struct{ m *IPAM }

var _ NetResourceSetSubscriber = subscriber{}

// Arguments of K8sEventRegister, as the published package passes them.
const (
	apiGroup = "cadastre.dev/v1alpha1::NetResourceSet"
	scope    = "NetResourceSet"
	created  = "create"
	updated  = "update"
	deleted  = "delete"
)

// OnAddNetResourceSet applies that of this node.
func (s subscriber) OnAddNetResourceSet(set *NetResourceSet) error {
	return s.apply(created, nil, set)
}

// OnUpdateNetResourceSet applies that of this node.
func (s subscriber) OnUpdateNetResourceSet(old, set *NetResourceSet) error {
	return s.apply(updated, old, set)
}

// OnDeleteNetResourceSet takes back the resources of this node: they may be another node's
// soon. Leases stay, and nothing is allocated until there is another NetResourceSet.
func (s subscriber) OnDeleteNetResourceSet(set *NetResourceSet) error {
	if set == nil || set.Name != s.m.deps.Name {
		return nil
	}
	s.m.log.Warn("the NetResourceSet of this node was deleted: the node allocates nothing", "name", set.Name)
	s.m.deps.Events.K8sEventReceived(apiGroup, scope, deleted, true, false)
	err := s.m.Update(context.Background(), &NetResourceSet{Name: set.Name})
	s.m.deps.Events.K8sEventProcessed(scope, deleted, err == nil)
	return err
}

// apply applies a version of this node's NetResourceSet. An event without one is
// counted as not valid. Events of other nodes are not counted.
func (s subscriber) apply(action string, old, set *NetResourceSet) error {
	if set == nil {
		s.m.deps.Events.K8sEventReceived(apiGroup, scope, action, false, false)
		return nil
	}
	if set.Name != s.m.deps.Name {
		return nil
	}
	s.m.deps.Events.K8sEventReceived(apiGroup, scope, action, true, old != nil && reflect.DeepEqual(old, set))
	err := s.m.Update(context.Background(), set)
	s.m.deps.Events.K8sEventProcessed(scope, action, err == nil)
	return err
}
