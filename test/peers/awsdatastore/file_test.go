// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package awsdatastore

import (
	"path/filepath"
	"reflect"
	"testing"

	aws "github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"

	ours "github.com/cadastre/cadastre/ipam/datastore"
)

const pods = 5

// fill attaches total addresses and assigns some of them.
func fill(t *testing.T, n node, total, assigned int) {
	t.Helper()
	store{total: total}.attach(t, n)
	for i := range assigned {
		if err := n.assign(sandboxOf(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheirProgramReadsOurFile restores a file of ours with the published code.
func TestTheirProgramReadsOurFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipam.json")
	mine := ourNode{ours.NewDataStore(nil, ours.NewJSONFile(path))} // with a cool-down
	fill(t, mine, 10, pods+1)
	if err := mine.unassign(sandboxOf(pods)); err != nil {
		t.Fatal(err)
	}
	var read aws.CheckpointData
	if err := aws.NewJSONFile(path).Restore(&read); err != nil {
		t.Fatal(err)
	}
	if read.Version != aws.CheckpointFormatVersion || len(read.Allocations) != pods {
		t.Fatalf("version %q, %d allocations, %d would be right: what cools is none", read.Version, len(read.Allocations), pods)
	}
	for i, e := range read.Allocations {
		if want := (awsNode{}).key(sandboxOf(i)); e.IPAMKey != want || e.IPv4 == "" || e.AllocationTimestamp == 0 || e.Metadata.K8SPodName != sandboxOf(i).pod {
			t.Errorf("allocation %d is %+v", i, e)
		}
	}
}

// TestOurProgramReadsTheirFile restores a file of the published code with ours.
func TestOurProgramReadsTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipam.json")
	fill(t, newAWS(aws.NewJSONFile(path), false), 10, pods)
	mine := ourNode{ours.NewDataStore(nil, ours.NewJSONFile(path))}
	fill(t, mine, 10, 0)
	if err := mine.ReadBackingStore(); err != nil {
		t.Fatal(err)
	}
	all := mine.AllocatedIPs()
	if len(all) != pods {
		t.Fatalf("%d addresses are restored, %d would be right: %+v", len(all), pods, all)
	}
	// Both go on from there.
	if err := mine.assign(sandboxOf(pods)); err != nil {
		t.Fatal(err)
	}
	var read aws.CheckpointData
	if err := aws.NewJSONFile(path).Restore(&read); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range read.Allocations {
		if seen[e.IPv4] {
			t.Errorf("%s has two owners", e.IPv4)
		}
		seen[e.IPv4] = true
		if e.ContainerID != sandboxOf(pods).container && e.Metadata.InterfacesCount != 1 {
			t.Errorf("%s has lost what the file had of it", e.IPv4)
		}
	}
	if len(seen) != pods+1 {
		t.Errorf("the file has %+v", read.Allocations)
	}
}

// TestLoadIsRestore: a store that is filled without waiting is what a restore
// of all at once leaves, and goes on like it.
func TestLoadIsRestore(t *testing.T) {
	for _, s := range []store{{false, 2*perENI + 7, 60}, {true, 1000, 700}} {
		g := &gate{}
		slow, quick := newAWS(g, s.prefixes).(awsNode), newAWS(g, s.prefixes).(awsNode)
		s.attach(t, slow)
		s.attach(t, quick)
		if err := g.give(slow, s.entries()); err != nil {
			t.Fatal(err)
		}
		if err := quick.load(g, s.entries()); err != nil {
			t.Fatal(err)
		}
		one, other := slow.GetENIInfos(), quick.GetENIInfos()
		if one.AssignedIPs != s.assigned || !reflect.DeepEqual(addresses(one), addresses(other)) || *slow.GetIPStats("4") != *quick.GetIPStats("4") {
			t.Errorf("%+v: %v is not %v", s, quick.GetIPStats("4"), slow.GetIPStats("4"))
		}
		if _, err := newChurn(theirs, quick, s.assigned).batch(s.assigned + 1); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// addresses is what each block has.
func addresses(infos *aws.ENIInfos) map[string]aws.IPAMKey {
	all := map[string]aws.IPAMKey{}
	for id, e := range infos.ENIs {
		for block, c := range e.AvailableIPv4Cidrs {
			all[id+" "+block] = aws.IPAMKey{}
			for a, x := range c.IPAddresses {
				all[id+" "+block+" "+a] = x.IPAMKey
			}
		}
	}
	return all
}
