// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/engines/dockertest"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/engine"
)

// serveDriver serves our driver to an engine until the test ends.
func serveDriver(t *testing.T, e *dockertest.Engine) {
	l, err := net.Listen("unix", filepath.Join(e.Plugins(), "cadastre.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p := dockeripam.NewPlugin(dockeripam.Deps{
		Listener: l,
		NewDriver: func(ctx context.Context, _ ipamapi.PoolOpener) (dockeripam.Driver, error) {
			book, err := ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{})
			if err != nil {
				return nil, err
			}
			return ipamapi.New(ctx, ipamapi.Deps{Ledger: book})
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, 2)
	go func() { _ = p.Run(ctx); ended <- struct{}{} }()
	go func() { _ = p.Serve(ctx); ended <- struct{}{} }()
	t.Cleanup(func() {
		cancel()
		<-ended
		<-ended
	})
}

// named returns a network of a view by its name.
func named(v *witness.EngineView, name string) *witness.EngineNetwork {
	for i := range v.Networks {
		if v.Networks[i].Name == name {
			return &v.Networks[i]
		}
	}
	return nil
}

func uses(v *witness.EngineView, addr string) string {
	var all []string
	for _, u := range v.Uses("cadastre", netip.MustParseAddr(addr)) {
		all = append(all, u.Network.Name+": "+u.What)
	}
	return strings.Join(all, ", ")
}

// All that a real engine holds of our driver is in the view. That includes a gateway
// that the engine names only through a running container, a gateway that it writes as a
// prefix, and addresses of containers that do not run.
func TestRealEngine(t *testing.T) {
	g := NewWithT(t)
	e := dockertest.Start(t)
	serveDriver(t, e)
	r := engine.New(engine.Options{Endpoint: e.Endpoint(), Driver: "cadastre"})
	v, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.ID).NotTo(BeEmpty())
	g.Expect(v.Swarm).To(BeFalse())
	g.Expect(r.Source()).To(Equal(fmt.Sprintf("Docker %s at %s", v.Version, e.Endpoint())))
	g.Expect(named(v, "bridge").IPAMDriver).To(Equal("default"))

	changes := make(chan struct{}, 1)
	watching, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.Watch(watching, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	}()
	g.Eventually(changes, "20s").Should(Receive(), "it has connected")

	e.Docker("network", "create", "--ipam-driver", "cadastre", "--subnet", "10.50.0.0/24", "plain")
	g.Eventually(changes, "20s").Should(Receive(), "a network was created")
	e.Docker("network", "create", "--ipam-driver", "cadastre", "--subnet", "10.51.0.0/24", "--ip-range", "10.51.0.0/26",
		"--gateway", "10.51.0.9", "--aux-address", "router=10.51.0.2", "--ipam-opt", "colour=blue", "full")
	e.Docker("network", "create", "--ipam-driver", "cadastre", "--ipv6", "six")
	e.Docker("create", "--name", "created", "--network", "full", "--ip", "10.51.0.41", dockertest.Image)
	e.Docker("run", "-d", "--name", "fixed", "--network", "full", "--ip", "10.51.0.40", dockertest.Image, "wait")
	e.Docker("stop", "-t", "0", "fixed")
	e.Docker("run", "-d", "--name", "web", "--network", "six", dockertest.Image, "wait")

	v, err = r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(named(v, "plain").Pools[0].Gateway.IsValid()).To(BeFalse(), "this engine does not say; if it does, doc.go is too careful")
	full := named(v, "full")
	g.Expect(full.IPAMOptions).To(Equal(map[string]string{"colour": "blue"}))
	g.Expect(full.Scope).To(Equal("local"))
	g.Expect(full.Pools).To(Equal([]witness.EnginePool{{
		Subnet:  netip.MustParsePrefix("10.51.0.0/24"),
		Range:   netip.MustParsePrefix("10.51.0.0/26"),
		Gateway: netip.MustParseAddr("10.51.0.9"),
		Aux:     map[string]netip.Addr{"router": netip.MustParseAddr("10.51.0.2")},
	}}))
	g.Expect(uses(v, "10.51.0.2")).To(Equal("full: auxiliary address router"))
	g.Expect(uses(v, "10.51.0.9")).To(Equal("full: gateway"))
	g.Expect(uses(v, "10.51.0.40")).To(Equal("full: stopped container fixed"))
	g.Expect(uses(v, "10.51.0.41")).To(Equal("full: stopped container created"))
	six := named(v, "six")
	g.Expect(six.Pools).To(HaveLen(2))
	g.Expect(six.Pools[1].Gateway).To(Equal(six.Pools[1].Subnet.Addr().Next()))
	g.Expect(six.Endpoints).To(HaveLen(1))
	g.Expect(six.Endpoints[0].Addrs).To(HaveLen(2))
	g.Expect(six.Endpoints[0].Name).To(Equal("web"))
	g.Expect(six.Endpoints[0].MAC).NotTo(BeEmpty())
	g.Expect(uses(v, six.Endpoints[0].Addrs[1].String())).To(Equal("six: container web"))

	e.Docker("run", "-d", "--name", "teacher", "--network", "plain", dockertest.Image, "wait")
	v, err = r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(named(v, "plain").Pools[0].Gateway).To(Equal(netip.MustParseAddr("10.50.0.1")), "of the container")

	e.Kill()
	_, err = r.Read(t.Context())
	g.Expect(err).To(HaveOccurred(), "a missing engine differs from an engine without networks")
	g.Expect(err).NotTo(MatchError(witness.ErrNotApplicable))
	stop()
	g.Eventually(stopped, "20s").Should(BeClosed())
}
