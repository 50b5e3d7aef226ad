// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/faultproxy"
	"github.com/cadastre/cadastre/operator/nodeipam"
	"github.com/cadastre/cadastre/providers/openstack"
	"github.com/cadastre/cadastre/providers/openstack/neutrontest"
)

// TestAliases runs against one real Neutron, each case in a network of its own.
func TestAliases(t *testing.T) {
	server := neutrontest.New(t, neutrontest.Options{})
	for name, run := range map[string]func(*site){
		"a prefix is routed to one machine":      oneMachine,
		"machines are found by ID and by name":   found,
		"pairs that route nothing are left out":  noRoutes,
		"writers at once never succeed for both": writersAtOnce,
		"old readings hide no other machine":     oldReadings,
	} {
		t.Run(name, func(t *testing.T) { run(newSite(t, server, "10.0.0.0/24")) })
	}
}

func node(name string) nodeipam.Machine {
	return nodeipam.Machine{Node: name, ProviderID: "openstack:///" + name}
}

func oneMachine(s *site) {
	g, ctx := s.g, s.t.Context()
	s.boot("a")
	s.boot("b")
	p := netip.MustParsePrefix("10.244.1.0/24")
	g.Expect(s.cloud.Aliases(ctx, node("a"))).To(BeEmpty())
	g.Expect(s.cloud.AddAlias(ctx, node("a"), p)).To(Succeed())
	g.Expect(s.cloud.AddAlias(ctx, node("a"), p)).To(Succeed(), "repeated")
	g.Expect(s.cloud.AddAlias(ctx, node("a"), netip.MustParsePrefix("fd00:1::/64"))).To(Succeed())
	g.Expect(s.cloud.Aliases(ctx, node("a"))).To(ConsistOf(p, netip.MustParsePrefix("fd00:1::/64")))
	for _, part := range []string{"10.244.1.0/24", "10.244.0.0/16", "10.244.1.128/25"} {
		g.Expect(s.cloud.AddAlias(ctx, node("b"), netip.MustParsePrefix(part))).To(MatchError(nodeipam.ErrRouted), part)
	}
	g.Expect(s.cloud.AddAlias(ctx, node("b"), netip.MustParsePrefix("10.0.0.0/24"))).NotTo(Succeed(), "addresses of machines")
	g.Expect(s.cloud.Aliases(ctx, node("b"))).To(BeEmpty())
}

func found(s *site) {
	g, ctx := s.g, s.t.Context()
	id := s.boot("uuid-1")
	s.boot("uuid-2")
	name := "node-1"
	g.Expect(ports.Update(ctx, s.Client(), id, ports.UpdateOpts{Name: &name}).Err).To(Succeed())
	p := netip.MustParsePrefix("10.244.1.0/24")
	g.Expect(s.cloud.AddAlias(ctx, nodeipam.Machine{Node: "node-1"}, p)).To(Succeed())
	for _, m := range []nodeipam.Machine{
		{Node: "node-1"}, node("uuid-1"), {Node: "x", ProviderID: "openstack://region/uuid-1"},
	} {
		g.Expect(s.cloud.Aliases(ctx, m)).To(ConsistOf(p), "%+v", m)
	}
	for _, m := range []nodeipam.Machine{
		{Node: "node-2"}, node("uuid-3"), {Node: "node-1", ProviderID: "aws:///uuid-1"}, {Node: "node-1", ProviderID: "openstack:///"},
	} {
		_, err := s.cloud.Aliases(ctx, m)
		g.Expect(err).To(MatchError(nodeipam.ErrNoMachine), "%+v", m)
		g.Expect(s.cloud.AddAlias(ctx, m, p)).To(MatchError(nodeipam.ErrNoMachine), "%+v", m)
	}
}

func noRoutes(s *site) {
	port := s.boot("a")
	all := []ports.AddressPair{
		{IPAddress: "0.0.0.0/0"}, {IPAddress: "10.0.0.9"}, {IPAddress: "10.9.0.0/24", MACAddress: "00:00:5e:00:01:01"}, {IPAddress: "10.244.3.7/24"},
	}
	s.g.Expect(ports.Update(s.t.Context(), s.Client(), port, ports.UpdateOpts{AllowedAddressPairs: &all}).Err).To(Succeed())
	s.g.Expect(s.cloud.Aliases(s.t.Context(), node("a"))).To(ConsistOf(netip.MustParsePrefix("10.244.3.0/24")))
}

