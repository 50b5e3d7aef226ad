// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package awsdatastore

import (
	"path/filepath"
	"testing"

	aws "github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"

	ours "github.com/cadastre/cadastre/ipam/datastore"
)

const pods = 5

// TestTheirProgramReadsOurFile restores a file of ours with the published code.
func TestTheirProgramReadsOurFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipam.json")
	mine := ourNode{ours.NewDataStore(nil, ours.NewJSONFile(path))} // with a cool-down
	fill(t, mine, 10, pods+1, false)
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
	fill(t, newAWS(aws.NewJSONFile(path), false), 10, pods, false)
	mine := ourNode{ours.NewDataStore(nil, ours.NewJSONFile(path))}
	fill(t, mine, 10, 0, false)
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
