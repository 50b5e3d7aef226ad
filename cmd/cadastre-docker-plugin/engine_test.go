// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/engines/dockertest"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/witness"
)

// The plugin loses its data while the engine has networks and containers.
func TestOwnLedgerIsLost(t *testing.T) {
	e := dockertest.Start(t)
	s := newStand(t)
	s.engine = e.Endpoint()
	s.Expect(os.Symlink(s.path("docker.sock"), filepath.Join(e.Plugins(), "cadastre.sock"))).To(Succeed())
	stop := s.start()
	e.Docker("network", "create", "--ipam-driver", "cadastre", "--subnet", "10.50.0.0/29", "plain")
	e.Docker("network", "create", "--ipam-driver", "cadastre", "--subnet", "10.51.0.0/29",
		"--gateway", "10.51.0.3", "--aux-address", "router=10.51.0.1", "full")
	e.Docker("run", "-d", "--name", "web", "--network", "full", dockertest.Image, "wait")
	e.Docker("run", "-d", "--name", "db", "--network", "plain", dockertest.Image, "wait")
	e.Docker("run", "-d", "--name", "fixed", "--network", "full", "--ip", "10.51.0.4", dockertest.Image, "wait")
	e.Docker("stop", "-t", "0", "fixed")
	stop()
	s.Expect(os.Remove(s.path("data/cadastre.db"))).To(Succeed())
	s.start()
	for i := range 2 {
		e.Docker("run", "-d", "--name", fmt.Sprint("c", i), "--network", "full", dockertest.Image, "wait")
	}
	out, err := e.Try("run", "-d", "--name", "more", "--network", "full", dockertest.Image, "wait")
	s.Expect(err).To(HaveOccurred(), out)
	s.Expect(out).To(ContainSubstring("no available addresses"))
	seen := map[string]string{"10.51.0.3/29": "the gateway", "10.51.0.1/29": "the auxiliary address", "10.51.0.4/29": "fixed"}
	for _, name := range []string{"web", "c0", "c1"} {
		addr := e.Docker("exec", name, "/inside")
		s.Expect(seen).NotTo(HaveKey(addr), name)
		seen[addr] = name
	}
	e.Docker("start", "fixed")
	s.Expect(e.Docker("exec", "fixed", "/inside")).To(Equal("10.51.0.4/29"))
	e.Docker("run", "-d", "--name", "late", "--network", "plain", dockertest.Image, "wait")
	s.Expect(e.Docker("exec", "late", "/inside")).To(Equal("10.50.0.3/29"), "after the gateway and db")
}

// reader is an engine whose networks a test sets.
type reader struct {
	view witness.EngineView
	err  error
}

func (r *reader) Read(context.Context) (*witness.EngineView, error) {
	view := r.view
	return &view, r.err
}

type links []netip.Addr

func (l links) Addresses() []netip.Addr { return l }

// ask sends a request of the engine.
func ask(g Gomega, p *dockeripam.DockerIPAM, call, body string) {
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/IpamDriver."+call, strings.NewReader(body)))
	g.ExpectWithOffset(1, w.Code).To(Equal(http.StatusOK), "%s", w.Body)
}

// Without the network namespaces of containers the plugin gives up only pools in which
// no endpoint has an address.
func TestObserver(t *testing.T) {
	for name, c := range map[string]struct {
		endpoint bool
		host     links
		missing  bool
		want     bool
	}{
		"an empty pool":                 {want: true},
		"an endpoint has an address":    {endpoint: true},
		"a bridge has the gateway":      {host: links{netip.MustParseAddr("10.1.0.1")}},
		"the engine does not answer":    {missing: true},
		"another address of the bridge": {host: links{netip.MustParseAddr("10.2.0.1")}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			l, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			r := &reader{}
			p := dockeripam.NewPlugin(dockeripam.Deps{NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
				return ipamapi.New(ctx, ipamapi.Deps{Ledger: l, Engine: ipamapi.Engine{Reader: r, Name: driverName}})
			}})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{}, 2)
			go func() { _ = p.Run(ctx); ended <- struct{}{} }()
			g.Eventually(func() error { _, err := p.Pools(); return err }, "20s").Should(Succeed())
			ticks := make(chan time.Time)
			uptime := time.Duration(0)
			o := &observer{log: slog.New(slog.DiscardHandler), engine: r, ledger: l, docker: p, host: c.host, ticks: ticks,
				uptime: func() time.Duration { uptime += time.Minute; return uptime }}
			go func() { _ = o.run(ctx); ended <- struct{}{} }()
			if c.missing {
				r.err = os.ErrDeadlineExceeded
			}
			ask(g, p, "RequestPool", `{"AddressSpace":"LocalDefault","Pool":"10.1.0.0/24"}`)
			ask(g, p, "RequestAddress", `{"PoolID":"LocalDefault/10.1.0.0/24","Options":{"RequestAddressType":"com.docker.network.gateway"}}`)
			if c.endpoint {
				ask(g, p, "RequestAddress", `{"PoolID":"LocalDefault/10.1.0.0/24","Options":{"com.docker.network.endpoint.macaddress":"02:01"}}`)
			}
			for range 3 { // the third is taken when the second observation has ended
				ticks <- time.Time{}
			}
			cancel()
			<-ended
			<-ended
			pools, err := p.Pools()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pools[0].GivenUp != nil).To(Equal(c.want))
		})
	}
}
