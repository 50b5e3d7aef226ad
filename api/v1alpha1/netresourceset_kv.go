// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
)

// ToKV is the set in the words of package kv: what its node's agent needs.
func (n *NetResourceSet) ToKV() *kv.NetResourceSet {
	spec, status := n.Spec.IPAM, n.Status.IPAM
	m := &kv.NetResourceSet{
		Name: n.Name, Pool: spec.Pool.toKV(), Used: status.Used.toKV(), OperatorError: status.OperatorStatus.Error,
		Marks: &kv.NetResourceMarks{
			MinAllocate: int32(
				spec.MinAllocate,
			),
			MaxAllocate: int32(spec.MaxAllocate),
			PreAllocate: int32(spec.PreAllocate),
			MaxAboveWatermark: int32(
				spec.MaxAboveWatermark,
			),
			AllocationThreshold: int32(spec.PodCIDRAllocationThreshold),
			ReleaseThreshold:    int32(spec.PodCIDRReleaseThreshold),
		},
	}
	for _, cidr := range spec.PodCIDRs {
		m.PodCidrs = append(m.PodCidrs, string(cidr))
	}
	for key, state := range status.ReleaseIPs {
		put(&m.Releases, key, string(state))
	}
	for key, entry := range status.PodCIDRs {
		put(&m.CidrStates, key, string(entry.Status))
	}
	for key, i := range n.Status.Interfaces {
		put(&m.Interfaces, key, i.toKV())
	}
	m.InstanceId = n.Spec.InstanceID
	return m
}

func (i NetResourceInterface) toKV() *kv.NetResourceInterface {
	m := &kv.NetResourceInterface{Mac: i.MAC, Device: uint32(i.Device)}
	for _, r := range i.Ranges {
		m.Ranges = append(m.Ranges, &kv.SubnetRange{Cidr: string(r.CIDR), Gateway: r.Gateway})
	}
	for _, cidr := range i.VPCCIDRs {
		m.VpcCidrs = append(m.VpcCidrs, string(cidr))
	}
	return m
}

// NetResourceSetFrom returns the object that an agent writes: a new one if there is none
// (old is nil), and otherwise old with the agent's part of its status.
func NetResourceSetFrom(m *kv.NetResourceSet, old *NetResourceSet) *NetResourceSet {
	if old == nil {
		n := &NetResourceSet{Spec: NetResourceSetSpec{InstanceID: m.InstanceId, IPAM: IPAMSpec{
			Pool: fromKV(
				m.Pool,
			),
			MinAllocate:       int(m.Marks.GetMinAllocate()),
			MaxAllocate:       int(m.Marks.GetMaxAllocate()),
			PreAllocate:       int(m.Marks.GetPreAllocate()),
			MaxAboveWatermark: int(m.Marks.GetMaxAboveWatermark()),
		}}}
		n.Name = m.Name
		for _, cidr := range m.PodCidrs {
			n.Spec.IPAM.PodCIDRs = append(n.Spec.IPAM.PodCIDRs, PodCIDR(cidr))
		}
		return n
	}
	n := old.DeepCopy()
	status := &n.Status.IPAM
	status.Used, status.ReleaseIPs, status.PodCIDRs = fromKV(m.Used), nil, nil
	for key, state := range m.Releases {
		put(&status.ReleaseIPs, key, handshake.State(state))
	}
	for key, state := range m.CidrStates {
		put(&status.PodCIDRs, key, PodCIDRMapEntry{Status: PodCIDRStatus(state)})
	}
	return n
}

func (a AllocationMap) toKV() (m map[string]*kv.NetResource) {
	for key, ip := range a {
		put(&m, key, &kv.NetResource{Owner: ip.Owner, Resource: ip.Resource, Subnet: ip.SubnetID})
	}
	return m
}

func fromKV(m map[string]*kv.NetResource) (a AllocationMap) {
	for key, r := range m {
		put(&a, key, AllocationIP{Owner: r.GetOwner(), Resource: r.GetResource(), SubnetID: r.GetSubnet()})
	}
	return a
}

// put makes the map where there is none: one without entries stays nil.
func put[M ~map[string]V, V any](m *M, key string, v V) {
	if *m == nil {
		*m = M{}
	}
	(*m)[key] = v
}