// writersAtOnce adds one prefix to all machines at once, again and again. A writer that has
// succeeded keeps it, so at most one machine has it in the end, and every other one was told.
func writersAtOnce(s *site) {
	const writers = 4
	for n := range writers {
		s.boot(fmt.Sprint("n", n))
	}
	for round := range 6 {
		p := netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", round))
		var wait sync.WaitGroup
		errs := make([]error, writers)
		for n := range writers {
			wait.Go(func() {
				errs[n] = s.open(func(*openstack.Config) {}).AddAlias(s.t.Context(), node(fmt.Sprint("n", n)), p)
			})
		}
		wait.Wait()
		succeeded := 0
		for n, err := range errs {
			have, read := s.cloud.Aliases(s.t.Context(), node(fmt.Sprint("n", n)))
			s.g.Expect(read).NotTo(HaveOccurred())
			s.g.Expect(slices.Contains(have, p)).To(Equal(err == nil), "writer %d: %v", n, err)
			if err == nil {
				succeeded++
			} else {
				s.g.Expect(errors.Is(err, nodeipam.ErrRouted)).To(BeTrue(), "writer %d: %v", n, err)
			}
		}
		s.g.Expect(succeeded).To(BeNumerically("<=", 1), "round %d", round)
	}
}

// oldReadings adds a prefix that another machine has got a moment ago, which the cloud's
// readings do not show yet.
func oldReadings(s *site) {
	g, ctx := s.g, s.t.Context()
	s.boot("a")
	other := s.boot("b")
	var begun atomic.Bool
	written, after := false, 0 // readings; the proxy calls plan and Random one at a time
	proxy, url, err := faultproxy.Start(faultproxy.Config{
		Target:  s.URL(),
		Dialect: faultproxy.OpenStack(),
		Stale:   time.Hour,
		Random: func() float64 { // the third reading after the write of the alias is new
			if after >= 3 {
				return 0
			}
			return 1
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	proxy.SetPlan(func(r faultproxy.Request) faultproxy.Outcome {
		if !r.Read {
			written = begun.Load()
		} else if written {
			after++
		}
		return faultproxy.Pass
	})
	defer proxy.Close()
	c := s.open(func(c *openstack.Config) { c.Endpoint = url })
	_, err = c.Read(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/v2.0/ports/"+other+"/tags/x", http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	answer, err := http.DefaultClient.Do(r) // from now on the proxy shows what Read has got
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Body.Close()).To(Succeed())
	p := netip.MustParsePrefix("10.244.2.0/24")
	s.pairTo(other, p.String())
	begun.Store(true)
	g.Expect(c.AddAlias(ctx, node("a"), p)).To(MatchError(nodeipam.ErrRouted))
	g.Expect(s.cloud.Aliases(ctx, node("a"))).To(BeEmpty())
	g.Expect(s.cloud.Aliases(ctx, node("b"))).To(ConsistOf(p))
}

// Self reads the config drive, then the metadata service.
func TestSelf(t *testing.T) {
	g := NewWithT(t)
	answer := `{"uuid": "from-the-service", "name": "x"}`
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer service.Close()
	drive := t.TempDir()
	c, err := openstack.New(t.Context(), openstack.Config{Endpoint: "http://127.0.0.1:1", MetadataURL: service.URL, ConfigDrive: drive})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(c.Self(t.Context())).To(Equal("from-the-service"), "the drive is empty")
	folder := filepath.Join(drive, "openstack", "latest")
	g.Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(folder, "meta_data.json"), []byte(`{"uuid": "from-the-drive"}`), 0o600)).To(Succeed())
	g.Expect(c.Self(t.Context())).To(Equal("from-the-drive"))
	g.Expect(os.RemoveAll(folder)).To(Succeed())
	for _, bad := range []string{"", "{}", "<html>"} {
		answer = bad
		_, err := c.Self(t.Context())
		g.Expect(err).To(HaveOccurred(), "%q", bad)
	}
}
