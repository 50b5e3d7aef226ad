// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
)

// A cordoned node asks for no more addresses, returns those that its pods leave, and goes on
// when it is uncordoned.
func TestACordonedNodeDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newRig(t, conf, memcloud.Config{})
		cordoned := false
		r.cordoned = func() (bool, error) { return cordoned, nil }
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 6)
		r.pass(time.Minute)
		cordoned = true
		r.pass(time.Minute)
		r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty(), "it has what the targets want")
		r.g.Expect(r.add(6, 10)).To(Equal(2), "the free ones")
		r.pass(3 * time.Minute)
		r.g.Expect(r.total()).To(Equal(8))
		r.g.Expect(r.process.plugin.Shortage()).To(ContainSubstring("unschedulable"))
		r.g.Expect(r.add(8, 10)).To(BeZero())
		r.remove(0, 6)
		r.pass(3 * time.Minute)
		r.g.Expect(r.total()).To(Equal(4), "2 pods, and 2 free addresses")
		r.addAll(0, 2)
		cordoned = false
		r.addAll(10, 18)
		r.g.Expect(r.process.plugin.Shortage()).To(BeEmpty())
		r.agree()
	})
}

// The programs that uncordon a new node wait until its agent serves, so it gets its first
// addresses. A store that does not answer cordons no node.
func TestANewCordonedNodeGetsItsFirstAddresses(t *testing.T) {
	for _, err := range []error{nil, errors.New("the store is away")} {
		synctest.Test(t, func(t *testing.T) {
			conf := defaults()
			conf.WarmIPs = 2
			r := newRig(t, conf, memcloud.Config{})
			r.cordoned = func() (bool, error) { return true, err }
			r.start()
			defer func() { r.end() }()
			r.addAll(0, 2)
			r.pass(3 * time.Minute)
			if err == nil {
				r.g.Expect(r.total()).To(Equal(2))
			} else {
				r.g.Expect(r.total()).To(Equal(4))
			}
		})
	}
}
