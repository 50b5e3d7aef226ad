// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package awsdatastore measures the interface datastore of AWS's VPC CNI and
// ipam/datastore beside it, in turns: one slow second of the machine slows both.
package awsdatastore

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	aws "github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"
	"github.com/aws/amazon-vpc-cni-k8s/pkg/utils/logger"

	ours "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// TestMain switches the cool-down of the published store off: it cannot be
// given to it, and with 30 s every store of these sizes runs dry.
func TestMain(m *testing.M) {
	os.Setenv("IP_COOLDOWN_PERIOD", "0")
	os.Exit(m.Run())
}

// perENI is how many single addresses an interface has, as in the cloud.
const perENI = 50

// node is a store under test.
type node interface {
	addENI(n int) error
	addBlock(eni int, p netip.Prefix) error
	assign(x sandbox) error
	unassign(x sandbox) error
}

// sandbox is the names of a pod. They are made outside of the clock: that is
// no store's work.
type sandbox struct{ container, pod string }

func sandboxOf(n int) sandbox {
	return sandbox{fmt.Sprintf("%064x", n), fmt.Sprintf("pod-%08d-abcde", n)}
}

func eniID(n int) string { return fmt.Sprintf("eni-%d", n) }

type awsNode struct{ *aws.DataStore }

// newAWS makes the published store. Its log, at debug by default, is off.
func newAWS(cp aws.Checkpointer, prefixes bool) node {
	quiet := logger.New(&logger.Configuration{LogLevel: "fatal", LogLocation: "stderr"})
	return awsNode{aws.NewDataStore(quiet, cp, prefixes, 0)}
}

func (s awsNode) addENI(n int) error {
	return s.AddENI(eniID(n), n, n == 0, false, false, 254, "subnet-0")
}

func (s awsNode) addBlock(eni int, p netip.Prefix) error {
	mask := net.CIDRMask(p.Bits(), 32)
	return s.AddIPv4CidrToStore(eniID(eni), net.IPNet{IP: p.Addr().AsSlice(), Mask: mask}, !p.IsSingleIP())
}

func (s awsNode) assign(x sandbox) error {
	_, _, _, err := s.AssignPodIPv4Address(s.key(x), aws.IPAMMetadata{K8SPodNamespace: "default", K8SPodName: x.pod, InterfacesCount: 1})
	return err
}

func (s awsNode) unassign(x sandbox) error {
	_, _, _, _, _, err := s.UnassignPodIPAddress(s.key(x))
	return err
}

func (awsNode) key(x sandbox) aws.IPAMKey {
	return aws.IPAMKey{NetworkName: "aws-cni", ContainerID: x.container, IfName: "eth0"}
}

type ourNode struct{ *ours.DataStore }

func newOurs(cp ours.Checkpointer, prefixes bool) node {
	return ourNode{ours.New(ours.Options{Checkpoint: cp, PrefixMode: prefixes})}
}

func (s ourNode) addENI(n int) error { return s.AddENI(eniID(n), n, n == 0, false) }

func (s ourNode) addBlock(eni int, p netip.Prefix) error {
	if p.IsSingleIP() {
		return s.AddAddress(eniID(eni), p.Addr())
	}
	return s.AddPrefix(eniID(eni), p)
}

func (s ourNode) assign(x sandbox) error {
	_, err := s.Assign(context.Background(), s.key(x), ours.IPAMMetadata{K8SPodNamespace: "default", K8SPodName: x.pod, InterfacesCount: 1}, ledger.IPv4)
	return err
}

func (s ourNode) unassign(x sandbox) error {
	_, err := s.Unassign(context.Background(), s.key(x))
	return err
}

func (ourNode) key(x sandbox) ours.IPAMKey {
	return ours.IPAMKey{NetworkName: "aws-cni", ContainerID: x.container, IfName: "eth0"}
}

// fill adds total addresses and assigns some of them.
func fill(b testing.TB, s node, total, assigned int, prefixes bool) {
	b.Helper()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	bits := 32
	if prefixes {
		must(s.addENI(0))
		bits = 28
	}
	for n := 0; n < total; n += 1 << (32 - bits) {
		a := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		eni := 0
		if !prefixes {
			if eni = n / perENI; n%perENI == 0 {
				must(s.addENI(eni))
			}
		}
		must(s.addBlock(eni, netip.PrefixFrom(a, bits)))
	}
	for n := range assigned {
		must(s.assign(sandboxOf(n)))
	}
}

// churn assigns one address and takes the oldest back, again and again.
type churn struct {
	name        string
	node        node
	first, last int
}

