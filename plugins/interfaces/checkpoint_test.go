// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/interfaces"
)

// fileOfAWS is the checkpoint as the AWS VPC CNI declares it.
type fileOfAWS struct {
	Version     string `json:"version"`
	Allocations []struct {
		NetworkName string `json:"networkName"`
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifName"`
		IPv4        string `json:"ipv4,omitempty"`
		IPv6        string `json:"ipv6,omitempty"`
	} `json:"allocations"`
}

// The leases are the same after an export and an import into a new database, on a node that
// has addresses of one family first.
func TestAnExportIsImportedAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ipam.json")
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs, conf.Export = 2, file
		r := newDualRig(t, conf, memcloud.Config{
			Interfaces: 2, PerInterface: 4,
			Second: map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("fd00::/64")},
		})
		r.start()
		r.addAll(0, 5)
		r.families = []ledger.Family{ledger.IPv4}
		r.addAll(5, 6)
		r.families = []ledger.Family{ledger.IPv6}
		r.addAll(6, 7)
		r.end()
		before := map[ledger.Key][]netip.Addr{}
		for n := range 7 {
			for _, l := range r.process.ledger.ByKey(podKey(n)) {
				before[l.Key] = append(before[l.Key], l.Addr)
			}
		}
		text, err := os.ReadFile(file)
		r.g.Expect(err).NotTo(HaveOccurred())
		var theirs fileOfAWS
		r.g.Expect(json.Unmarshal(text, &theirs)).To(Succeed())
		r.g.Expect(theirs.Version).To(Equal("vpc-cni-ipam/1"))
		r.g.Expect(theirs.Allocations).To(HaveLen(7), "one entry of each key")

		r.families = []ledger.Family{ledger.IPv4}
		r.journal, r.records = journal.NewMemory(), &records{all: map[string][]byte{}}
		r.conf.Checkpoint = file
		r.start()
		r.pass(20 * time.Second)
		r.g.Expect(r.process.plugin.Status().Unplaced).To(Equal(6))
		r.end()
		r.families = []ledger.Family{ledger.IPv4, ledger.IPv6}
		r.start()
		defer func() { r.end() }()
		r.pass(20 * time.Second)
		r.g.Expect(r.process.plugin.Status().Unplaced).To(BeZero())
		for key, addresses := range before {
			var now []netip.Addr
			for _, l := range r.process.ledger.ByKey(key) {
				now = append(now, l.Addr)
			}
			r.g.Expect(now).To(ConsistOf(addresses), key.String())
		}
		r.agree()
	})
}

func TestACheckpointThatCannotBeImported(t *testing.T) {
	const entry = `{"networkName":"n","containerID":"c","ifName":"eth0","ipv4":"10.0.0.9"}`
	for _, c := range []struct{ name, text, want string }{
		{"torn", `{"version":"vpc-cni-ipam/1","allocations":[` + entry, "not a whole JSON object"},
		{"another version", `{"version":"vpc-cni-ipam/2","allocations":[]}`, `it is of version "vpc-cni-ipam/2": want "vpc-cni-ipam/1"`},
		{"not an address", `{"version":"vpc-cni-ipam/1","allocations":[{"networkName":"n","ipv4":"10.0.0"}]}`, `address "10.0.0"`},
		{"of the other family", `{"version":"vpc-cni-ipam/1","allocations":[{"networkName":"n","ipv4":"fd00::1"}]}`, "not of its field's family"},
		{"no address", `{"version":"vpc-cni-ipam/1","allocations":[{"networkName":"n"}]}`, "it has no address"},
		{"no key", `{"version":"vpc-cni-ipam/1","allocations":[{"ipv4":"10.0.0.9"}]}`, "10.0.0.9 is in it without a key"},
		{"an address twice", `{"version":"vpc-cni-ipam/1","allocations":[` + entry + `,{"networkName":"m","ipv4":"10.0.0.9"}]}`, "10.0.0.9 is in it twice"},
		{"a key twice", `{"version":"vpc-cni-ipam/1","allocations":[` + entry + `,{"networkName":"n","containerID":"c","ifName":"eth0","ipv4":"10.0.0.8"}]}`, "has another one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			conf := defaults()
			conf.Checkpoint = filepath.Join(t.TempDir(), "ipam.json")
			g.Expect(os.WriteFile(conf.Checkpoint, []byte(c.text), 0o600)).To(Succeed())
			l, err := ledger.Open(context.Background(), journal.NewMemory(), ledger.Options{})
			g.Expect(err).NotTo(HaveOccurred())
			r := &rig{records: &records{all: map[string][]byte{}}}
			_, err = interfaces.New(context.Background(), interfaces.Deps{
				Log: slog.New(slog.DiscardHandler), Config: conf, Ledger: l, Records: &deadly{&process{r: r}, r.records},
				Now: time.Now, Uptime: func() time.Duration { return 0 }, After: time.After,
			})
			g.Expect(err).To(MatchError(And(ContainSubstring("import cadastre.interfaces.checkpoint"), ContainSubstring(c.want))))
		})
	}
}
