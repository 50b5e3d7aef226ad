// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	"go.uber.org/goleak"

	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is time since boot that only tests move.
type clock struct{ up atomic.Int64 }

func (c *clock) uptime() time.Duration { return time.Duration(c.up.Load()) }
func (c *clock) pass(d time.Duration)  { c.up.Add(int64(d)) }
func (c *clock) wall() time.Time       { return time.Unix(1_700_000_000, 0).UTC().Add(c.uptime()) }
func (c *clock) options(opt Options) Options {
	opt.Now, opt.Uptime = c.wall, c.uptime
	return opt
}

// store is a DataStore whose time only tests move. It begins an hour after boot.
func store(opt Options) (*DataStore, *clock) {
	c := &clock{}
	c.pass(time.Hour)
	return New(c.options(opt)), c
}

func key(n int) IPAMKey {
	return IPAMKey{NetworkName: "aws-cni", ContainerID: fmt.Sprintf("container-%d", n), IfName: "eth0"}
}

func pod(n int) IPAMMetadata {
	return IPAMMetadata{K8SPodNamespace: "default", K8SPodName: fmt.Sprintf("pod-%d", n)}
}

// assign assigns an IPv4 address, which must succeed.
func assign(g Gomega, ds *DataStore, n int) string {
	ip, _, err := ds.AssignPodIPv4Address(key(n))
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return ip
}

func unassign(g Gomega, ds *DataStore, n int) string {
	ip, _, err := ds.UnassignPodIPv4Address(key(n))
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return ip
}

// add adds interfaces and addresses: "eni-1", 1, "10.0.0.1", "10.0.0.2", "eni-2", 2, "10.0.0.16/28".
func add(g Gomega, ds *DataStore, all ...any) {
	id := ""
	for i, x := range all {
		switch x := x.(type) {
		case int:
			id = all[i-1].(string)
			g.ExpectWithOffset(1, ds.AddENI(id, x, x == 0, false)).To(Succeed())
		case string:
			if p, err := netip.ParsePrefix(x); err == nil {
				g.ExpectWithOffset(1, ds.AddPrefix(id, p)).To(Succeed())
			} else if a, err := netip.ParseAddr(x); err == nil {
				g.ExpectWithOffset(1, ds.AddAddress(id, a)).To(Succeed())
			}
		}
	}
}

func stats(g Gomega, ds *DataStore, total, assigned, cooling int) {
	s := ds.GetIPStats(ledger.IPv4)
	g.ExpectWithOffset(1, []int{s.Total, s.Assigned, s.Cooling}).To(Equal([]int{total, assigned, cooling}), "total, assigned, cooling")
}

func entry(n int, ip string, at *clock) CheckpointEntry {
	return CheckpointEntry{IPAMKey: key(n), IPv4: ip, AllocationTimestamp: at.wall().UnixNano()}
}

// data is a checkpoint of the entries.
func data(all ...CheckpointEntry) *CheckpointData {
	return &CheckpointData{Version: CheckpointFormatVersion, Allocations: all}
}

func held(ds *DataStore) map[string]IPAMKey {
	m := map[string]IPAMKey{}
	for _, x := range append(ds.AllocatedIPs(), ds.Unplaced()...) {
		m[x.IP] = x.IPAMKey
	}
	return m
}

func text(code string) types.GomegaMatcher { return WithTransform(error.Error, Equal(code)) }
