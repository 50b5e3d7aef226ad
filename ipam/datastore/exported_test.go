// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

// entryOfAWS is an entry of the file as the AWS VPC CNI declares it.
type entryOfAWS struct {
	NetworkName string `json:"networkName"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	IPv4        string `json:"ipv4,omitempty"`
	IPv6        string `json:"ipv6,omitempty"`
}

// TestAnExportIsImportedAgain: the leases of any node, of either family or both, are the same after an export and an import, whichever interface comes first. The
// other program finds one entry of each key.
func TestAnExportIsImportedAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ipam.json")
	rapid.Check(t, func(r *rapid.T) {
		from := newSharing(t, nil)
		from.g = NewWithT(r)
		v4 := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}
		v6 := []string{"fd00::1", "fd00::2", "fd00::3", "fd00::4", "fd00::5", "fd00::6"}
		first, second := eni("eni-1", 0, v4...), eni("eni-1", 0, slices.Concat(v4, v6)...)
		from.see(second)
		families := map[int][]ledger.Family{}
		for n := range rapid.IntRange(0, 6).Draw(r, "pods") {
			families[n] = rapid.SampledFrom([][]ledger.Family{{ledger.IPv4}, {ledger.IPv6}, {ledger.IPv4, ledger.IPv6}}).Draw(r, "families")
			_, _, err := from.ledger.Claim(context.Background(), ledger.Request{
				Pool: sharedPool, Key: leaseKey(n), Families: families[n], Pod: ledger.Pod{Namespace: "default", Name: pod(n).K8SPodName},
			})
			from.g.Expect(err).NotTo(HaveOccurred())
		}
		exported := from.Snapshot()
		from.g.Expect(NewJSONFile(file).Checkpoint(exported)).To(Succeed())

		var data CheckpointData
		from.g.Expect(NewJSONFile(file).Restore(&data)).To(Succeed())
		text, err := json.Marshal(data.Allocations)
		from.g.Expect(err).NotTo(HaveOccurred())
		var theirs []entryOfAWS
		from.g.Expect(json.Unmarshal(text, &theirs)).To(Succeed())
		from.g.Expect(theirs).To(HaveLen(len(families)))
		for _, e := range theirs {
			leases := from.ledger.ByKey(ledger.Key{Network: e.NetworkName, ContainerID: e.ContainerID, IfName: e.IfName})
			from.g.Expect(leases).NotTo(BeEmpty())
			for _, l := range leases {
				from.g.Expect([]string{e.IPv4, e.IPv6}).To(ContainElement(l.Addr.String()))
			}
		}

		to := newSharing(t, NewTestCheckpoint(&data))
		to.g = from.g
		to.g.Expect(to.ReadBackingStore()).To(Succeed())
		switch rapid.IntRange(0, 2).Draw(r, "order of the blocks") {
		case 0:
			to.see(first)
		case 1:
			to.see(eni("eni-1", 0, v6...))
		}
		to.see(second)
		to.g.Expect(to.Unplaced()).To(BeEmpty())
		to.g.Expect(to.Check()).To(BeEmpty())
		addresses := func(d *CheckpointData) map[IPAMKey][2]string {
			all := map[IPAMKey][2]string{}
			for _, e := range d.Allocations {
				all[e.IPAMKey] = [2]string{e.IPv4, e.IPv6}
			}
			return all
		}
		to.g.Expect(addresses(to.Snapshot())).To(Equal(addresses(exported)))
		for n, all := range families { // a runtime repeats its ADD
			leases, fresh, err := to.ledger.Claim(context.Background(), ledger.Request{Pool: sharedPool, Key: leaseKey(n), Families: all})
			to.g.Expect(err).NotTo(HaveOccurred())
			to.g.Expect(fresh).To(BeFalse())
			to.g.Expect(leases).To(HaveLen(len(all)))
		}
	})
}

// leaseKey returns the key of a lease of container n.
func leaseKey(n int) ledger.Key {
	k := key(n)
	return ledger.Key{Network: k.NetworkName, ContainerID: k.ContainerID, IfName: k.IfName}
}
