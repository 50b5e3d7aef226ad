// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"fmt"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/kvdb/etcd/etcdtest"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
)

func TestContract(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	n := 0
	kvdbtest.Run(t, func(t *testing.T) kvdb.Store {
		n++
		s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: fmt.Sprintf("/cadastre/%d/", n)})
		g.Expect(err).NotTo(HaveOccurred())
		return s
	})
}
