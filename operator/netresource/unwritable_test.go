// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// TestAnObjectThatCannotBeWrittenDelaysNoOtherNode: the API server refuses or delays every
// write of some NetResourceSets when a leader begins.
func TestAnObjectThatCannotBeWrittenDelaysNoOtherNode(t *testing.T) {
	for what, refuse := range map[string]func(name string) error{
		"a webhook refuses": func(name string) error {
			return apierrors.NewForbidden(v1alpha1.Resource(v1alpha1.NetResourceSets).GroupResource(), name, errors.New("policy"))
		},
		"the object is too large": func(string) error { return apierrors.NewRequestEntityTooLargeError("limit is 3145728") },
		"a webhook does not answer": func(string) error {
			time.Sleep(30 * time.Second)
			return apierrors.NewTimeoutError("the webhook did not answer", 0)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, api := NewWithT(t), memapi.New()
				stuck := map[string]bool{"n3": true, "n5": true, "n7": true}
				var refuses atomic.Bool
				api.Fault = func(call, name string) error {
					if refuses.Load() && stuck[name] && call != "get" {
						return refuse(name)
					}
					return nil
				}
				m := poolManager(t, api, "10.0.0.0/24", nil)
				for i := range 10 {
					_, err := api.Create(named(fmt.Sprint("n", i)))
					g.Expect(err).NotTo(HaveOccurred())
				}
				refuses.Store(true)
				follow(api, m)
				started := make(chan error, 1)
				go func() { started <- m.Start(t.Context()) }()
				rest(2 * time.Second)
				g.Expect(started).To(Receive(BeNil()), "no object holds up the start")
				for name, size := range poolSizes(api) {
					g.Expect(size > 0).To(Equal(!stuck[name]), name)
				}
				rest(time.Hour)
				refuses.Store(false)
				rest(2 * time.Minute)
				for name, size := range poolSizes(api) {
					g.Expect(size).To(BeNumerically(">", 0), name)
				}
				g.Expect(m.Close()).To(Succeed())
			})
		})
	}
}

// follow passes the NetResourceSets that there are, and every change, to a manager.
func follow(api *memapi.API, m *netresource.NetResourceSetManager) {
	api.Changed = func(nrs *v1alpha1.NetResourceSet) { _ = m.Update(nrs) }
	all, _ := api.Lister().List(everything())
	for _, nrs := range all {
		_ = m.Create(nrs)
	}
}

// TestNodesOfAddressPoolsWaitForNoBudget: blocks of AddressPools cost no request to a cloud.
func TestNodesOfAddressPoolsWaitForNoBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := NewWithT(t), memapi.New()
		m := poolManager(t, api, "10.0.0.0/16", nil)
		follow(api, m)
		g.Expect(m.Start(t.Context())).To(Succeed())
		const nodes = 1000
		for i := range nodes {
			_, err := api.Create(named(nodeName(i)))
			g.Expect(err).NotTo(HaveOccurred())
		}
		rest(time.Second)
		g.Expect(poolSizes(api)).To(HaveLen(nodes))
		for name, size := range poolSizes(api) {
			g.Expect(size).To(Equal(1), name)
		}
		g.Expect(m.Close()).To(Succeed())
	})
}

// poolSizes are the numbers of blocks of all nodes.
func poolSizes(api *memapi.API) map[string]int {
	sizes := map[string]int{}
	all, _ := api.Lister().List(everything())
	for _, nrs := range all {
		sizes[nrs.Name] = len(nrs.Spec.IPAM.Pool)
	}
	return sizes
}
