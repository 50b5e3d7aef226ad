// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/rebuild"
)

// The networks of the engine are in the rebuilt database: a driver that opens it without
// an engine serves their pools, and allocates none of their addresses.
func TestRebuildOfDocker(t *testing.T) {
	a := netip.MustParseAddr
	pods := []rebuild.Pool{{Name: podPool, Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")}}}
	for name, c := range map[string]struct {
		subnet string
		conf   contivconf.Docker
	}{
		"a pool of its own":         {"172.30.7.0/29", contivconf.Docker{}},
		"a part of the pod network": {"10.1.5.64/29", contivconf.Docker{FromPods: true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			subnet := netip.MustParsePrefix(c.subnet)
			first := subnet.Addr().Next()
			next := func(n int) netip.Addr {
				x := first
				for range n {
					x = x.Next()
				}
				return x
			}
			w := &witness.World{
				Driver: "cadastre", Kernel: &witness.KernelView{Namespaces: []witness.Namespace{{Host: true}}}, Runtime: &witness.RuntimeView{},
				Engine: &witness.EngineView{Networks: []witness.EngineNetwork{{
					ID: "n", Name: "web", Driver: "bridge", Scope: "local", IPAMDriver: "cadastre",
					Pools:     []witness.EnginePool{{Subnet: subnet, Gateway: first, Aux: map[string]netip.Addr{"router": next(1)}}},
					Endpoints: []witness.EngineEndpoint{{ID: "e", ContainerID: "c", Name: "nginx", MAC: "02:42:00:00:00:01", Addrs: []netip.Addr{next(2)}}},
				}}},
			}
			p := rebuild.Make(w, rebuild.Input{Pools: pods})
			g.Expect(p.Docker).To(HaveLen(3))
			g.Expect(p.Complete()).To(BeTrue(), "%v", p.Missing)
			dir := t.TempDir()
			target := &rebuildTarget{stateDir: dir, runDir: filepath.Join(dir, "run"), bootID: "/proc/sys/kernel/random/boot_id", now: noon, docker: c.conf}
			g.Expect(target.write(t.Context(), pods, &p, w)).To(Succeed())

			file, err := bolt.OpenFile(target.path(), bolt.FileOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			defer file.Close()
			l, err := ledger.Open(t.Context(), file.Journal(), ledger.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			config := ipamapi.Config{HostID: "h"}
			if c.conf.FromPods {
				config.FromPods.Pool = podPool
			}
			d, err := ipamapi.New(t.Context(), ipamapi.Deps{Ledger: l, Records: file.Records(dockerRecords), Config: config})
			g.Expect(err).NotTo(HaveOccurred())
			held := map[netip.Addr]bool{}
			for _, x := range l.Leases() {
				held[x.Addr] = x.Purpose != ledger.ForPod // a gateway is of the infrastructure
			}
			g.Expect(held).To(Equal(map[netip.Addr]bool{first: true, next(1): true, next(2): true}))
			if c.conf.FromPods {
				_, _, err := l.Claim(t.Context(), ledger.Request{Pool: podPool, Key: ledger.Key{Network: "k8s", ContainerID: "x"}, Wanted: []netip.Addr{next(2)}})
				g.Expect(err).To(HaveOccurred(), "a pod got the address of a container")
			}
			pools := d.Pools()
			g.Expect(pools).To(HaveLen(1))
			for range 3 { // of 6 usable addresses
				got, _, err := d.RequestAddress(pools[0].ID, nil, nil)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(held).NotTo(HaveKey(a(got.IP.String())))
			}
			_, _, err = d.RequestAddress(pools[0].ID, nil, nil)
			g.Expect(err).To(HaveOccurred())
		})
	}
}
