// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// namesOf returns the names of the objects of an output, as other verbs take them: release
// an address, node release a node, repair a signature, docker pools release an ID.
func namesOf(v any) ([]string, error) {
	if names, ok := namesOfObjects(v); ok {
		return names, nil
	}
	switch v := v.(type) {
	case localapi.Status:
		return []string{v.NodeName}, nil
	case localapi.DockerPoolKeep:
		return []string{v.ID}, nil
	case localapi.DockerPoolReleased:
		return []string{v.ID}, nil
	case nodeReleased:
		return []string{v.Name}, nil
	case explain.Tree:
		return []string{v.Subject}, nil
	case versions:
		return []string{v.Client.Version}, nil
	case resyncReport:
		return []string{"resync"}, nil
	case map[string]any: // of a probe
		return slices.Sorted(maps.Keys(v)), nil
	case backupReport:
		return []string{v.File}, nil
	case restored:
		return []string{v.Database}, nil
	case rebuilt:
		return []string{v.Database}, nil
	case doctorReport:
		return []string{v.File}, nil
	case *topView:
		return v.names(), nil
	case uninstalled:
		return v.names(), nil
	}
	return nil, fmt.Errorf("the output has no names (%T): write -o json", v)
}

// namesOfObjects returns the names of an output that lists objects.
func namesOfObjects(v any) (names []string, ok bool) {
	switch v := v.(type) {
	case []localapi.Pool:
		return each(v, func(p localapi.Pool) string { return p.Name }), true
	case []localapi.Node:
		return each(v, func(n localapi.Node) string { return n.Name }), true
	case []localapi.Lease:
		return addressesOf(v), true
	case []localapi.DockerPool:
		return each(v, func(p localapi.DockerPool) string { return p.ID }), true
	case json.RawMessage:
		return []string{eventName(v)}, true
	case []json.RawMessage:
		return each(v, eventName), true
	case []nodePlan:
		return each(v, nodePlan.name), true
	case nodePlan:
		return []string{v.name()}, true
	case []repairResult:
		return each(v, func(r repairResult) string { return r.Finding.Signature }), true
	case localapi.CheckReport:
		return each(v.Findings, func(f localapi.Finding) string { return f.Signature }), true
	case localapi.ClusterCheck:
		return each(v.Findings, func(f localapi.ClusterFinding) string { return f.Signature }), true
	case localapi.ApplyResult:
		return unique(each(v.Moves, func(m localapi.Move) string { return m.Pool })), true
	case localapi.AcceptReport:
		return each(v.Uses, func(u localapi.Use) string { return u.IP.String() }), true
	case localapi.ReleaseReply:
		return addressesOf(v.Leases), true
	case localapi.ReclaimUndone:
		return addressesOf(v.Leases), true
	case localapi.Reclaims:
		return addressNames(v.Pending, func(r localapi.Reclaim) []netip.Addr { return r.IP }), true
	case localapi.ReclaimRun:
		return addressNames(v.Steps, func(s localapi.ReclaimStep) []netip.Addr { return s.IP }), true
	}
	return nil, false
}

// each returns the name of each object.
func each[T any](all []T, name func(T) string) []string {
	names := make([]string, len(all))
	for i, v := range all {
		names[i] = name(v)
	}
	return names
}

func addressesOf(leases []localapi.Lease) []string {
	return each(leases, func(l localapi.Lease) string { return l.IP })
}

func addressNames[T any](all []T, of func(T) []netip.Addr) (names []string) {
	for _, v := range all {
		names = append(names, each(of(v), netip.Addr.String)...)
	}
	return names
}

func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

func (n nodePlan) name() string { return fmt.Sprint(n.NodeID) }

// names returns the paths that uninstall removes.
func (u uninstalled) names() []string {
	return slices.DeleteFunc([]string{u.List, u.Plugin}, func(path string) bool { return path == "" })
}

// eventName returns the number of an event, as events --since takes it.
func eventName(raw json.RawMessage) string {
	var r struct{ SeqNum uint64 }
	if json.Unmarshal(raw, &r) != nil {
		return ""
	}
	return fmt.Sprint(r.SeqNum)
}
