// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

// TestTheBeatNamesDockersSubnets: the operator compares the subnets of Docker's networks
// that agents publish. A part of the pod network is not one.
func TestTheBeatNamesDockersSubnets(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	m := newMember(t, "a", server.Endpoint())
	m.conf += "  witnesses: {engine: none}\n  docker: {enabled: true, fromPods: true, socket: " + filepath.Join(t.TempDir(), "d.sock") + "}\n"
	m.start()
	m.follows()
	ask := func(method, body string) {
		t.Helper()
		g.Eventually(func() string {
			rec := httptest.NewRecorder()
			m.a.docker.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/IpamDriver."+method, strings.NewReader(body)))
			return rec.Body.String()
		}, soon, 10*time.Millisecond).ShouldNot(ContainSubstring(`"Err`))
	}
	ask("RequestPool", `{"AddressSpace": "LocalDefault", "Pool": "10.250.5.0/24"}`)
	ask("RequestAddress", `{"PoolID": "LocalDefault/10.250.5.0/24", "Options": {"RequestAddressType": "com.docker.network.gateway"}}`)
	subnets := func() []string {
		x, found, err := m.a.store.Get(t.Context(), kv.BeatKey(m.a.claimers.IDs.ID()))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(BeTrue())
		beat := &kv.NodeBeat{}
		g.Expect(proto.Unmarshal(x.Value, beat)).To(Succeed())
		return beat.DockerSubnets
	}
	g.Eventually(subnets, soon, 10*time.Millisecond).Should(Equal([]string{"10.250.5.0/24"}))
	ask("ReleaseAddress", `{"PoolID": "LocalDefault/10.250.5.0/24", "Address": "10.250.5.1"}`)
	ask("ReleasePool", `{"PoolID": "LocalDefault/10.250.5.0/24"}`)
	g.Eventually(subnets, soon, 10*time.Millisecond).Should(BeEmpty())
}