// batch makes n pairs and says how long the store took.
func (c *churn) batch(n int) (time.Duration, error) {
	young, old := make([]sandbox, n), make([]sandbox, n)
	for i := range n {
		young[i], old[i] = sandboxOf(c.last+i), sandboxOf(c.first+i)
	}
	c.first, c.last = c.first+n, c.last+n
	began := time.Now()
	for i := range n {
		if err := c.node.assign(young[i]); err != nil {
			return 0, err
		}
		if err := c.node.unassign(old[i]); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// turns runs batches of pairs of one store and the other, and reports the
// median of each (NAME-p50-ns, a pair), and their ratio.
func turns(b *testing.B, batch int, all ...*churn) {
	took := make([][]time.Duration, len(all))
	round := 0
	for b.Loop() {
		if round++; round%256 == 0 {
			runtime.GC() // the published file is left open for the finalizer to close
		}
		for i, c := range all {
			d, err := c.batch(batch)
			if err != nil {
				b.Fatalf("%s: %v", c.name, err)
			}
			took[i] = append(took[i], d)
		}
	}
	p50 := func(i int) float64 {
		slices.Sort(took[i])
		return float64(took[i][len(took[i])/2].Nanoseconds()) / float64(batch)
	}
	b.ReportMetric(0, "ns/op")
	for i, c := range all {
		b.ReportMetric(p50(i), c.name+"-p50-ns")
	}
	if len(all) == 2 {
		b.ReportMetric(p50(0)/p50(1), all[0].name+"/"+all[1].name)
	}
}

// BenchmarkNull has no checkpoint.
func BenchmarkNull(b *testing.B) {
	for _, mode := range []string{"secondary", "prefix"} {
		prefixes := mode == "prefix"
		for _, n := range []int{30, 250, 1000} {
			if prefixes {
				n = (n + 15) / 16 * 16
			}
			for _, full := range []int{0, 50, 99} {
				assigned := n * full / 100
				if full == 99 {
					assigned = n - 1
				}
				b.Run(fmt.Sprintf("%s/%d/%d", mode, n, full), func(b *testing.B) {
					theirs, mine := newAWS(aws.NullCheckpoint{}, prefixes), newOurs(ours.NullCheckpoint{}, prefixes)
					fill(b, theirs, n, assigned, prefixes)
					fill(b, mine, n, assigned, prefixes)
					turns(b, 16, &churn{"aws", theirs, 0, assigned}, &churn{"cadastre", mine, 0, assigned})
				})
			}
		}
	}
}

func dir(b *testing.B) string {
	d, err := os.MkdirTemp(os.Getenv("DIR"), "peers-aws")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// gate keeps nothing until it is opened, so that a store can be filled without
// a write for each address.
type gate struct {
	to   ours.Checkpointer // of the same shape as the published one
	open bool
}

func (g *gate) Checkpoint(data any) error {
	if !g.open {
		return nil
	}
	return g.to.Checkpoint(data)
}

func (g *gate) Restore(into any) error { return g.to.Restore(into) }

// BenchmarkFile writes each change to the file, on the disk of DIR.
func BenchmarkFile(b *testing.B) {
	for _, n := range []int{30, 250, 1000} {
		b.Run(fmt.Sprintf("secondary/%d/99", n), func(b *testing.B) {
			d := dir(b)
			a := &gate{to: aws.NewJSONFile(filepath.Join(d, "aws.json"))}
			o := &gate{to: ours.NewJSONFile(filepath.Join(d, "ours.json"))}
			theirs, mine := newAWS(a, false), newOurs(o, false)
			fill(b, theirs, n, n-1, false)
			fill(b, mine, n, n-1, false)
			a.open, o.open = true, true
			turns(b, 1, &churn{"aws", theirs, 0, n - 1}, &churn{"cadastre", mine, 0, n - 1})
		})
	}
}

// BenchmarkFileOurs16000 is ours alone: filling the published store takes it minutes.
func BenchmarkFileOurs16000(b *testing.B) {
	o := &gate{to: ours.NewJSONFile(filepath.Join(dir(b), "ours.json"))}
	s := newOurs(o, false)
	fill(b, s, 16000, 15999, false)
	o.open = true
	turns(b, 1, &churn{"cadastre", s, 0, 15999})
}

// deltaGate is a gate that can be told what has changed.
type deltaGate struct {
	gate
	delta ours.DeltaCheckpointer
}

func (g *deltaGate) CheckpointDelta(put, del []ours.CheckpointEntry) error {
	if !g.open {
		return nil
	}
	return g.delta.CheckpointDelta(put, del)
}

// bare writes one record for each call, in a bbolt transaction of its own.
type bare struct {
	node
	journal *bolt.Journal
	value   []byte
}

func (s bare) assign(x sandbox) error {
	return s.journal.Commit(context.Background(), []kvdb.Op{kvdb.Put(x.container, s.value)})
}

func (s bare) unassign(x sandbox) error {
	return s.journal.Commit(context.Background(), []kvdb.Op{kvdb.Delete(x.container)})
}

// BenchmarkDelta writes what has changed to a journal in a bbolt file. The four
// sizes take turns, each with a file of its own, and with them two bare
// transactions of a file with 1 000 records of that size.
func BenchmarkDelta(b *testing.B) {
	f, err := bolt.OpenFile(filepath.Join(dir(b), "bare.db"), bolt.FileOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	two := bare{journal: f.Journal(), value: make([]byte, 220)}
	var ops []kvdb.Op
	for n := range 1000 {
		ops = append(ops, kvdb.Put(sandboxOf(n).container, two.value))
	}
	if err := two.journal.Commit(context.Background(), ops); err != nil {
		b.Fatal(err)
	}
	all := []*churn{{"two-transactions", two, 0, 1000}}
	for _, n := range []int{30, 250, 1000, 16000} {
		f, err := bolt.OpenFile(filepath.Join(dir(b), "leases.db"), bolt.FileOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		cp := ours.NewJournalCheckpoint(f.Journal())
		g := &deltaGate{gate{to: cp}, cp}
		s := newOurs(g, false)
		fill(b, s, n, n-1, false)
		whole := &ours.CheckpointData{Version: ours.CheckpointFormatVersion}
		for _, x := range s.(ourNode).AllocatedIPs() {
			whole.Allocations = append(whole.Allocations, ours.CheckpointEntry{IPAMKey: x.IPAMKey, IPv4: x.IP})
		}
		if err := cp.Checkpoint(whole); err != nil {
			b.Fatal(err)
		}
		g.open = true
		all = append(all, &churn{fmt.Sprintf("delta-%d", n), s, 0, n - 1})
	}
	turns(b, 1, all...)
}
