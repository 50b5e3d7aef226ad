// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Agree compares the cloud, the NetResourceSets and the ledgers of the nodes.
func (l *Lab) Agree() error {
	truth, err := l.config.Truth(l.t.Context())
	if err != nil {
		return err
	}
	if len(truth.Orphans) > 0 {
		err = fmt.Errorf("the cloud has interfaces that no machine has: %v", truth.Orphans)
	}
	for _, n := range l.nodes {
		err = errors.Join(err, n.agree(truth))
	}
	return err
}

func (n *Node) agree(truth Truth) error {
	var status localapi.Status
	if _, err := n.Read(n.l.t.Context(), &status, "status"); err != nil {
		return err
	}
	leases, _, err := n.Leases(n.l.t.Context())
	if err != nil {
		return err
	}
	cloud, ledger := map[string]string{}, map[string]string{}
	for _, p := range truth.Ports {
		if p.Machine != n.Machine {
			continue
		}
		for _, b := range p.Blocks {
			cloud[b.String()] = p.ID
		}
	}
	for _, b := range status.Blocks {
		if b.Pool == "default" {
			ledger[b.Block] = cloud[b.Block] // the ledger knows no interface
		}
	}
	err = differ(n.Node+": cloud", cloud, "ledger", ledger)
	err = errors.Join(err, n.agreeOnPods(leases))
	if status.PodBlocks != "netresource" {
		return err
	}
	return errors.Join(err, n.agreeOnSet(cloud, leases))
}

// agreeOnPods compares the leases with the pods.
func (n *Node) agreeOnPods(leases []localapi.Lease) error {
	want, have := map[string]string{}, map[string]string{}
	for a, pod := range n.l.Judge.Held(n.Machine) {
		want[a.String()] = pod
	}
	for _, lease := range leases {
		if lease.Purpose == "pod" && lease.State == "held" {
			have[lease.IP] = lease.PodName
		}
	}
	return differ(n.Node+": pods", want, "leases", have)
}

// agreeOnSet compares the node's NetResourceSet with the cloud and the leases.
func (n *Node) agreeOnSet(cloud map[string]string, leases []localapi.Lease) error {
	resource := v1alpha1.Resource(v1alpha1.NetResourceSets)
	object, err := n.l.Objects.Resource(resource).Get(n.l.t.Context(), n.Node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	set := &v1alpha1.NetResourceSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set); err != nil {
		return err
	}
	pool, used, held := map[string]string{}, map[string]string{}, map[string]string{}
	for key, a := range set.Spec.IPAM.Pool {
		if !a.IsPrimary {
			pool[prefixOf(key)] = a.Resource
		}
	}
	for key := range set.Status.IPAM.Used {
		used[key] = ""
	}
	for _, lease := range leases {
		if lease.Purpose == "pod" && lease.State != "pending" {
			held[lease.IP] = ""
		}
	}
	return errors.Join(
		differ(n.Node+": cloud", cloud, "spec.ipam.pool", pool),
		differ(n.Node+": leases", held, "status.ipam.used", used),
	)
}

// prefixOf returns an address as a prefix of its full length.
func prefixOf(key string) string {
	if a, err := netip.ParseAddr(key); err == nil {
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	return key
}

// differ returns an error that names what only one of two maps has.
func differ(left string, a map[string]string, right string, b map[string]string) error {
	if maps.Equal(a, b) {
		return nil
	}
	only := func(x, y map[string]string) string {
		var all []string
		for k, v := range x {
			if w, ok := y[k]; !ok || v != w {
				all = append(all, k+"="+v)
			}
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	return fmt.Errorf(
		"%s and %s differ: only the first has [%s], only the second [%s]",
		left,
		right,
		only(a, b),
		only(b, a),
	)
}
